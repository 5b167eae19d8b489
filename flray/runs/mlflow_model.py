"""A run's trained model as an MLflow model with signature: plain PyTorch code and safetensors, nothing pickled."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from flray.errors import FlrayError
from flray.files.border import parse_json, read
from flray.records.journal import Journal

MODEL = "model"
"""Its folder in the run's, and its name among the artifacts; MODEL-NETWORK where there are several networks."""
_PREDICTOR = '''"""What MLflow calls: the code and the weights that flray exported."""

import importlib.util

import mlflow
import torch


class Predictor(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        spec = importlib.util.spec_from_file_location("exported", context.artifacts["code"])
        self.code = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.code)
        self.model = self.code.load(context.artifacts["weights"])

    def predict(self, context, model_input, params=None):
        with torch.inference_mode():
            return self.model(self.code.prepare(torch.as_tensor(model_input))).float().numpy()


mlflow.models.set_model(Predictor())
'''


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
    from flray.runs.export import CARD, export  # torch.fx, which no other run needs

    with tempfile.TemporaryDirectory() as exported:
        try:
            export(folder, Path(exported))
        except FlrayError as error:
            say(f"no MLflow model is written: {error}")
            return
        card = parse_json(read(Path(exported) / CARD))
        for stem, one in card["models"].items():
            name = MODEL + stem.removeprefix("global")
            code, weights = (str(Path(exported) / one[kind]) for kind in ("code", "weights"))
            _save(folder / name, code, weights, card)
            journal.artifact(name, name)


def _save(to: Path, code: str, weights: str, card: dict[str, dict[str, object]]) -> None:
    import mlflow
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    shutil.rmtree(to, ignore_errors=True)  # of a process that was killed
    shape, pixels = card["input"]["shape"], np.dtype(str(card["input"]["pixels"]))
    assert isinstance(shape, list)
    outputs = _outputs(code, weights, (2, *shape), pixels)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice for those who write such a model by hand
        predictor = Path(made) / "predictor.py"
        predictor.write_text(_PREDICTOR)
        mlflow.pyfunc.save_model(
            to,
            python_model=str(predictor),
            artifacts={"code": code, "weights": weights},
            signature=ModelSignature(
                Schema([TensorSpec(pixels, (-1, *shape))]),
                Schema([TensorSpec(np.dtype("float32"), (-1, *outputs))]),
            ),
            pip_requirements=[
                f"{package}=={metadata.version(package).partition('+')[0]}"
                for package in ("mlflow", "numpy", "safetensors", "torch")
            ],
        )


def _outputs(code: str, weights: str, shape: tuple[int, ...], pixels: object) -> tuple[int, ...]:
    """Return the shape of the outputs for one sample."""
    import importlib.util

    import torch

    spec = importlib.util.spec_from_file_location("flray_exported", code)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # it was written a moment ago
    zeros = torch.zeros(shape, dtype=getattr(torch, str(pixels)))
    with torch.inference_mode():
        return tuple(module.load(weights)(module.prepare(zeros)).shape[1:])
