"""Read trajectories from files and data frames. `read` recognises the format."""

from dphmm.readers.conformance import check_reader
from dphmm.readers.data_frames import read_frame
from dphmm.readers.fetch import DATA_SETS, fetch_data
from dphmm.readers.fix_tables import read_places
from dphmm.readers.fixes import ReadResult
from dphmm.readers.formats import FORMATS, Reader, register_reader
from dphmm.readers.reader_choice import recognise
from dphmm.readers.reading import read

__all__ = [
    "DATA_SETS",
    "FORMATS",
    "ReadResult",
    "Reader",
    "check_reader",
    "fetch_data",
    "read",
    "read_frame",
    "read_places",
    "recognise",
    "register_reader",
]
