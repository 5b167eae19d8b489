"""Tracking addresses: resolved to absolute ones, and checked before a run starts."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from flray.errors import FlrayError
from flray.files.secrets import HIDDEN, redact

__all__ = ["HIDDEN", "check", "database_path", "redact", "resolve_uri"]

_SCHEMES = ("sqlite", "http", "https", "databricks", "postgresql", "mysql", "mssql")
_SQLITE = b"SQLite format 3\0"


def _with_password(uri: str) -> str:
    """Return the address to connect to, with the password, which files omit, from the environment."""
    if HIDDEN not in uri:
        return uri
    full = os.environ.get("MLFLOW_TRACKING_URI", "")
    if redact(full) != redact(uri):
        raise FlrayError(
            f"tracking address {redact(uri)!r}: passwords are not kept in files; set "
            "MLFLOW_TRACKING_URI to the whole address (or, for http, leave the password out of it "
            "and "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"
        )
    return full


def resolve_uri(uri: str) -> str:
    """Return a tracking address that means the same from every working directory.

    Parameters
    ----------
    uri : str
        For example ``sqlite:///mlflow.db`` (relative to the working directory) or
        ``http://host:5000``.

    Raises
    ------
    FlrayError
        If MLflow has no store for that kind of address.
    """
    uri = _with_password(uri)
    scheme = "databricks" if uri == "databricks" else uri.partition(":")[0].split("+")[0].lower()
    if scheme not in _SCHEMES and scheme not in {
        entry.name for entry in importlib.metadata.entry_points(group="mlflow.tracking_store")
    }:
        raise FlrayError(
            f"tracking address {redact(uri)!r}: MLflow keeps no runs there; give "
            "sqlite:///PATH/mlflow.db or http(s)://HOST:PORT"
        )
    database = database_path(uri)
    return uri if database is None else f"sqlite:///{database.absolute()}"


def database_path(uri: str) -> Path | None:
    """Return the file of an sqlite address, None for every other kind.

    Raises
    ------
    FlrayError
        If an sqlite address names no file.
    """
    if not uri.startswith("sqlite:"):
        return None
    if (
        not uri.startswith("sqlite:///")
        or uri in ("sqlite:///", "sqlite:///:memory:")
        or "\0" in uri
    ):
        raise FlrayError(
            f"tracking address {redact(uri)!r}: an sqlite address reads sqlite:///PATH/mlflow.db"
        )
    return Path(uri.removeprefix("sqlite:///"))


def check(uri: str) -> None:
    """Reject an address that can never track a run; an unreachable server is accepted.

    Parameters
    ----------
    uri : str
        As given by the user.

    Raises
    ------
    FlrayError
        Naming the address, the problem and the remedy; nothing has been created.
    """
    uri = resolve_uri(uri)
    database = database_path(uri)
    if database is not None:
        _check_file(uri, database)
    elif uri.startswith("http"):
        _check_server(uri)
    elif uri != "databricks" and not uri.startswith("databricks"):
        _check_driver(uri)


def _check_file(uri: str, database: Path) -> None:
    """Reject a path that is not a database and cannot become one."""
    try:
        if os.path.lexists(database):
            if not database.is_file():
                raise OSError("it is no regular file")
            with database.open("r+b") as file:
                if (head := file.read(len(_SQLITE))) and head != _SQLITE:
                    raise OSError("it is no SQLite database")
            return
        made = [folder for folder in database.parents if not folder.exists()]
        try:
            database.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(
                dir=database.parent
            ):  # os.access says yes to root even below /proc
                pass
        finally:
            for folder in made:
                if folder.is_dir():
                    folder.rmdir()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FlrayError(
            f"tracking.uri {redact(uri)!r}: {database} cannot be used ({why}); name "
            "a file that can be written, as sqlite:///PATH/mlflow.db, or null for no tracking"
        ) from None


def _check_server(uri: str) -> None:
    try:
        parts = urlsplit(uri)
        if not parts.hostname or parts.port == 0:
            raise ValueError("it names no host")
    except ValueError as error:
        raise FlrayError(
            f"tracking.uri {redact(uri)!r}: no address of a server ({error}); give "
            "http(s)://HOST:PORT"
        ) from None


def _check_driver(uri: str) -> None:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except (ArgumentError, ImportError, ValueError) as error:
        missing = isinstance(error, ImportError)
        what = f"its driver is not installed ({error})" if missing else "no address of a database"
        raise FlrayError(
            f"tracking.uri {redact(uri)!r}: {what}; install the driver, or give another address"
        ) from None
