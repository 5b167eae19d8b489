import contextlib
import sqlite3
import sys
from pathlib import Path

import pytest

from flray.errors import FlrayError
from flray.files.tracking_address import check
from flray.tracking.client import Cursor, connect, save_cursor, ui_links
from tests.messages import refused
from tests.tracking.helpers import Sending

CHARTS = "/#/experiments/7/runs?workflowType=machine_learning&compareRunsMode=CHART"


def test_where_the_charts_of_a_run_are(tmp_path: Path) -> None:
    local = "sqlite:////somewhere/mlflow.db"
    assert ui_links(local, tmp_path) == [
        f"see it: mlflow ui --backend-store-uri {local}"
    ]  # nothing was sent yet
    assert ui_links("sqlite:////some where/mlflow.db", tmp_path)[0].endswith(
        " 'sqlite:////some where/mlflow.db'"
    )
    save_cursor(tmp_path, Cursor(local, "run", "7"))
    assert ui_links(local, tmp_path)[1:] == [f"charts: http://127.0.0.1:5000{CHARTS}"]
    served = ui_links("http://me:secret@host:5000/", tmp_path)
    assert served[1].endswith(f"@host:5000{CHARTS}") and "secret" not in "".join(served)


def test_a_version_of_mlflow_without_its_database_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.store.tracking.sqlalchemy_store", None)
    monkeypatch.setattr("mlflow.__version__", "9.0")
    refused(connect, f"sqlite:///{tmp_path}/new.db")
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_sqlalchemy_would_look_for_elsewhere_is_refused(tmp_path: Path) -> None:
    for name in ("100%20", "what?x=1"):
        with pytest.raises(
            FlrayError, match=r"no \? and no % may be in a database's name or folder"
        ):
            check(f"sqlite:///{tmp_path / name / 'mlflow.db'}")
    assert list(tmp_path.iterdir()) == []


def test_a_database_in_a_folder_of_any_other_name_is_the_one_that_is_written(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "100 x=1#y 'z' ü"
    folder.mkdir()
    to = Sending(tmp_path, f"sqlite:///{folder / 'mlflow.db'}")
    with to.start() as journal:
        journal.record_round(1, {"a": 0.5})
    to.send()
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, "run"}
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as database:
        assert database.execute("select key, value, step from metrics").fetchall() == [
            ("a", 0.5, 1)
        ]
