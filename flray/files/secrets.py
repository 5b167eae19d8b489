"""Redact passwords, tokens and keys in addresses: none goes to a file, to MLflow or to the screen."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, unquote_plus

#: Replacement of a secret.
HIDDEN = "***"
_ADDRESS = re.compile(r"[A-Za-z][\w+.\-]*://")
_IN_TEXT = re.compile(r"[A-Za-z][\w+.\-]*://\S+")
# For these a user name alone is no secret; elsewhere, as in https://TOKEN@host, it may be one.
_WITH_USERS = (
    "postgresql",
    "postgres",
    "mysql",
    "mariadb",
    "mssql",
    "oracle",
    "cockroachdb",
    "sqlite",
    "ssh",
    "sftp",
    "hdfs",
)
# Names of settings, in lower case without punctuation, that hold a secret. The name of a key
# file is none (sslkey of PostgreSQL and MySQL), and odbc_connect is a whole connection
# string.
_SECRET = re.compile(r"pass|pwd|token|secret|key|cred|sig|auth|jwt|sas$|odbcconnect|^pw$")
_HARMLESS = (
    "sslkey",
    "sslkeylogfile",
    "passfile",
    "keyspace",
    "authplugin",
    "authentication",
    "authsource",
    "keepalives",
    "keepalivesidle",
    "requireauth",
)
_EMPTY_PASSWORDS = ("", "x-oauth-basic", "x")  # the user before these is a token


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
    if _ADDRESS.match(text):
        return _address(text, secrets), secrets
    return _IN_TEXT.sub(lambda found: _address(found[0], secrets), text), secrets


def _address(uri: str, secrets: list[str]) -> str:
    scheme, rest = uri.split("://", 1)
    # A password may have any of / ? # @ in it, so that all up to the last @ is one if a colon comes
    # first.
    kind = scheme.split("+")[0].lower()
    named = re.match(r"([^/@:?#]*):(.*)@", rest, re.DOTALL)
    alone = re.match(r"([^/@:?#]+)@", rest)
    if named is not None:
        user, password = named.groups()
        secrets.append(password)
        if user and (password in _EMPTY_PASSWORDS or kind not in (*_WITH_USERS, "http", "https")):
            secrets.append(user)
            user = HIDDEN
        front, rest = f"{user}:{HIDDEN}@", rest[named.end() :]
    elif alone is not None and kind not in _WITH_USERS:
        secrets.append(alone[1])
        front, rest = f"{HIDDEN}@", rest[alone.end() :]
    else:
        front = ""
    path, *marked = re.split(r"([?#;])", rest)
    settings = "".join(part if part in "?#;" else _settings(part, secrets) for part in marked)
    return f"{scheme}://{front}{path}{settings}"


def _settings(text: str, secrets: list[str]) -> str:
    """Redact secret values in ``name=value&...`` of a query or fragment."""
    shown = []
    for part in text.split("&"):
        name, equals, value = part.partition("=")
        plain = re.sub(r"[^a-z]", "", unquote_plus(name).lower())
        if equals and value and _SECRET.search(plain) and plain not in _HARMLESS:
            secrets.append(value)
            secrets += re.findall(
                r"(?:pwd|password)\s*=\s*\{?([^;}]+)", unquote_plus(value), re.IGNORECASE
            )
            part = f"{name}={HIDDEN}"
        shown.append(part)
    return "&".join(shown)
