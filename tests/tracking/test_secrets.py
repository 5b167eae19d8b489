"""Addresses: passwords and keys are shown nowhere, an address that cannot be used is found before anything is run."""

import contextlib
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flray.cli.main import invoke
from flray.config.loader import load
from flray.files import storage
from flray.files.tracking_address import check, redact, resolve_uri, without_secrets
from flray.records import directory
from flray.tracking.client import Cursor, connect, save_cursor, ui_links
from flray.tracking.exporter import MlflowExporter
from tests.helpers import INLINE, Settings, written
from tests.messages import mistyped, refused
from tests.tracking.helpers import Sending

S = "hunter2-0123"
PASSWORDS = ("password", "passwd", "pwd", "PWD", "pass%77ord", "sslpassword")
KEYS = ("token", "access_token", "api-key", "secret", "client_secret", "key", "credentials")
SIGNED = ("X-Amz-Signature", "sig", "auth", "sas")
NAMES = (*PASSWORDS, *KEYS, *SIGNED)
QUERY, ODBC = "postgresql://h/db?user=me&", "mssql+pyodbc:///?odbc_connect="


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (f"http://ann:{S}@host:5000/x", "http://***@host:5000/x"),
        (f"postgresql+psycopg://ann:{S}@db/mlflow", "postgresql+psycopg://***@db/mlflow"),
        (f"http://:{S}@host", "http://***@host"),
        (f"http://ann:{S}@home@host/", "http://***@host/"),
        (f"mysql://ann:a/{S}@host/db", "mysql://***@host/db"),
        (f"mysql://ann:a b?{S}#@host/db", "mysql://***@host/db"),
        (f"https://{S}@host/path", "https://***@host/path"),
        (f"https://{S}:@host", "https://***@host"),
        (f"https://{S}:x-oauth-basic@host", "https://***@host"),
        *((f"{QUERY}{name}={S}&x=1", f"{QUERY}{name}=***&x=1") for name in NAMES),
        (f"{ODBC}DRIVER%3D%7BODBC%7D%3BUID%3Dme%3BPWD%3D{S}", f"{ODBC}***"),
        (f"{ODBC}DRIVER=x;PWD={S}", f"{ODBC}***;PWD=***"),
        (f"mssql://host;user=me;password={S}", "mssql://host;user=me;password=***"),
        (f"http://host/#access_token={S}&x=1", "http://host/#access_token=***&x=1"),
        (f"http://a:{S}@h/?token={S}&pwd={S}#key={S}", "http://***@h/?token=***&pwd=***#key=***"),
        (f"s3://id:{S}@b/x?secret_key={S}&region=eu", "s3://***@b/x?secret_key=***&region=eu"),
        (f"s3://id:ab/{S}@bucket/x", "s3://***@bucket/x"),
        (f"none to http://{S}@host:1 (refused)", "none to http://***@host:1 (refused)"),
    ],
)
def test_every_form_of_a_secret_is_taken_out(uri: str, shown: str) -> None:
    assert redact(uri) == shown and redact(shown) == shown


LOCAL = ("sqlite:////a/b.db", "sqlite:////a/b:c@d/x.db", "local.lr", "", "a=1&password=2")
PUBLIC = ("http://host:5000", "postgresql://me@host/db", "s3://bucket/x?region=eu")
TEXTS = ("['a://b', 'c']", "ann:b@c")
KEY_FILE = "mysql://host/db?charset=utf8&ssl_key=/a/key.pem"


@pytest.mark.parametrize("text", (*LOCAL, *PUBLIC, *TEXTS, KEY_FILE))
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_what_a_driver_says_has_no_secret_either() -> None:
    uri = "postgresql://ann:se%2Fcret%20x@h/db"
    for said in (f"cannot reach {uri}", "'se/cret x' is wrong", "se%2Fcret%20x", "se/cret%20x"):
        shown = without_secrets(said, uri)
        assert "cret" not in shown and "***" in shown
    uri = f"{ODBC}DRIVER%3D%7BODBC%7D%3BPWD%3D%7B{S}%7D"  # nor of those within a connection string
    failed = f"Login failed (DRIVER={{ODBC}};PWD={{{S}}})"
    assert without_secrets(failed, uri) == "Login failed (***)"
    assert without_secrets(f"Login failed: {S}", uri) == "Login failed: ***"


