"""From files to trajectories, one module per format; `read` recognises which."""

from dphmm.readers.fixes import ReadResult
from dphmm.readers.reading import FORMATS, read, recognise

__all__ = ["FORMATS", "ReadResult", "read", "recognise"]
