"""Where a person finds a run or sweep on MLflow's pages."""

from __future__ import annotations

import shlex
from pathlib import Path

from flray.tracking import cursor
from flray.tracking.address import redact


def ui_links(uri: str, folder: Path) -> list[str]:
    """Return how to look at what is tracked there.

    Parameters
    ----------
    uri : str
        MLflow's address.
    folder : Path
        The run's or sweep's.
    """
    served = uri.startswith("http")
    shown = redact(uri)
    lines = [
        f"see it: {shown}"
        if served
        else f"see it: mlflow ui --backend-store-uri {shlex.quote(shown)}"
    ]
    known = cursor.read(folder)
    if known is not None and known.experiment_id is not None:
        # MLflow's first page is for language models; this one is the runs' charts, which are four
        # clicks from there.
        lines += [
            "charts: "
            f"{redact(uri).rstrip('/') if served else 'http://127.0.0.1:5000'}/#/experiments/{known.experiment_id}"
            "/runs?workflowType=machine_learning&compareRunsMode=CHART"
        ]
    return lines
