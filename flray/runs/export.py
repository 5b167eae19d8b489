"""Write trained models as safetensors, with plain PyTorch code that needs no flray; also for MLflow and as RO-Crate."""

import contextlib
import hashlib
import json
import math
import mimetypes
import operator
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors.torch
import torch
import yaml
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from torch import Tensor, fx, nn

from flray.config.yaml_files import dump
from flray.errors import FlrayError, explained
from flray.files import read, write_atomically
from flray.metrics import PRIMARY_VIEWS
from flray.process import own_version
from flray.records import Journal, directory, encode, read_events
from flray.runs.code import code_digest
from flray.runs.identity import DATA, PLUGINS, SAMPLES
from flray.runs.models import TrainedModels

CARD, PAGE = "model.json", "model.md"
# Names of runs, clients and classes come from data: they stand in the card and never in code.
_CODE, _PREDICTOR = (Path(__file__).with_name(f"{name}.py.txt") for name in ("model", "predictor"))
_PAGE = Path(__file__).with_name("card.md.txt")
MODEL = "model"
"""Its folder in the run's, and its name among the artifacts; MODEL-NETWORK where there are several networks."""
METADATA, RECORD = "ro-crate-metadata.json", "record"
"""The crate's description, and the folder in it for what is not a model."""
_CRATE, _PROFILE = "https://w3id.org/ro/crate/1.1", "https://w3id.org/ro/wfrun/process/0.5"
_CONTEXT = [f"{_CRATE}/context", "https://w3id.org/ro/terms/workflow-run/context"]
_PUBLIC = {
    *("uid", "created", "status", "sha256", "rounds", "versions", "cpu", "gpus"),
    *("data", "partition", "origins"),
}
"""What a crate takes over of ``run.json``."""


def export(
    folder: Path,
    to: Path | None = None,
    *,
    client: str | None = None,
    every: bool = False,
    plugins: tuple[str, ...] = (),
    crate: str | None = None,
) -> list[Path]:
    """Write models of a run: weights as safetensors, code in plain PyTorch, and a card that describes them.

    Parameters
    ----------
    folder : Path
        The folder of a run or of a sweep's trial.
    to : Path, optional
        The target folder; by default ``export`` in `folder`.
    client : str, optional
        The client whose model is written; by default the global model, one per architecture.
    every : bool
        Whether to write the global model and those of all clients, if the method has them.
    plugins : tuple of str
        Your files that replace those that the settings name.
    crate : str, optional
        A licence, under which the run's settings, data and history are added as RO-Crate; see
        `write_crate`.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    FlrayError
        If the run has no such model, or if a layer cannot be written in plain PyTorch; the message
        names the layer.
    """
    to = folder / "export" if to is None else to
    if crate is not None:
        license_address(crate)  # before anything is written
    models = TrainedModels(folder, plugins)
    written: list[Path] = []
    code: dict[str, str] = {}
    spec, data = models.spec, models.spec.data
    card: dict[str, Any] = {
        "run": directory.place_of(folder),
        "uid": directory.read(folder)["uid"],
        "flray": own_version(),
        "round": models.round,
        "algorithm": spec.config.algorithm.model_dump(mode="json"),
        "data": spec.config.data.model_dump(mode="json"),
        "input": {"shape": list(data.shape), "pixels": str(data.x.dtype)},
        "normalisation": {"mean": list(map(float, data.mean)), "std": list(map(float, data.std))}
        if spec.algorithm.normalise
        else None,
        "classes": list(data.classes),
        **data.words,
        **({"columns": data.columns} if data.columns else {}),
        "models": {},
    }
    for stem, title, model in _chosen(models, client, every):
        body, tensors, outputs = plain_code(model, models)
        module = next((name for name, text in code.items() if text == body), None)
        if module is None:
            module = "model" if not code else f"model_{len(code) + 1}"
            code[module] = body
            text = body.replace("$module", module, 1)
            write_atomically(to / f"{module}.py", text.encode())
            written.append(to / f"{module}.py")
        path = to / f"{stem}.safetensors"
        write_atomically(path, safetensors.torch.save(tensors))
        written.append(path)
        card["models"][stem] = {
            "weights": path.name,
            "code": f"{module}.py",
            "what": title,
            "outputs": outputs,
        }
    write_atomically(to / CARD, json.dumps(card, indent=1).encode())
    write_atomically(to / PAGE, _page(card).encode())
    written += [to / CARD, to / PAGE]
    return [*written, *(write_crate(folder, to, written, crate) if crate is not None else ())]


