"""A town with a model and releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.audit.town import POLICY, REGIONS, STEP, TOWN, run, write_places
from tests.sizes import mark_rest_slow


@pytest.fixture(scope="session", params=mark_rest_slow(REGIONS, 1))
def town(request, tmp_path_factory) -> Path:
    """Return a folder with a model, a session and a release file, written by the command."""
    folder = tmp_path_factory.mktemp("town")
    write_places(folder / "places.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("learn", TOWN, *REGIONS[request.param], *STEP)
        options = ("--model", "m.npz", "--policy", POLICY, "--epsilon", "0.8", "--seed", "4")
        run("release", TOWN, "--users", "002", *options, "--session", "s.session", "-o", "r.csv")
    return folder
