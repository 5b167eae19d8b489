"""Addresses at which no run can be tracked are found before anything is run; a server that is away is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray.files.tracking_address import check
from tests.messages import mistyped, refused


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
