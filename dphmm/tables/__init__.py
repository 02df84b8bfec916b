"""Files in and out, whatever they tell of: tables, their columns and cells, and features on a map."""

from dphmm.tables.columns import ALIASES, find_column, listed
from dphmm.tables.delimited import content_lines, csv_rows, write_csv
from dphmm.tables.geojson import Feature, geometry_of, read_features, write_features
from dphmm.tables.output import check_output, new_file, write_text
from dphmm.tables.parquet import pyarrow, read_parquet
from dphmm.tables.source import Document, documents, member_names, read_document, readable, suffix_of
from dphmm.tables.table import Table
from dphmm.tables.timed import TimedTable, check_table_name
from dphmm.tables.values import (
    as_number,
    iso_time,
    parse_number,
    parse_time,
    parse_times,
    plain_text,
    shorten,
    since_epoch,
    time_text,
)

__all__ = [
    "ALIASES",
    "Document",
    "Feature",
    "Table",
    "TimedTable",
    "as_number",
    "check_output",
    "check_table_name",
    "content_lines",
    "csv_rows",
    "documents",
    "find_column",
    "geometry_of",
    "iso_time",
    "listed",
    "member_names",
    "new_file",
    "parse_number",
    "parse_time",
    "parse_times",
    "plain_text",
    "pyarrow",
    "read_document",
    "read_features",
    "read_parquet",
    "readable",
    "shorten",
    "since_epoch",
    "suffix_of",
    "time_text",
    "write_csv",
    "write_features",
    "write_text",
]
