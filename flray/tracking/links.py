"""Links to a run or sweep in the MLflow UI."""

from __future__ import annotations

import shlex
from pathlib import Path

from flray.files.tracking_address import redact
from flray.tracking import cursor


def ui_links(uri: str, folder: Path) -> list[str]:
    """Return the UI links, or the command that starts the UI.

    Parameters
    ----------
    uri : str
        MLflow's address.
    folder : Path
        The folder of the run or sweep.
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
        # MLflow's start page is for language models; this one has the runs' charts, which are four
        # clicks from there.
        lines += [
            "charts: "
            f"{redact(uri).rstrip('/') if served else 'http://127.0.0.1:5000'}/#/experiments/{known.experiment_id}"
            "/runs?workflowType=machine_learning&compareRunsMode=CHART"
        ]
    return lines
