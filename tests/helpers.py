"""Small experiments in this process, files of settings, and Python in a process of its own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

INLINE: dict[str, Any] = {"resources": {"executor": "inline"}, "tracking": {"uri": None}}


def inline(settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return an experiment in this process that MLflow is not told of."""
    return {"experiment": {**settings, **INLINE, **changes}}


def small(**changes: Any) -> dict[str, Any]:
    """Return the settings of a round of FedAvg on digits in this process."""
    named = {"data": "digits-sklearn", "model": "linear", "algorithm": "fedavg", "rounds": 1}
    return {**named, **INLINE, **changes}


def written(experiment: dict[str, Any], file: str = "x.yaml", **sections: Any) -> str:
    """Write the settings of an experiment into the current folder and return the file's name."""
    Path(file).write_text(yaml.safe_dump({"experiment": experiment, **sections}))
    return file


def python(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process that has to end well."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return done
