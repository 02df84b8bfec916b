"""Files in and out, whatever they tell of: tables, their columns and cells, and features on a map."""

from dphmm.tables.columns import ALIASES
from dphmm.tables.delimited import content_lines, write_csv
from dphmm.tables.geojson import Feature, read_features, write_features
from dphmm.tables.output import check_output, new_file, new_private_file, private_name, write_text
from dphmm.tables.source import Document, documents, read_document
from dphmm.tables.table import Table
from dphmm.tables.timed import TimedTable, check_table_name
from dphmm.tables.unpacking import max_unpacked
from dphmm.tables.values import iso_time, parse_time, parse_times

__all__ = [
    "ALIASES",
    "Document",
    "Feature",
    "Table",
    "TimedTable",
    "check_output",
    "check_table_name",
    "content_lines",
    "documents",
    "iso_time",
    "max_unpacked",
    "new_file",
    "new_private_file",
    "parse_time",
    "parse_times",
    "private_name",
    "read_document",
    "read_features",
    "write_csv",
    "write_features",
    "write_text",
]
