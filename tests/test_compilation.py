"""Functions with many calls are compiled if numba is installed. Otherwise they stay plain."""

from __future__ import annotations

import numpy as np

from dphmm import compilation
from dphmm.compilation import HotFunction, compile_at_first_call, compile_if_hot


def _double(values):
    for i in range(values.size):
        values[i] += values[i]


def test_plain_form_runs_until_compilation_is_worth_it(monkeypatch):
    forms = []

    @compile_if_hot(_double)
    def doubled(values):
        forms.append("plain")
        values += values

    assert isinstance(doubled, HotFunction)
    monkeypatch.setattr(
        compilation, "compile_function", lambda loop, **_: lambda values: forms.append("compiled") or loop(values)
    )
    monkeypatch.setattr(compilation, "_MIN_WORK", 3 * (compilation._WORK_PER_CALL + 5))
    values = np.ones(5)
    for _ in range(6):
        doubled(values)
    assert (forms, values.tolist()) == (["plain"] * 3 + ["compiled"] * 3, [64.0] * 5)


def test_large_arrays_are_compiled_sooner(monkeypatch):
    compiled_loops = []
    monkeypatch.setattr(compilation, "compile_function", lambda loop, **_: compiled_loops.append(loop))
    for size in (1, 10**6):
        function = HotFunction(lambda values: values.sum(), _double)
        for _ in range(10):
            function(np.ones(size))
        assert len(compiled_loops) == (size > 1)  # compilation is requested once, also without numba


def test_loops_compile_at_first_call_within_overlapping_blocks(monkeypatch):
    compiled_loops = []
    monkeypatch.setattr(compilation, "compile_function", lambda loop, **_: compiled_loops.append(loop))

    def calls_compile() -> bool:
        compiled_loops.clear()
        HotFunction(lambda values: values.sum(), _double)(np.ones(1))
        return bool(compiled_loops)

    first, second = compile_at_first_call(), compile_at_first_call()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert calls_compile(), "one block is still in progress"
    second.__exit__(None, None, None)
    assert not calls_compile()


def test_function_stays_plain_without_numba(monkeypatch):
    monkeypatch.setattr(compilation, "compile_function", lambda _, **__: None)
    monkeypatch.setattr(compilation, "_MIN_WORK", 0)
    function = HotFunction(lambda values: float(values.sum()), _double)
    assert [function(np.ones(3)) for _ in range(3)] == [3.0] * 3
