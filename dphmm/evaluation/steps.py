"""The tidy table of an evaluation: one row per setting, sequence and time step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import DataFileError, need
from dphmm.evaluation.config import Setting

COLUMNS: Mapping[str, str] = {
    "policy": "object",
    "radius_km": "float64",
    "epsilon": "float64",
    "mechanism": "object",
    "repair": "object",
    "delta": "float64",
    "sequence": "int64",
    "step": "int64",
    "runtime_s": "float64",
    "protection": "int64",
    "error_km": "float64",
    "estimate_error_km": "float64",
    "adversary_error_km": "float64",
    "expected_error_km": "float64",
    "possible": "int64",
    "stood_in": "bool",
    "edges_added": "int64",
    "certified": "bool",
    "already_known": "bool",
    "area_km2": "float64",
    "constrained_factor": "float64",
    "true_x_km": "float64",
    "true_y_km": "float64",
    "released_x_km": "float64",
    "released_y_km": "float64",
    "estimate_x_km": "float64",
    "estimate_y_km": "float64",
}
"""Column → its type. It holds true places: the table is for whoever owns the data.

``protection`` is the degree of protection of the state that was released; ``adversary_error_km`` the expected distance
from the truth of a place drawn from the posterior; ``runtime_s`` the processor time of a step (thread time: a busy
machine does not lengthen it). The other columns follow from the seeds.
"""


@dataclass(frozen=True, eq=False)
class StepTable:
    """Columns of equal length, those of `COLUMNS`.

    Parameters
    ----------
    columns
        Name → array ``(n,)``.
    """

    columns: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["step"])

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name]

    def where(self, setting: Setting) -> StepTable:
        """The rows of a setting, in the order of sequences and steps."""
        chosen: BoolArray = np.ones(len(self), dtype=np.bool_)
        for name, value in asdict(setting).items():
            chosen &= self.columns[name] == value
        return StepTable({name: array[chosen] for name, array in self.columns.items()})

    def matrix(self, name: str) -> FloatArray:
        """A column of numbers as ``(sequences, steps)``; for the rows of one setting."""
        values = self.columns[name].astype(np.float64)
        return np.asarray(values.reshape(len(np.unique(self.columns["sequence"])), -1))

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> StepTable:
        """A table of rows: name → value."""
        return cls({name: np.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()})

    def write(self, path: Path) -> None:
        """Write as Parquet.

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        """
        pa, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
        parquet.write_table(pa.table({name: self.columns[name] for name in COLUMNS}), path)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> StepTable:
        """The rows of several files of `write`, one after another.

        Raises
        ------
        DataFileError
            When a file is absent, damaged or something else.
        MissingDependencyError
            Without pyarrow.
        """
        pa, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
        parts = []
        for path in paths:
            try:
                parts.append(parquet.ParquetFile(path).read().select(list(COLUMNS)))
            except (OSError, KeyError, pa.ArrowInvalid) as problem:
                reason = " ".join(str(problem).split())
                raise DataFileError(path, f"holds no steps of an evaluation ({reason}); delete it and resume") from None
        whole = pa.concat_tables(parts)
        return cls({name: whole[name].to_numpy().astype(kind) for name, kind in COLUMNS.items()})
