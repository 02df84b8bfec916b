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
from dphmm.tables import read_document
from dphmm.tables.parquet import read_parquet

COLUMNS: Mapping[str, str] = {
    "policy": "object",
    "radius_km": "float64",
    "epsilon": "float64",
    "mechanism": "object",
    "repair": "object",
    "objective": "object",
    "delta": "float64",
    "calibration": "object",
    "target_error_km": "float64",
    "day_epsilon": "float64",
    "sequence": "int64",
    "step": "int64",
    "runtime_s": "float64",
    "protection": "int64",
    "error_km": "float64",
    "squared_error_km2": "float64",
    "estimate_error_km": "float64",
    "adversary_error_km": "float64",
    "expected_error_km": "float64",
    "possible": "int64",
    "stood_in": "bool",
    "withheld": "bool",
    "spent_epsilon": "float64",
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

``epsilon`` is the setting's, ``spent_epsilon`` what the release cost: nothing where a schedule withheld it, and both
errors of the release are those of the prediction then. ``protection`` is the degree of protection of the state that
was released; ``error_km`` the distance of the one release that was drawn; ``squared_error_km2`` the mean of its
square over all that could have been, in closed form (the square of the paper's Error, Equation 3, given the releases
before); ``adversary_error_km`` the expected distance from the truth of a place drawn from the posterior;
``runtime_s`` the processor time of a step (thread time: a busy machine does not lengthen it). The other columns
follow from the seeds.
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
        columns = {name: self.columns[name] for name in COLUMNS}
        with path.open("wb") as stream:  # of a path Arrow might think that it is a URI
            parquet.write_table(pa.table(columns), stream, write_page_checksum=True)

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
        parts = [_columns(path) for path in paths]
        return cls({name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})


def _columns(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The columns of a part, each of its type."""
    wrong = "holds no steps of an evaluation ({}); delete it and resume"
    try:
        table = read_parquet(read_document(path), lambda names: [name for name in COLUMNS if name in names])
    except DataFileError as problem:
        raise DataFileError(path, wrong.format(problem.problem)) from None
    found = {}
    for name, kind in COLUMNS.items():
        column = table[name] if name in table.column_names else None
        if column is None or str(column.type) != _STORED[kind] or column.null_count:
            raise DataFileError(path, wrong.format(f"column {name!r} is {None if column is None else column.type}"))
        found[name] = column.to_numpy().astype(kind)
    return found


_STORED = {"object": "string", "float64": "double", "int64": "int64", "bool": "bool"}
"""The type of a column → what Arrow calls it."""
