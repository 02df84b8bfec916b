"""Read trajectories from files and data frames; `read` recognises the format."""

from dphmm.readers.fetch import DATA_SETS, fetch_data
from dphmm.readers.fixes import ReadResult
from dphmm.readers.frames import read_frame
from dphmm.readers.reading import FORMATS, read, recognise
from dphmm.readers.table import read_places

__all__ = ["DATA_SETS", "FORMATS", "ReadResult", "fetch_data", "read", "read_frame", "read_places", "recognise"]
