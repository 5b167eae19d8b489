"""Files that settings name and that have to stay as they are: weights to start from, a split of the samples."""

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
from flray.files.border import FILE_BYTES, MAPPING, WEIGHTS_BYTES, check_name, read, read_json

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def read_known(field: str, path: str, sha256: str, most: int = WEIGHTS_BYTES) -> bytes:
    """Return the content of a file that has to stay as it was, as data have to.

    Parameters
    ----------
    field : str
        The setting, for messages.
    path : str
        The file's full path.
    sha256 : str
        Its digest at the beginning.
    most : int
        Bytes that are read at most.

    Raises
    ------
    ConfigError
        If it is gone, or is not the one that was there at the beginning.
    """
    try:
        data = read(Path(path), most)
    except (OSError, DataError) as error:
        why = f"it cannot be read: {getattr(error, 'strerror', error)}; every machine that trains needs it there"
        raise ConfigError(field, path, why) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        allowed = (
            f"it is not the file that was there at the beginning (SHA-256 {digest[:12]}, then "
        )
        allowed += f"{sha256[:12]}); put that back, or start a new run"
        raise ConfigError(field, path, allowed)
    return data


class Weights(Section):
    """A file of weights. From then on it has to stay as it was, as data have to."""

    weights: str = Field(min_length=1)
    """its full path"""
    sha256: Digest
    """its digest"""

    def read(self, field: str) -> bytes:
        """Return the file's content; see `read_known`."""
        return read_known(field, self.weights, self.sha256)


class SplitFile(Section):
    """A file that says who holds which samples."""

    file: str = Field(min_length=1)
    """its full path"""
    sha256: Digest
    """its digest"""

    def read(self, field: str) -> bytes:
        """Return the file's content; see `read_known`."""
        return read_known(field, self.file, self.sha256, FILE_BYTES)


def _resolve_split(value: Any) -> Any:
    """Return the file that a path stands for, with its digest."""
    if isinstance(value, SplitFile | dict):
        return value  # of a configuration that was saved
    try:
        if not isinstance(value, str):
            raise ValueError
        return _known(Path(value), "file", FILE_BYTES)
    except (OSError, ValueError, DataError) as error:
        why = str(error) if isinstance(error, DataError) else "there is no such file"
        raise PydanticCustomError(
            "split",
            "{why}; needed is a JSON file, as flray data show FILE.yaml --split SPLIT.json writes",
            {"why": why},
        ) from None


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


def _known(path: Path, key: str = "weights", most: int = WEIGHTS_BYTES) -> dict[str, str]:
    """Return a file's full path, under `key`, with its digest."""
    return {key: str(path.resolve()), "sha256": hashlib.sha256(read(path, most)).hexdigest()}


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


GivenSplit = Annotated[
    SplitFile, BeforeValidator(_resolve_split, json_schema_input_type=SplitFile | str)
]
Start = Annotated[Weights, BeforeValidator(_resolve, json_schema_input_type=Weights | str)]
Pretrained = Annotated[
    Weights | str | None,
    BeforeValidator(_resolve_pretrained),
    Field(
        description="a file of the network's weights, or torchvision's name for some whose file lies in "
        "torch's cache; null: fresh ones"
    ),
]
