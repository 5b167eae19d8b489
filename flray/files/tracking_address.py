"""Tracking addresses: resolved to absolute ones, checked before a run starts, shown without their secrets.

No password, token or key in an address goes to a file, to MLflow or to the screen.
"""

import importlib.metadata
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from flray.errors import FlrayError, brief

#: Replacement of a secret.
HIDDEN = "***"
_SCHEMES = ("sqlite", "http", "https", "databricks", "postgresql", "mysql", "mssql")
_SQLITE = b"SQLite format 3\0"
_ADDRESS = re.compile(r"[A-Za-z][\w+.\-]*://")
_IN_TEXT = re.compile(r"[A-Za-z][\w+.\-]*://\S+")
# For these a user name alone is no secret; elsewhere, as in https://TOKEN@host, it may be one.
_WITH_USERS = re.compile("postgres|my|maria|mssql|oracle|cockroach|sqlite|ssh|sftp|hdfs")
# A password may have any of / ? # @ in it, so that all up to the last @ is one after a colon.
_USER = re.compile("([^/@:?#]*)(?::(.*))?@", re.DOTALL)
_SETTING = re.compile("([?#;&])([^=?#;&]+)=([^?#;&]+)")
# Names of settings, in lower case without punctuation, that hold a secret. The name of a key file
# is none (sslkey of PostgreSQL and MySQL), and odbc_connect is a whole connection string.
_SECRET = re.compile(
    "(?!(sslkey(logfile)?|passfile|keyspace|auth(plugin|entication|source)|keepalives(idle)?|requireauth)$).*(pass|pwd|token|secret|key|cred|sig|auth|jwt|sas$|odbcconnect|pw$)"
)
_PASSWORD = re.compile(r"(?:pwd|password)\s*=\s*\{?([^;}]+)", re.IGNORECASE)
at_home: Callable[[str], str] = os.path.expanduser
"""Returns a path whose ~ is the home folder, as a shell has it: otherwise a folder of that name would be made.

Of a user who does not exist the path stays as it is, where ``Path.expanduser`` raises.
"""


def redact(text: str) -> str:
    """Return a text with passwords, tokens and keys in addresses redacted.

    Parameters
    ----------
    text : str
        An address, or a text with addresses in it; others are unchanged.
    """
    return _split(text)[0]


def without_secrets(text: str, uri: str) -> str:
    """Return a message about an address without the address's secrets, in any form of quoting.

    Parameters
    ----------
    text : str
        For example a database driver's error.
    uri : str
        The whole address.
    """
    shown, secrets = _split(uri)
    text = text.replace(uri, shown)
    forms = {
        form
        for secret in secrets
        for plain in (secret, unquote(secret), unquote_plus(secret))
        for form in (plain, quote(plain), quote(plain, safe=""), repr(plain)[1:-1])
    }
    for form in sorted(forms, key=len, reverse=True):
        if len(form) > 2:  # shorter ones would match parts of words
            text = text.replace(form, HIDDEN)
    return redact(text)


def _split(text: str) -> tuple[str, list[str]]:
    """Return a text without its secrets, and the secrets."""
    secrets: list[str] = []

    def setting(found: re.Match[str]) -> str:
        mark, name, value = found.groups()
        if not _SECRET.match(re.sub("[^a-z]", "", unquote_plus(name).lower())):
            return found[0]
        secrets.extend([value, *_PASSWORD.findall(unquote_plus(value))])
        return f"{mark}{name}={HIDDEN}"

    def address(uri: str) -> str:
        scheme, rest = uri.split("://", 1)
        user = _USER.match(rest)
        if user and (user[2] is not None or (user[1] and not _WITH_USERS.match(scheme.lower()))):
            secrets.extend(filter(None, user.groups()))
            rest = f"{HIDDEN}@{rest[user.end() :]}"
        return f"{scheme}://{_SETTING.sub(setting, rest)}"

    if _ADDRESS.match(text):
        return address(text), secrets
    return _IN_TEXT.sub(lambda found: address(found[0]), text), secrets


def _with_password(uri: str) -> str:
    """Return the address to connect to, with the password, which files omit, from the environment."""
    if HIDDEN not in uri:
        return uri
    full = os.environ.get("MLFLOW_TRACKING_URI", "")
    if redact(full) != redact(uri):
        raise FlrayError(
            f"tracking address {redact(uri)!r}: passwords are not kept in files; set "
            "MLFLOW_TRACKING_URI to the whole address (or, for http, leave the password out of it "
            "and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"
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
        If MLflow has no store for that kind of address, or cannot open a file of that name.
    """
    uri = _with_password(uri)
    scheme = "databricks" if uri == "databricks" else uri.partition(":")[0].split("+")[0].lower()
    if scheme not in _SCHEMES and scheme not in {
        entry.name for entry in importlib.metadata.entry_points(group="mlflow.tracking_store")
    }:
        raise FlrayError(
            f"tracking address {redact(uri)!r}: MLflow keeps no runs there; give "
            "sqlite:///PATH/mlflow.db or http(s)://HOST:PORT, or null for no tracking"
        )
    database = database_path(uri)
    if database is None:
        return uri
    if set("?%") & set(str(database.absolute())):  # SQLAlchemy would open another file, or none
        raise FlrayError(
            f"tracking address {redact(uri)!r}: no ? and no % may be in a database's name or folder; name another"
        )
    return f"sqlite:///{database.absolute()}"


def database_path(uri: str) -> Path | None:
    """Return the file of an sqlite address, None for every other kind.

    Raises
    ------
    FlrayError
        If an sqlite address names no file.
    """
    if not uri.startswith("sqlite:"):
        return None
    path = uri.removeprefix("sqlite:///")
    if path in (uri, "", ":memory:") or "\0" in path:
        raise FlrayError(
            f"tracking address {redact(uri)!r}: an sqlite address reads sqlite:///PATH/mlflow.db"
        )
    return Path(at_home(path))


def check(uri: str | None) -> None:
    """Reject an address that can never track a run; an unreachable server is accepted, and none at all.

    Parameters
    ----------
    uri : str or None
        As given by the user.

    Raises
    ------
    FlrayError
        Naming the address, the problem and the remedy; no file has been created.
    """
    if uri is None:
        return
    uri = resolve_uri(uri)
    database = database_path(uri)
    try:
        if database is not None:
            _check_file(database)
        elif uri.startswith("http"):
            parts = urlsplit(uri)
            shown, read = (one.netloc.rpartition("@")[2] for one in (urlsplit(redact(uri)), parts))
            if shown != read:  # Python's message would show the password up to such a character
                raise ValueError("a password has / as %2F, ? as %3F and # as %23")
            if not parts.hostname or parts.port == 0:
                raise ValueError("it names no host")
        elif not uri.startswith("databricks"):
            from sqlalchemy.engine import make_url  # start-up

            make_url(uri).get_dialect().import_dbapi()
    except Exception as error:  # a database's driver, once imported, may raise anything
        why = without_secrets(brief(error), uri)
        raise FlrayError(
            f"tracking.uri {redact(uri)!r}: it cannot be used ({why}); give sqlite:///PATH/mlflow.db, "
            "http(s)://HOST:PORT, a database whose driver is installed, or null for no tracking"
        ) from None


def _check_file(database: Path) -> None:
    """Reject a path that is not a database and cannot become one."""
    if os.path.lexists(database):
        if not database.is_file():
            raise OSError("it is no regular file")
        with database.open("r+b") as file:
            if (head := file.read(len(_SQLITE))) and head != _SQLITE:
                raise OSError("it is no SQLite database")
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=database.parent):
        pass  # os.access says yes to root even below /proc
