"""Addresses at which no run can be tracked are found before anything is run; where the charts are; odd names."""

import contextlib
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray.errors import FlrayError
from flray.files.tracking_address import check
from flray.tracking.client import Cursor, connect, save_cursor, ui_links
from tests.messages import mistyped, refused
from tests.tracking.helpers import Sending


def a_folder(path: Path) -> None:
    path.mkdir()


def a_text(path: Path) -> None:
    path.write_text("this is no database, and long enough")


def a_loop(path: Path) -> None:
    path.symlink_to(path)


def below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("a file")


@pytest.mark.parametrize("make", [a_folder, a_text, a_loop, below_a_file])
def test_what_is_no_database_is_refused_before_the_first_round(
    make: Callable[[Path], None], tmp_cwd: Path, digits: dict[str, Any]
) -> None:
    (tmp_cwd / "x").mkdir()
    make(tmp_cwd / "x" / "m.db")
    settings = {"tracking": {"uri": "sqlite:///x/m.db"}, "resources": {"executor": "inline"}}
    content = {**digits, **settings}
    (tmp_cwd / "run.yaml").write_text(yaml.safe_dump({"experiment": content}))
    (tmp_cwd / "tune.yaml").write_text(
        yaml.safe_dump({"experiment": content, "space": {"local.lr": {"grid": [0.1]}}})
    )
    before = sorted(tmp_cwd.rglob("*"))
    for command in ("run", "tune"):
        mistyped(command, f"{command}.yaml")
    assert sorted(tmp_cwd.rglob("*")) == before


DATABASES = (
    *("sqlite:////proc/x/m.db", "sqlite:////dev/null", "sqlite:///", "sqlite://host/x.db"),
    *("sqlite:///\0", "sqlite:///" + "a/" * 3000, "postgresql+nonsense://h/db", "postgresql://"),
)
SERVERS = ("http://", "http://:5000", "http://h:x", "http://h:99999999", "http://[::1")


@pytest.mark.parametrize(
    "uri", [*DATABASES, *SERVERS, "s3://bucket", "nonsense", "mysql+pymysql+x://h:port/db"]
)
def test_addresses_that_can_never_be_used_are_one_line(uri: str) -> None:
    refused(check, uri)


def test_a_good_address_makes_no_file(tmp_path: Path) -> None:
    check(f"sqlite:///{tmp_path}/a/b/m.db")
    check("http://127.0.0.1:9")  # nobody answers there now
    check("databricks")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    (tmp_path / "m.db").touch()
    check(f"sqlite:///{tmp_path}/m.db")
    assert (tmp_path / "m.db").stat().st_size == 0


def test_a_report_from_a_server_that_is_away_or_no_database_is_one_line(tmp_cwd: Path) -> None:
    """And makes none."""
    a_text(tmp_cwd / "text.db")
    for uri in ("http://127.0.0.1:9", "sqlite:///absent.db", "sqlite:///text.db"):
        mistyped("report", "x", "--uri", uri)
    assert [path.name for path in tmp_cwd.iterdir()] == ["text.db"]


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
