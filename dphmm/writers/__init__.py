"""Files and frames of releases and of flows."""

from dphmm.writers.flows import FlowRows
from dphmm.writers.formats import FORMATS, check_format, read_releases, write_releases
from dphmm.writers.geopackage import to_geodataframe, to_scikit_mobility, to_trajectory_collection, tracks
from dphmm.writers.release_table import COLUMNS, ReleaseTable
from dphmm.writers.summary import Hindsight, check_private_name, summarise, write_diagnostics, write_summary

__all__ = [
    "COLUMNS",
    "FORMATS",
    "FlowRows",
    "Hindsight",
    "ReleaseTable",
    "check_format",
    "check_private_name",
    "read_releases",
    "summarise",
    "to_geodataframe",
    "to_scikit_mobility",
    "to_trajectory_collection",
    "tracks",
    "write_diagnostics",
    "write_releases",
    "write_summary",
]
