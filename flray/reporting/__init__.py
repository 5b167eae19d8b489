"""Reports: a sweep's tables beside the printed numbers, and its figures, all from what was tracked."""

from flray.reporting.build import Report, make, report
from flray.reporting.text import terminal

__all__ = ["Report", "make", "report", "terminal"]
