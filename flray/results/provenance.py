"""The provenance of kept rows: settings, code and machine of a run, each once beside the rows, by its SHA-256."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from flray.config.shapes import may_change
from flray.errors import DataError, FlrayError
from flray.files.border import read_json
from flray.files.tracking_address import redact
from flray.records import directory
from flray.runs.code import named

PROVENANCE = ("settings", "code", "machine", "commit")
"""Columns of kept rows: the SHA-256 of three entries of the file beside them, and the git commit."""
PLUGINS = "plugins"
Entries = Mapping[str, dict[str, Any]]
Provenance = tuple[dict[str, str], dict[str, dict[str, Any]]]
_Digests = dict[str, str]
_OPEN = ConfigDict(strict=True, extra="allow")


@with_config(_OPEN)
class _Cpu(TypedDict, total=False):
    kinds: _Digests


@with_config(_OPEN)
class _Entry(TypedDict, total=False):
    """The parts of code and machine that are compared; settings are compared as texts."""

    flray: _Digests
    files: _Digests
    versions: _Digests
    cpu: _Cpu
    gpus: list[_Digests]


_FORM = TypeAdapter(dict[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], _Entry])
_COMMIT = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")


def digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry: its name in rows."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def beside(path: Path) -> Path:
    """Return the file with the entries of a kept file."""
    return path.with_suffix(".provenance.json")


def describe(folder: Path) -> Provenance:
    """Return the columns of a run's provenance, and the entries that they name.

    A column is empty if an older flray wrote the folder, or if it was fetched from MLflow.

    Parameters
    ----------
    folder : Path
        The folder of a run or trial.
    """
    if directory.folder_kind(folder) != "run":
        return dict.fromkeys(PROVENANCE, ""), {}
    record = directory.read(folder)
    found: dict[str, Any] = {
        "settings": deciding_settings(directory.read_config(folder)["experiment"]),
        "code": named(record.get("code") or {}),
        "machine": {
            name: record[name]
            for name in ("cpu", "gpus", "other_cpus", "other_gpus")
            if record.get(name)
        },
    }
    others = [named(one) for one in record.get("other_code") or ()]
    found["code"] |= {"others": others} if others else {}
    entries = {digest(one): one for one in found.values() if one}
    columns = {name: digest(one) if one else "" for name, one in found.items()}
    commit = record.get("source", {}).get("commit", "")
    return {**columns, "commit": commit if _COMMIT.fullmatch(commit) else ""}, entries


def deciding_settings(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide the bits of a run, without its seed, which is a column of its row.

    Of an address, and of a path that leads out of the current folder, only the last part remains.

    Parameters
    ----------
    experiment : mapping
        The resolved settings, as plain values.
    """

    def kept(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        found = {}
        for name, value in tree.items():
            path = f"{prefix}{name}"
            if isinstance(value, Mapping) and value:
                if part := kept(value, f"{path}."):
                    found[name] = part
            elif not may_change(path) and path != "seed":
                found[name] = _plain(value)
        return found

    plugins = [Path(name).name for name in experiment.get(PLUGINS) or ()]
    return kept(experiment, "") | ({PLUGINS: plugins} if plugins else {})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        path = Path(redact(value))
        leads_away = path.is_absolute() or ".." in path.parts or value.startswith("~")
        return path.name if leads_away or "://" in value else value
    return value


def read_entries(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries beside a kept file, by their SHA-256; without the file, none.

    Raises
    ------
    DataError
        If it holds something else, or an entry has another SHA-256.
    """
    file = beside(path)
    if not os.path.lexists(file):
        return {}
    try:
        entries: dict[str, Any] = read_json(file, _FORM)
    except FlrayError as error:
        raise DataError(str(error)) from None
    for name, content in entries.items():
        if digest(content) != name:
            raise DataError(
                f"{file}: the entry {name[:12]} is not what was kept (SHA-256); restore the file"
            )
    return entries


def entries_text(entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return the content of the file beside a kept one, a line per entry."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(entries[name], sort_keys=True)}"
        for name in sorted(entries)
    )
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()
