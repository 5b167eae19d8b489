from __future__ import annotations

from pathlib import Path

from flray.tracking.cursor import Cursor, save
from flray.tracking.where import see_it

CHARTS = "/#/experiments/7/runs?workflowType=machine_learning&compareRunsMode=CHART"


def test_where_the_charts_of_a_run_are(tmp_path: Path) -> None:
    local = "sqlite:////somewhere/mlflow.db"
    assert see_it(local, tmp_path) == [f"see it: mlflow ui --backend-store-uri {local}"]  # nothing was sent yet
    save(tmp_path, Cursor(local, "run", "7"))
    assert see_it(local, tmp_path)[1:] == [f"charts: http://127.0.0.1:5000{CHARTS}"]
    served = see_it("http://me:secret@host:5000/", tmp_path)
    assert served[1].endswith(f"@host:5000{CHARTS}") and "secret" not in "".join(served)
