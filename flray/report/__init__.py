"""Reports: a sweep's tables beside the printed numbers, and its figures, all from what was tracked."""

from flray.report.making import Report, make, report
from flray.report.plain import terminal

__all__ = ["Report", "make", "report", "terminal"]
