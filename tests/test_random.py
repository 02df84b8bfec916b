"""Arguments named ``rng``: seeds and generators, in every public function."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest

from dphmm import ReleaseSettings
from dphmm.errors import InvalidInputError
from dphmm.evaluation import compare_noise
from dphmm.jobs import sample_users
from dphmm.random import derive_seed
from scripts.site import names
from tests.public_calls import CALLS, MATRIX, MODEL, PLACES

# Keys of files and fields of results. Their commands have an option --seed.
NAMED_SEED = {"evaluation.EvaluationConfig", "evaluation.FigureOptions", "jobs.AttackResult"}


def test_public_functions_have_no_parameter_named_seed():
    seeded = set()
    for stage, exported in names.list_exports().items():
        module = importlib.import_module(f"dphmm.{stage}" if stage else "dphmm")
        for name in exported:
            member = getattr(module, name)
            methods = [value for key, value in vars(member).items() if key[0] != "_"] if inspect.isclass(member) else []
            for function in filter(callable, (member, *methods)):
                try:
                    parameters = inspect.signature(function).parameters
                except (TypeError, ValueError):  # an exception, or a class of another library
                    continue
                if "seed" in parameters:
                    seeded.add(f"{stage}.{name}")
    assert seeded == NAMED_SEED


def test_seed_is_unchanged_and_generator_gives_one():
    assert [derive_seed(seed) for seed in (0, 7, np.int64(7), 2**70)] == [0, 7, 7, 2**70]
    first, second = (derive_seed(np.random.default_rng(3)) for _ in range(2))
    assert first == second >= 0
    generator = np.random.default_rng(3)
    assert derive_seed(generator) == first != derive_seed(generator)


@pytest.mark.slow
def test_generators_are_repeatable_in_public_functions():
    def sample_states(rng):
        return sample_users(MODEL, 3, 5, 0, rng).tolist()

    def compare_noises(rng):
        model = type(MODEL)(MATRIX, np.full(6, 1 / 6), PLACES, 60.0)
        return compare_noise(model, ReleaseSettings("complete", 1.0), [[0, 1, 2]], rng)

    for function in (sample_states, compare_noises):
        assert function(np.random.default_rng(5)) == function(np.random.default_rng(5))
        generator = np.random.default_rng(5)
        assert function(generator) != function(generator)


@pytest.mark.parametrize(
    "name",
    ["attack.attack_tracks", "jobs.batch", "jobs.calibrate", "jobs.compare_uses", "jobs.release_track_with_engine"],
)
@pytest.mark.parametrize("rng", [-1, 1.5, "7", [1]])
def test_invalid_rng_is_refused_by_name(name, rng):
    with pytest.raises(InvalidInputError, match=r"^rng must be a non-negative integer or a numpy\.random\.Generator"):
        derive_seed(rng)
    call = CALLS[name]
    with pytest.raises(InvalidInputError, match=r"^rng must be a non-negative integer or a numpy\.random\.Generator"):
        call.of(**call.arguments | {"rng": rng})
