"""From files to trajectories, one module per format; `read` recognises which."""

from dphmm.readers.fetch import DATA_SETS, fetch_data
from dphmm.readers.fixes import ReadResult
from dphmm.readers.frames import read_frame
from dphmm.readers.places import read_places
from dphmm.readers.reading import FORMATS, read, recognise

__all__ = ["DATA_SETS", "FORMATS", "ReadResult", "fetch_data", "read", "read_frame", "read_places", "recognise"]
