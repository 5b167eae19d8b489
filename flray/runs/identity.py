"""The identity of a run: settings, data and code, which decide its bits, and the files that verify them elsewhere."""

import hashlib
import json
import platform
import shutil
import sys
import uuid
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from flray import registry
from flray.bits import version
from flray.config.experiment import Config, Experiment, may_change
from flray.config.start import file_of, user_code
from flray.federation import FederationSpec
from flray.federation.building import components_of
from flray.files import write_atomically
from flray.runs.code import IN_NO_FILE, Code, code_digest
from flray.runs.resume_checks import settings_text

PACKAGE = Path(__file__).resolve().parents[1]
DECIDING = (
    "algorithms",
    "data",
    "devices",
    "federation",
    "functional",
    "metrics",
    "models",
    "samplers",
    "tasks",
    "bits.py",
    "rng.py",
    "trees.py",
)
"""Parts of flray that what is learnt and measured depends on."""
_BESIDES = ("federation/ray_backend",)
"""Parts of these that only decide where a task is run."""
_LIBRARIES = ("torch", "torchvision", "numpy", "scikit-learn", "pillow")
_LIBRARIES_OF = {
    ("partitions", "flower"): ("flwr-datasets", "datasets"),
    ("datasets", "table"): ("pandas", "pyarrow"),
    ("datasets", "huggingface"): ("datasets", "pyarrow"),
}
"""Libraries that decide what one component gives, and nothing else."""
_MODULES_OF_LIBRARIES = {"torch", "torchvision", "numpy", "sklearn", "PIL"}

Identity = dict[str, str]


def run_identity(experiment: Experiment, metric: str, data: str) -> Identity:
    """Return the identity of a run.

    Parameters
    ----------
    experiment : Experiment
        Its resolved settings. Those that may change on resume do not count; see
        `flray.runs.resume_checks`.
    metric : str
        ``sweep.metric``, the run's score.
    data : str
        Fingerprint of the data set. Who holds what follows from it, the settings and the code.

    Returns
    -------
    dict of str to str
        SHA-256 of the ``settings``, the ``data`` and the ``code``; see `code_of`.
    """
    settings = {
        key: value
        for key, value in settings_text(Config(experiment=experiment), "run").items()
        if not may_change(key)
    }
    settings["sweep.metric"] = metric
    if experiment.tracking.features:  # a run without them lacks figures
        settings["tracking.features"] = "True"
    text = json.dumps(settings, sort_keys=True)
    return {
        "settings": hashlib.sha256(text.encode()).hexdigest(),
        "data": data,
        "code": code_digest(code_of(experiment)),
    }


def code_of(*experiments: Experiment) -> Code:
    """Return the code that decides the bits of experiments.

    That is the parts of flray in `DECIDING`; the user's files that are named as plug-ins or
    registered a component that is used, and all files that these import; the versions of Python and
    the libraries that compute, that a component is made of, or that the user's files import.
    """
    components = {one for experiment in experiments for one in components_of(experiment)}
    plugins = {Path(file) for experiment in experiments for file in experiment.plugins}
    added = (registry.ALL[kind].added().get(name) for kind, name in components)
    own = {
        file_of(sys.modules.get(getattr(item, "__module__", "")))
        for item in added
        if item is not None
    }
    files, imported = user_code({*plugins, *(file for file in own if file is not None)})
    if None in own:  # in a notebook, say: nothing that another process could know again
        files[IN_NO_FILE] = uuid.uuid4().hex
    libraries = {name for component in components for name in _LIBRARIES_OF.get(component, ())}
    for name in imported - _MODULES_OF_LIBRARIES:
        libraries |= set(_distributions().get(name, ()))
    versions = {name: version(name) for name in (*_LIBRARIES, *libraries)}
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "flray": {"flray": _package_digest()},
        "files": files,
        "versions": {"python": python, **dict(sorted(versions.items()))},
    }


_distributions = cache(metadata.packages_distributions)


@cache
def _package_digest() -> str:
    """Return the digest of the parts of flray that decide."""
    digest = hashlib.sha256()
    for file in _modules():
        content = file.read_bytes().replace(b"\r\n", b"\n")  # as a checkout may have them
        digest.update(f"{file.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _modules() -> Iterator[Path]:
    for path in (PACKAGE / part for part in DECIDING):
        inside = sorted([*path.rglob("*.py"), *path.rglob("*.toml")])
        for file in [path] if path.is_file() else inside:
            if not any(file.is_relative_to(PACKAGE / folder) for folder in _BESIDES):
                yield file


DATA, SAMPLES, PLUGINS = "data.json", "samples.npz", "plugins"


def save_provenance(spec: FederationSpec, folder: Path) -> None:
    """Write ``data.json``, ``samples.npz`` and copies of the plug-ins into a run's folder.

    ``samples.npz`` has for client number K the rows ``K-train``, ``K-val`` and ``K-test`` (int64)
    of the data set's samples: all domains' training samples, then all their test samples, domain by
    domain in the order of ``data.json``. No copy is ever executed: a resume takes the user's own
    files.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    folder : Path
        The run's folder.
    """
    data = spec.data
    described = {
        "dataset": data.dataset,
        "fingerprint": data.fingerprint,
        "partition": data.partition_fingerprint,
        "shape": list(data.shape),
        "samples": len(data.y),
        "classes": list(data.classes),
        **data.words,
        "clients": [client.name for client in data.everyone],
        **({"unseen": [client.name for client in data.unseen]} if data.unseen else {}),
        "domains": list(data.origins),
        "normalisation": {"mean": list(map(float, data.mean)), "std": list(map(float, data.std))}
        if spec.algorithm.normalise
        else None,
        "plugins": [Path(name).name for name in spec.config.plugins],
    }
    write_atomically(folder / DATA, json.dumps(described, indent=1).encode())
    rows = {
        f"{number}-{part}": getattr(client, part)
        for number, client in enumerate(data.everyone)
        for part in ("train", "val", "test")
    }
    np.savez_compressed(folder / SAMPLES, allow_pickle=False, **rows)
    for number, name in enumerate(spec.config.plugins):
        copy = folder / PLUGINS / Path(name).name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(name, copy.with_stem(f"{copy.stem}-{number}") if copy.exists() else copy)
