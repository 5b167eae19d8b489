"""The numbers printed in the four papers, and the suites that make them again.

One row per printed number. ``method`` holds the registered name, if any, ``setting`` tags joined by
commas, ``client`` a client's name or ``avg``; an empty ``value`` could not be read and its ``note``
says so.
"""

from flray.papers.reported import COLUMNS, PAPERS, printed_numbers, tables

__all__ = ["COLUMNS", "PAPERS", "printed_numbers", "tables"]