@pytest.mark.slow
def test_nothing_secret_in_files_mlflow_or_messages(
    tmp_cwd: Path,
    digits: Settings,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = f"http://{S}1@127.0.0.1:1/?token={S}2&pass%77d={S}3#access_token={S}4"
    shown = "http://***@127.0.0.1:1/?token=***&pass%77d=***#access_token=***"
    written({**digits, **INLINE, "tracking": {"uri": uri}, "rounds": 1})
    assert invoke(["run", "x.yaml"]) == 0
    (tmp_cwd / "x.yaml").unlink()
    out, err = capfd.readouterr()
    assert shown in out
    folder = tmp_cwd / "runs/digits/001"
    assert load(folder / directory.CONFIG).experiment.tracking.uri == shown
    assert invoke(["sync", "digits", "--uri", f"sqlite:///{tmp_cwd}/m.db"]) == 0
    assert invoke(["sync", "digits"]) == 2
    more, errors = capfd.readouterr()
    assert "set MLFLOW_TRACKING_URI" in errors and S not in out + err + more + errors
    files = [path for path in tmp_cwd.rglob("*") if path.is_file()]
    wanted = {"config.yaml", "journal.jsonl", "run.json", "tracking.json", "m.db"}
    assert wanted <= {path.name for path in files}
    for path in files:
        assert S.encode() not in path.read_bytes(), path
    # The whole address comes from the environment when the run is taken up again.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert resolve_uri(shown) == uri and MlflowExporter(folder, shown).uri == shown


def test_a_password_with_signs_of_addresses_is_refused_and_no_part_of_it_is_shown() -> None:
    for sign in "/?#":
        told = str(refused(check, f"http://ann:{S}{sign}more@host:5000"))
        assert S not in told and "more" not in told
    for quoted in ("%2F", "%3F", "%23", "@", "%40", "%"):
        check(f"http://ann:{S}{quoted}more@host:5000")


def test_a_missing_driver_is_told_without_password(tmp_cwd: Path, digits: Settings) -> None:
    uri = f"postgresql+asyncpg2://ann:{S}@h/db?password={S}"
    written({**digits, "tracking": {"uri": uri}})
    mistyped("run", "x.yaml", "resources.executor=inline")
    assert not (tmp_cwd / "runs").exists()


def test_storage_takes_no_keys_in_addresses(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLRAY_WORK", str(tmp_cwd / "work"))
    for address in (f"s3://id:a/{S}@bucket", f"gs://{S}@bucket", f"s3://bucket/x?secret_key={S}"):
        for act in (storage.local_cache_of, storage.filesystem):
            assert S not in str(refused(act, address))
    assert list(tmp_cwd.iterdir()) == []


TEXT = "this is no database, and long enough"
MADE: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a text": lambda path: path.write_text(TEXT),
    "a loop": lambda path: path.symlink_to(path),
    "below a file": lambda path: (path.parent.rmdir(), path.parent.write_text("a file")),
}


@pytest.mark.parametrize("made", MADE)
def test_what_is_no_database_is_refused(made: str, tmp_cwd: Path, digits: Settings) -> None:
    (tmp_cwd / "x").mkdir()
    MADE[made](tmp_cwd / "x" / "m.db")
    settings = {**digits, **INLINE, "tracking": {"uri": "sqlite:///x/m.db"}}
    written(settings, "run.yaml")
    written(settings, "tune.yaml", space={"local.lr": {"grid": [0.1]}})
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


CHARTS = "/#/experiments/7/runs?workflowType=machine_learning&compareRunsMode=CHART"


def test_where_the_charts_of_a_run_are(tmp_path: Path) -> None:
    local = "sqlite:////somewhere/mlflow.db"
    see_it = f"see it: mlflow ui --backend-store-uri {local}"
    assert ui_links(local, tmp_path) == [see_it]  # nothing was sent yet
    apart = "sqlite:////some where/mlflow.db"
    assert ui_links(apart, tmp_path)[0].endswith(f" '{apart}'")
    save_cursor(tmp_path, Cursor(local, "run", "7"))
    assert ui_links(local, tmp_path)[1:] == [f"charts: http://127.0.0.1:5000{CHARTS}"]
    served = ui_links("http://me:secret@host:5000/", tmp_path)
    assert served[1].endswith(f"@host:5000{CHARTS}") and "secret" not in "".join(served)


def test_mlflow_without_a_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.store.tracking.sqlalchemy_store", None)
    monkeypatch.setattr("mlflow.__version__", "9.0")
    refused(connect, f"sqlite:///{tmp_path}/new.db")
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_sqlalchemy_would_look_for_elsewhere_is_refused(tmp_path: Path) -> None:
    for name in ("100%20", "what?x=1"):
        refused(check, f"sqlite:///{tmp_path / name / 'mlflow.db'}")
    assert list(tmp_path.iterdir()) == []


def test_a_database_in_a_folder_of_any_other_name_is_the_one_written(tmp_path: Path) -> None:
    folder = tmp_path / "100 x=1#y 'z' ü"
    folder.mkdir()
    to = Sending(tmp_path, f"sqlite:///{folder / 'mlflow.db'}")
    with to.start() as journal:
        journal.record_round(1, {"a": 0.5})
    to.send()
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, "run"}
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as database:
        found = database.execute("select key, value, step from metrics").fetchall()
    assert found == [("a", 0.5, 1)]
