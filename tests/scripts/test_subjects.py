"""Tests that each subject has one name in every layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from dphmm.cli.commands import COMMANDS, FILES
from scripts.subjects import (
    ASPECTS,
    EXCEPTIONS,
    LAYERS,
    SHARED,
    SUBJECTS,
    find_command_flaws,
    find_flaws,
    list_modules,
)


def test_each_subject_has_one_name():
    assert find_flaws(list_modules()) == []


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("dphmm/jobs/leaks.py", "synonym of 'leakage'"),
        ("dphmm/jobs/user_flows.py", "neither a subject nor"),
        ("dphmm/plots/curves.py", "neither a subject nor"),
        ("dphmm/audit/hidden_place.py", "synonym of 'hide'"),
        ("dphmm/cli/models.py", "synonym of 'model'"),
        ("dphmm/geometry/leakage.py", "contains the name of the subject 'leakage'"),
        ("dphmm/jobs/release_stored.py", "'release' has several modules"),
    ],
)
def test_second_name_is_detected(module, words):
    flaws = find_flaws([*list_modules(), Path(module)])
    assert any(words in flaw for flaw in flaws), flaws


@pytest.mark.parametrize(
    ("synonym", "subject"), [(word, subject) for subject, words in SUBJECTS.items() for word in words]
)
def test_each_synonym_is_detected(synonym, subject):
    flaw = f"synonym of '{subject}'"
    for name in (synonym, f"{synonym}_table"):
        assert flaw in " ".join(find_flaws([Path(f"dphmm/geometry/{name}.py")])), name


def test_calibration_in_another_subject_is_detected():
    assert find_flaws([*list_modules(), Path("dphmm/jobs/model/calibration.py")])


def test_commands_are_in_the_modules_of_their_subjects():
    assert find_command_flaws({name: FILES.get(name, name) for name in COMMANDS}) == []
    misplaced = find_command_flaws({"batch": "release", "certify": "release", "learn": "model"})
    assert [flaw.split(":")[0] for flaw in misplaced] == ["dphmm batch", "dphmm certify"]


def test_lists_name_existing_modules():
    modules = {str(module) for module in list_modules()}
    assert EXCEPTIONS.keys() <= modules
    assert SHARED.keys() == set(LAYERS)
    missing = [
        f"{layer}/{name}"
        for layer, names in SHARED.items()
        for name in names
        if f"dphmm/{layer}/{name}.py" not in modules
    ]
    assert missing == []
    assert ASPECTS.keys() <= SUBJECTS.keys()
