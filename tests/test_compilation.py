"""What is called often is compiled, where numba is installed; before and elsewhere its plain form does."""

from __future__ import annotations

import numpy as np

from dphmm import compilation
from dphmm.compilation import Often, compiled_at_first_call, often


def _doubled(values):
    for i in range(values.size):
        values[i] += values[i]


def test_a_plain_form_is_called_until_it_has_done_enough(monkeypatch):
    forms = []

    @often(_doubled)
    def doubled(values):
        forms.append("plain")
        values += values

    assert isinstance(doubled, Often)
    monkeypatch.setattr(
        compilation, "compiled", lambda loop, **_: lambda values: forms.append("compiled") or loop(values)
    )
    monkeypatch.setattr(compilation, "_WORTH", 3 * (compilation._CALL + 5))
    values = np.ones(5)
    for _ in range(6):
        doubled(values)
    assert (forms, values.tolist()) == (["plain"] * 3 + ["compiled"] * 3, [64.0] * 5)


def test_large_arrays_are_worth_it_sooner(monkeypatch):
    asked = []
    monkeypatch.setattr(compilation, "compiled", lambda loop, **_: asked.append(loop))
    for size in (1, 10**6):
        one = Often(lambda values: values.sum(), _doubled)
        for _ in range(10):
            one(np.ones(size))
        assert len(asked) == (size > 1)  # and where numba is not installed it is asked for once


def test_loops_are_compiled_at_their_first_call_within_overlapping_blocks(monkeypatch):
    asked = []
    monkeypatch.setattr(compilation, "compiled", lambda loop, **_: asked.append(loop))

    def calls_compile() -> bool:
        asked.clear()
        Often(lambda values: values.sum(), _doubled)(np.ones(1))
        return bool(asked)

    first, second = compiled_at_first_call(), compiled_at_first_call()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert calls_compile(), "one block is still in progress"
    second.__exit__(None, None, None)
    assert not calls_compile()


def test_without_numba_it_stays_plain(monkeypatch):
    monkeypatch.setattr(compilation, "compiled", lambda _, **__: None)
    monkeypatch.setattr(compilation, "_WORTH", 0)
    one = Often(lambda values: float(values.sum()), _doubled)
    assert [one(np.ones(3)) for _ in range(3)] == [3.0] * 3