def _page(card: Mapping[str, Any]) -> str:
    """Return a model card as the Hugging Face Hub shows it; what it says of data is JSON without a backtick."""
    method, first = _plain(card["algorithm"]["name"]), next(iter(card["models"].values()))
    about = {"library_name": "pytorch", "tags": ["federated-learning", "flray", method]}
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        head=f"---\n{yaml.safe_dump(about)}---",
        title=f"{method} on {_plain(card['data']['name'])}",
        rounds=card["round"],
        method=method,
        version=card["flray"],
        module=first["code"].removesuffix(".py"),
        weights=first["weights"],
        pixels=card["input"]["pixels"],
        shape=", ".join(map(str, card["input"]["shape"])),
        outputs=", ".join(map(str, first["outputs"])),
        card=json.dumps(card, indent=1).replace("`", r"\u0060"),
    )


def _plain(text: str) -> str:
    return re.sub(r"[^\w .-]", "-", text)


def _chosen(
    models: TrainedModels, client: str | None, every: bool
) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield file name, title and module of each model to be written."""
    if client is None and (models.spec.has_common or not every):
        found = models.global_models()
        for key, model in found.items():
            stem = "global" if len(found) == 1 else f"global-{_file_name(key)}"
            yield stem, f"The global model, {key}.", model
    if client is not None or (every and models.personal):
        stems: dict[str, str] = {}
        for name in models.clients:
            stem = f"client-{_file_name(name)}"
            stems[name] = f"{stem}-{len(stems)}" if stem in stems.values() else stem
        for name in models.clients if client is None else [client]:
            model = models.client_model(name)
            yield stems[name], f"The model of client {name}.", model


def plain_code(model: nn.Module, models: TrainedModels) -> tuple[str, dict[str, Tensor], list[int]]:
    """Return plain PyTorch code whose ``Model`` does what a module does, its state and its outputs' shape.

    The forward pass is recorded once by `torch.fx`; layers are built from their printed form. Both
    are checked: the code is run on a batch, and its outputs compared.

    Raises
    ------
    FlrayError
        If the forward pass depends on its input's values, or a layer cannot be built from its
        printed form.
    """
    model = model.eval()
    with explained(
        Exception,
        "the model cannot be written as plain PyTorch: torch.fx cannot follow its forward pass",
        "use flray.resume(RUN).model() in Python",
        FlrayError,
    ):
        graph = fx.Tracer().trace(model)
        traced = fx.GraphModule(model, graph)
    lines: list[str] = []
    for node in graph.nodes:
        node.type = None  # annotations would have to be imported
        if node.op in ("call_module", "get_attr"):
            path = str(node.target)
            lines.append(f"put(self, {path!r}, {_made(traced, path, node.op)})")
    source = graph.python_code("self")
    lines = list(dict.fromkeys(lines))
    double = models.spec.config.local.precision == "float64"
    dtype = "torch.float64" if double else "torch.float32"
    if dtype != "torch.float32":
        lines.append(f"self.to({dtype})")
    forward = re.sub(r"\) -> [^:]+:", "):", source.src.strip(), count=1)
    used = set(re.findall(r"\w+", forward))
    imports = "".join(f"{one} = float('{one}')\n" for one in ("inf", "nan") if one in used)
    imports += "".join(
        f"{name} = {value.__module__}.{value.__qualname__}\n"
        for name, value in source.globals.items()
        if name in used and getattr(value, "__module__", "builtins") != "builtins"
    )
    data, normalised = models.spec.data, models.spec.algorithm.normalise
    mean, std = (data.mean, data.std) if normalised else ((0.0,), (1.0,))
    text = Template(_CODE.read_text(encoding="utf-8")).safe_substitute(
        version=own_version(),
        mean=list(map(float, mean)),
        std=list(map(float, std)),
        imports=imports,
        layers="".join(f"        {line}\n" for line in lines),
        forward="".join(f"    {line}\n" if line.strip() else "\n" for line in forward.splitlines()),
        dtype=dtype,
    )
    text = re.sub(r"[ \t]+\n", "\n", text)
    names = list(_built(text).state_dict())
    state = traced.state_dict()
    if missing := [name for name in names if name not in state]:
        raise FlrayError(f"the model cannot be written as plain PyTorch: found no {missing[0]}")
    tensors = {name: state[name].detach().clone().contiguous() for name in names}
    return text, tensors, _check(text, tensors, model, models)


def _made(traced: fx.GraphModule, path: str, kind: str) -> str:
    """Return the expression that makes a layer, a parameter or a buffer."""
    if kind == "call_module":
        layer = traced.get_submodule(path)
        printed = repr(layer)
        if not type(layer).__module__.startswith("torch.nn.") or "\n" in printed:
            raise FlrayError(
                f"the model cannot be written as plain PyTorch: {path} is a {type(layer).__name__}"
            )
        return f"nn.{printed}"
    value = operator.attrgetter(path)(traced)
    if not isinstance(value, Tensor):
        raise FlrayError(f"the model cannot be written as plain PyTorch: {path} is no tensor")
    made = f"torch.empty({list(value.shape)}, dtype={value.dtype})"
    return f"nn.Parameter({made})" if isinstance(value, nn.Parameter) else made


def _built(text: str) -> nn.Module:
    space: dict[str, Any] = {"torch": torch, "nn": nn}
    with explained(Exception, "the model cannot be written as plain PyTorch", kind=FlrayError):
        exec(compile(text, "model.py", "exec"), space)  # the text is ours, made of a graph
        model: nn.Module = space["Model"]()
    return model


def _check(
    text: str, tensors: Mapping[str, Tensor], model: nn.Module, models: TrainedModels
) -> list[int]:
    """Run both on a batch and compare; return the shape of the outputs for one sample."""
    again = _built(text)
    again.load_state_dict(dict(tensors))
    dtype = next(model.parameters()).dtype
    batch = torch.randn(4, *models.spec.data.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = model(batch.to(dtype)), again.eval()(batch.to(dtype))
    if not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5):
        raise FlrayError(
            "the model cannot be written as plain PyTorch: its code computes other outputs, "
            f"by up to {float((ours - theirs).abs().max()):.2g}"
        )
    return list(ours.shape[1:])


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.\-]", "_", name)


def save_mlflow_models(folder: Path, journal: Journal, say: Callable[[str], None]) -> None:
    """Write a run's or trial's global model as an MLflow model, and list it for MLflow.

    Parameters
    ----------
    folder : Path
        The folder of the run or trial, with a checkpoint.
    journal : Journal
        Its journal.
    say : callable
        Called with a line if the run has no global model to write.
    """
    with tempfile.TemporaryDirectory() as exported:
        try:
            export(folder, Path(exported))
        except FlrayError as error:
            say(f"no MLflow model is written: {error}")
            return
        card = json.loads(read(Path(exported) / CARD))
        for stem, one in card["models"].items():
            name = MODEL + stem.removeprefix("global")
            _save_mlflow_model(folder / name, Path(exported), one, card["input"])
            journal.artifact(name, name)


def _save_mlflow_model(
    to: Path, exported: Path, made: Mapping[str, Any], taken: Mapping[str, Any]
) -> None:
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    shutil.rmtree(to, ignore_errors=True)  # of a process that was killed
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    pixels = np.dtype(taken["pixels"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice for those who write such a model by hand
        predictor = Path(shutil.copyfile(_PREDICTOR, exported / "predictor.py"))
        mlflow.pyfunc.save_model(
            to,
            python_model=str(predictor),
            artifacts={kind: str(exported / made[kind]) for kind in ("code", "weights")},
            signature=ModelSignature(
                Schema([TensorSpec(pixels, (-1, *taken["shape"]))]),
                Schema([TensorSpec(np.dtype("float32"), (-1, *made["outputs"]))]),
            ),
            pip_requirements=[
                f"{package}=={metadata.version(package).partition('+')[0]}"
                for package in ("mlflow", "numpy", "safetensors", "torch")
            ],
        )


def license_address(text: str) -> str:
    """Return the address of a licence that is given by its SPDX name or as an address.

    Raises
    ------
    FlrayError
        If it is neither.
    """
    if re.fullmatch(r"https?://[^\s<>\"]+", text):
        return text
    with contextlib.suppress(InvalidLicenseExpression):
        name = canonicalize_license_expression(text)
        if " " not in name and not name.startswith("LicenseRef-"):  # one that has a page there
            return f"https://spdx.org/licenses/{name}"
    raise FlrayError(
        f"--crate: found {text!r}; a licence is needed, by its SPDX name (CC-BY-4.0) or its address (https://...)"
    )


def write_crate(folder: Path, to: Path, models: Sequence[Path], license_: str) -> list[Path]:
    """Add a run's records to the models that were exported, and the metadata of all of it.

    RO-Crate 1.1 (https://w3id.org/ro/crate/1.1) with the profile Process Run Crate 0.5: one action, the run, with
    flray as its instrument. The user, the command, the tracking address and the output folder stay out.

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
    events = read_events(folder)
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
        f"{RECORD}/history.jsonl": b"".join(map(encode, rounds)),
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
