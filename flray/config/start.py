"""``experiment.start``: the weights that training starts from."""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from flray import registry
from flray.config.sections import Section
from flray.config.yaml_files import read_yaml
from flray.errors import ConfigError, DataError, FlrayError
from flray.files.border import MAPPING, check_name, read, read_json


class Weights(Section):
    """A file of weights. From then on it has to stay as it was, as data have to."""

    weights: str = Field(min_length=1)
    """its full path"""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """its digest"""

    def read(self, field: str) -> bytes:
        """Return the file's content.

        Parameters
        ----------
        field : str
            The setting, for messages.

        Raises
        ------
        ConfigError
            If it is gone, or is not the one that was there at the beginning.
        """
        try:
            data = read(Path(self.weights))
        except (OSError, DataError) as error:
            raise ConfigError(
                field,
                self.weights,
                f"it cannot be read: {getattr(error, 'strerror', error)}; every machine that trains needs it there",
            ) from None
        digest = hashlib.sha256(data).hexdigest()
        if digest != self.sha256:
            raise ConfigError(
                field,
                self.weights,
                f"it is not the file that was there at the beginning (SHA-256 {digest[:12]}, then "
                f"{self.sha256[:12]}); put that back, or start a new run",
            )
        return data


def _resolve(value: Any) -> Any:
    """Return the file that a run or a path stands for, with its digest."""
    if isinstance(value, Weights) or (
        isinstance(value, dict) and set(value) == set(Weights.model_fields)
    ):
        return value  # of a configuration that was saved
    try:
        if not isinstance(value, str):
            raise ValueError
        run = next((p for p in (Path(value), Path("runs") / value) if p.is_dir()), None)
        return _known(Path(value) if run is None else _newest_checkpoint(run))
    except FlrayError as error:
        raise PydanticCustomError("start", "{why}", {"why": str(error)}) from None
    except PydanticCustomError:
        raise
    except (OSError, ValueError, StopIteration):
        raise PydanticCustomError(
            "start",
            "no weights are there; needed is a run, for example demo/001, or a safetensors file, as "
            "flray export RUN writes",
        ) from None


def _known(path: Path) -> dict[str, str]:
    """Return a file of weights with its digest."""
    return {"weights": str(path.resolve()), "sha256": hashlib.sha256(read(path)).hexdigest()}


def _resolve_pretrained(value: Any) -> Any:
    """Return the file that a path stands for, with its digest; torchvision's names as they are."""
    if not isinstance(value, str) or re.fullmatch("[A-Z0-9_]+", value):
        return value
    try:
        return _known(Path(value))
    except DataError as error:
        raise PydanticCustomError("weights", "{why}", {"why": str(error)}) from None
    except (OSError, ValueError):
        raise PydanticCustomError(
            "weights",
            "there is no such file; needed is a file of weights, or torchvision's name for some, such as IMAGENET1K_V1",
        ) from None


def _newest_checkpoint(run: Path) -> Path:
    """Return the file of the server's side of a run's newest checkpoint."""
    content = read_yaml(run / "config.yaml")
    try:
        method = str(content["experiment"]["algorithm"]["name"])
    except (KeyError, TypeError):
        raise DataError(f"{run / 'config.yaml'}: experiment.algorithm.name is missing") from None
    known = registry.algorithms
    if method in known.names() and "global" not in known.outline(method).views:
        raise PydanticCustomError(
            "start",
            "{method} has no global model; flray export RUN --client NAME writes a client's",
            {"method": method},
        )
    folder = run / "checkpoint"
    newest = max(folder.glob("round-*.json"), key=lambda path: int(path.stem[6:]))
    files = read_json(newest, MAPPING)["files"]
    return folder / check_name(next(name for name in files if name.startswith("server-")), newest)


Start = Annotated[Weights, BeforeValidator(_resolve, json_schema_input_type=Weights | str)]
Pretrained = Annotated[
    Weights | str | None,
    BeforeValidator(_resolve_pretrained),
    Field(
        description="a file of the network's weights, or torchvision's name for some whose file lies in "
        "torch's cache; null: fresh ones"
    ),
]
