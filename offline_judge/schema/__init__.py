"""Rows: reading them from files and Python objects, and checking what metrics can be scored on them."""

from offline_judge.schema.check import Coverage, Gap, MetricCoverage, check
from offline_judge.schema.columns import ALIASES, COLUMNS, parse_column_map
from offline_judge.schema.records import file_reader, records_of
from offline_judge.schema.row import Row, ScorableRow
from offline_judge.schema.source import RowSource, open_rows

__all__ = [
    "ALIASES",
    "COLUMNS",
    "Coverage",
    "Gap",
    "MetricCoverage",
    "Row",
    "RowSource",
    "ScorableRow",
    "check",
    "file_reader",
    "open_rows",
    "parse_column_map",
    "records_of",
]
