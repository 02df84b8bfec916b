"""From release records to files, one module per format."""

from dphmm.writers.formats import FORMATS, read_releases, write_releases
from dphmm.writers.output import check_output, new_file, write_text
from dphmm.writers.table import COLUMNS, ReleaseTable

__all__ = [
    "COLUMNS",
    "FORMATS",
    "ReleaseTable",
    "check_output",
    "new_file",
    "read_releases",
    "write_releases",
    "write_text",
]
