"""Input and output of files: archives, tables and cells, map features, atomic writes."""

from dphmm.tables.output import check_output, create_file, create_private_file, private_name, write_text
from dphmm.tables.source import Document, documents, max_unpacked, read_document
from dphmm.tables.table import ALIASES, Table, TimedTable, check_table_name, content_lines, write_csv
from dphmm.tables.values import iso_time, parse_time, parse_times
from dphmm.tables.vector_files import Feature, read_features, write_features

__all__ = [
    "ALIASES",
    "Document",
    "Feature",
    "Table",
    "TimedTable",
    "check_output",
    "check_table_name",
    "content_lines",
    "create_file",
    "create_private_file",
    "documents",
    "iso_time",
    "max_unpacked",
    "parse_time",
    "parse_times",
    "private_name",
    "read_document",
    "read_features",
    "write_csv",
    "write_features",
    "write_text",
]
