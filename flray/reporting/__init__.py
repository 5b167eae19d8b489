"""Reports of a result set: tables beside the printed numbers, costs and figures, in every format."""

from flray.reporting.build import Report, make, report
from flray.results.formatting import terminal

__all__ = ["Report", "make", "report", "terminal"]
