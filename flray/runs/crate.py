"""An exported run as RO-Crate: its models beside settings, data and history, described for archives and other tools.

RO-Crate 1.1 (https://w3id.org/ro/crate/1.1) with the profile Process Run Crate 0.5: one action, the run, with
flray as its instrument. The user, the command, the tracking address and the output folder stay out.
"""

import hashlib
import json
import math
import mimetypes
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flray.config.yaml_files import dump
from flray.errors import FlrayError
from flray.files.atomic import write_atomically
from flray.files.border import read
from flray.metrics.names import PRIMARY_VIEWS
from flray.records import directory, journal
from flray.runs.code import code_digest
from flray.runs.identity import DATA, PLUGINS, SAMPLES

METADATA, RECORD = "ro-crate-metadata.json", "record"
"""The crate's description, and the folder in it for what is not a model."""
_CRATE, _PROFILE = "https://w3id.org/ro/crate/1.1", "https://w3id.org/ro/wfrun/process/0.5"
_CONTEXT = [f"{_CRATE}/context", "https://w3id.org/ro/terms/workflow-run/context"]
_PUBLIC = {
    *("uid", "created", "status", "sha256", "rounds", "versions", "cpu", "gpus"),
    *("data", "partition", "origins"),
}
"""What a crate takes over of ``run.json``."""


def license_address(text: str) -> str:
    """Return the address of a licence that is given by its SPDX name or as an address.

    Raises
    ------
    FlrayError
        If it is neither.
    """
    if not re.fullmatch(r"(https?://|\w)[^\s<>\"]*", text):
        raise FlrayError(
            f"--crate: found {text!r}; a licence is needed, by its SPDX name (CC-BY-4.0) or its address (https://...)"
        )
    return text if "://" in text else f"https://spdx.org/licenses/{text}"


def write_crate(folder: Path, to: Path, models: Sequence[Path], license_: str) -> list[Path]:
    """Add a run's records to the models that were exported, and the metadata of all of it.

    Parameters
    ----------
    folder : Path
        The folder of a run or of a sweep's trial.
    to : Path
        The folder of the export, which becomes the crate.
    models : sequence of Path
        The exported files, in `to`.
    license_ : str
        The licence under which the crate may be used, which RO-Crate requires; see `license_address`.

    Returns
    -------
    list of Path
        The files that were added, the metadata last.

    Raises
    ------
    FlrayError
        If the run's journal has no round.
    """
    record, config = directory.read(folder), directory.read_config(folder)
    versions = {"flray": "unknown", **record.get("versions", {})}
    events = journal.read_events(folder)
    rounds = [event for event in events if event["type"] == "round"]
    if not rounds:
        raise FlrayError(
            f"{folder}: its {directory.JOURNAL} has no round, so a crate would say nothing"
        )
    plugins = [f"{PLUGINS}/{path.name}" for path in sorted((folder / PLUGINS).glob("*.py"))]
    experiment = config["experiment"]
    own = plugins or experiment.get("plugins", [])  # a trial's folder has no copies
    experiment |= {"tracking": {"uri": None}, "plugins": own, "output": "runs"}
    known = {key: value for key, value in record.items() if key in _PUBLIC}
    code, commit = record.get("code"), record.get("source", {}).get("commit")
    known |= {"commit": commit, "code": code and code_digest(code)}
    there = [name for name in (DATA, directory.PARTITION, SAMPLES) if (folder / name).exists()]
    inputs = {f"{RECORD}/{name}": read(folder / name) for name in [*there, *plugins]}
    inputs[f"{RECORD}/{directory.CONFIG}"] = dump(config).encode()
    outputs = {
        f"{RECORD}/environment.json": json.dumps(known, indent=1).encode(),
        f"{RECORD}/history.jsonl": b"".join(map(journal.encode, rounds)),
    }
    for name, content in {**inputs, **outputs}.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(to / name, content)
    results = [*outputs, *(path.relative_to(to).as_posix() for path in models)]
    measured = {
        name: value
        for name, value in rounds[-1]["metrics"].items()
        if name.startswith((*PRIMARY_VIEWS,)) and "/client/" not in name and math.isfinite(value)
    }
    title = (
        f"{experiment['algorithm']['name']} on {experiment['data']['name']}, {len(rounds)} rounds"
    )
    description = f"A federated-learning run of flray: {title}. Measured in the last round; shares from 0 to 1."
    times = [datetime.fromtimestamp(e["time"] / 1000, UTC) for e in events if "time" in e]
    status = "Completed" if record["status"] in ("finished", "stopped") else "Failed"
    software = {name: f"https://pypi.org/project/{quote(name)}/" for name in versions}
    software |= {"python": "https://www.python.org/"}
    graph = [
        _entity(METADATA, "CreativeWork", conformsTo={"@id": _CRATE}, about={"@id": "./"}),
        _entity(
            "./",
            "Dataset",
            name=title,
            description=description,
            datePublished=datetime.now(UTC).date().isoformat(),
            license={"@id": license_address(license_)},
            conformsTo={"@id": _PROFILE},
            hasPart=_references([*inputs, *results]),
            mentions={"@id": "#run"},
            variableMeasured=_references(measured, "#"),
        ),
        _entity(
            license_address(license_), "CreativeWork", name=license_, description="The licence."
        ),
        _entity(_PROFILE, "CreativeWork", name="Process Run Crate", version="0.5"),
        _entity(
            "#run",
            "CreateAction",
            name=title,
            identifier=record["uid"],
            description=description,
            startTime=min(times).isoformat(timespec="seconds"),
            endTime=max(times).isoformat(timespec="seconds"),
            actionStatus=f"http://schema.org/{status}ActionStatus",
            instrument={"@id": software["flray"]},
            object=_references(inputs),
            result=_references(results),
        ),
    ]
    graph += [
        _entity(
            software[name],
            "SoftwareApplication",
            name=name,
            softwareVersion=version,
            url=software[name],
        )
        for name, version in versions.items()
    ]
    graph += [
        _entity(f"#{quote(name)}", "PropertyValue", name=name, value=value)
        for name, value in measured.items()
    ]
    for name in [*inputs, *results]:
        content, kind = read(to / name), mimetypes.guess_type(name)[0] or "application/octet-stream"
        size, digest = str(len(content)), hashlib.sha256(content).hexdigest()
        about = {"encodingFormat": kind, "contentSize": size, "sha256": digest}
        graph.append(_entity(quote(name), "File", name=name, **about))
    text = json.dumps({"@context": _CONTEXT, "@graph": graph}, indent=1)
    write_atomically(to / METADATA, text.encode())
    return [to / name for name in (*inputs, *outputs, METADATA)]


def _entity(name: str, kind: str, /, **properties: Any) -> dict[str, Any]:
    return {"@id": name, "@type": kind, **properties}


def _references(names: Iterable[str], prefix: str = "") -> list[dict[str, str]]:
    return [{"@id": prefix + quote(name)} for name in names]
