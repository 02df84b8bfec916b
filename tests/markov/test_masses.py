"""Masses are what exact rationals say, and their compiled loops give what numpy gives, bit by bit."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dphmm.compilation import Often, compiled
from dphmm.markov import masses as module
from dphmm.markov.masses import Masses

LOOPS = {name: one for name, one in vars(module).items() if isinstance(one, Often)}
WIDTHS = (1.0, 700.0, 1e5, 1e14, 1e305)


def wild(seed: int, size: int = 97, width: float = 1e5) -> Masses:
    """Masses of which some are nothing, some tiny floats and some far below the others."""
    rng = np.random.default_rng(seed)
    values = rng.random(size)
    values[rng.random(size) < 0.2] = 0.0
    values[rng.random(size) < 0.2] *= 2.0**-1060
    exponents = np.rint(rng.normal(0, min(width, 1e12), size))
    exponents[:2] *= [1e3, -1e3]  # with limbs that are no short numbers
    return Masses.of(values, exponents)


def calls(seed: int, width: float) -> dict[str, list[object]]:
    """Arguments for each loop."""
    rng, some = np.random.default_rng(seed), wild(seed, width=width)
    size = len(some.mantissa)
    logs = rng.normal(0, width, size)
    logs[rng.random(size) < 0.2] = -np.inf
    values = np.where(some.mantissa > 0, rng.uniform(0.25, 4.0, size), 0.0)
    values[:7] = 1.0  # what is ruled out has any value, and no exponent
    exponents = np.where(np.arange(size) < 7, -np.inf, some.exponent)
    above, least, out = float(some.exponent.max()), float(rng.choice([-900, -np.inf])), np.empty(size)
    tiny = some.mantissa * 2.0 ** rng.choice([0.0, -1000.0, -1070.0], size)
    tiny[:2] = -0.0
    return {
        "_normal_masses": [tiny, exponents.copy()],
        "_plain_masses": [some.mantissa, some.exponent, above, least, out],
        "_limbs_of": [some.mantissa, some.exponent, np.empty(size, dtype=np.int32), out],
        "_exponentials": [logs, some.mantissa, some.exponent, np.empty(size), out],
        "_scaled_masses": [values, exponents],
    }


def test_masses_times_exponentials_are_those_to_two_units_in_the_last_place():
    """Against mpmath, as far as whole multiples of the logarithm of two are exact."""
    for width in (1.0, 30.0, 1e4, 3e5):
        logs = np.random.default_rng(0).normal(0, width, 100)
        found, log_sum = Masses.of(np.ones(100)).times_exp(logs)
        with mpmath.workdps(40):
            weights = [mpmath.exp(mpmath.mpf(log)) for log in logs.tolist()]
            total = mpmath.fsum(weights)
            pairs = zip(found.mantissa.tolist(), map(int, found.exponent.tolist()), strict=True)
            ratios = [mpmath.ldexp(*pair) / (weight / total) for pair, weight in zip(pairs, weights, strict=True)]
            assert max(abs(ratio - 1) for ratio in ratios) < 1e-15
            assert abs(log_sum - mpmath.log(total)) < 4e-16 * max(1.0, abs(log_sum))


def test_every_loop_is_called_here():
    assert set(LOOPS) == set(calls(0, 1.0))


@pytest.mark.parametrize("name", LOOPS)
def test_a_compiled_loop_gives_what_numpy_gives_bit_by_bit(name):
    loop = compiled(LOOPS[name].loop)
    if loop is None:
        pytest.skip("numba is not installed")
    for seed in range(40):
        width = WIDTHS[seed % len(WIDTHS)]
        ones, others = calls(seed, width)[name], calls(seed, width)[name]
        with np.errstate(all="ignore"):
            wanted, found = LOOPS[name].plain(*ones), loop(*others)
        assert wanted == found
        for one, other in zip(ones, others, strict=True):
            if isinstance(one, np.ndarray) and wanted is not False:
                np.testing.assert_array_equal(one, other, err_msg=f"{seed}")
