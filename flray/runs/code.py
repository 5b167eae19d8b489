"""The recorded code of a run: its differences from other code, and its changes since then."""

import contextlib
import hashlib
import json
from pathlib import Path

from flray.errors import FlrayError
from flray.files import FILE_BYTES, foreign, read
from flray.records import directory

# The SHA-256 of ``flray`` and of the user's ``files`` by path, and the ``versions`` of libraries.
Code = dict[str, dict[str, str]]
IN_NO_FILE = "(in no file)"
"""In place of a path: code of a notebook, say, which no other process could know again."""
Differences = dict[str, tuple[str, str]]


def code_digest(code: Code) -> str:
    """Return the SHA-256 of code; the paths of the user's files do not enter it."""
    parts = {**code, "files": sorted(code["files"].values())}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def code_differences(began: Code, here: Code) -> Differences:
    """Return the parts that differ between two codes, with both versions or both SHA-256's first digits.

    Parameters
    ----------
    began, here : dict
        The results of `flray.runs.identity.code_of`, perhaps from another process or an older
        flray. Code that is not in a file is not compared.
    """
    found: Differences = {}
    for part, short in (("flray", 12), ("files", 12), ("versions", 40)):
        left, right = (named(code).get(part, {}) for code in (began, here))
        moved = set(left.values()) & set(right.values()) if part == "files" else set()
        for name in sorted(left.keys() | right.keys()):
            one, other = left.get(name, ""), right.get(name, "")
            if one != other and name != IN_NO_FILE and not {one, other} & moved:
                found[name] = (one[:short], other[:short])
    return found


def named(code: Code) -> Code:
    """Return a code whose files have names that are the same wherever they lie."""
    names: dict[str, str] = {}
    for path, digest in sorted(code.get("files", {}).items(), key=lambda entry: entry[1]):
        name = Path(path).name
        names[name] = f"{names[name]} {digest}" if name in names else digest
    return {**code, "files": names} if names else code


def describe_difference(differ: Differences) -> str:
    """Return the differences between two codes in words."""
    return ", ".join(
        f"{name} {left or 'not there'}, here {right or 'not there'}"
        for name, (left, right) in differ.items()
    )


def changed_files(code: Code) -> list[str]:
    """Return those of the user's files in a run's code that hold something else now.

    Nothing is executed, and files that are not there say nothing.
    """
    found = []
    for path, digest in code.get("files", {}).items():
        with contextlib.suppress(FlrayError, OSError):
            if hashlib.sha256(read(Path(path), FILE_BYTES)).hexdigest() != digest:
                found.append(Path(path).name)
    return found


def code_notes(folder: Path) -> list[str]:
    """Return notes on a run's or sweep's code: other code that it continued with, and later changes."""
    record = directory.read(folder)
    began, notes = record.get("code") or {}, []
    for other in record.get("other_code", ()):
        differ = code_differences(began, other)
        notes.append(f"it began with other code than it ended with ({describe_difference(differ)})")
    if changed := [] if foreign(folder) else changed_files(began):  # its paths are not this user's
        notes.append(
            f"changed since this was run: {', '.join(changed)} (SHA-256); the results are of the code as it was"
        )
    return notes
