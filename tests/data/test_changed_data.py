"""Data of the user that change between two runs of a process."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import flray
from flray.federation.building import build_spec
from tests.helpers import small

READER = """
from pathlib import Path
import numpy as np
from flray import register_dataset
from flray.data import DataSet, Domain

@register_dataset("kept-array")
def kept_array(root: Path, *, file: str = "x.npy") -> DataSet:
    x, y = np.load(file), np.arange(20) % 2
    return DataSet("kept-array", (Domain("all", "real", x, y, x, y),), ("a", "b"), (0.0,), (1.0,))
"""


def pictures(shade: int) -> None:
    """One differs, of the same size and time, in a folder whose time is as before."""
    for number in range(12):
        picture = Path("photos", ("cats", "dogs")[number % 2], f"{number}.bmp")
        picture.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((12, 12, 3), 20 * number, dtype=np.uint8)
        pixels[0] = shade if number == 1 else 0
        Image.fromarray(pixels).save(picture)
        os.utime(picture, (0, 0))


def arrays(shade: int) -> None:
    np.save("x.npy", np.full((20, 4), shade, dtype=np.float32))
    Path("own.py").write_text(READER)


@pytest.mark.parametrize(
    ("write", "settings"),
    [
        (pictures, {"data": {"name": "folder", "path": "photos"}}),
        (arrays, {"data": "kept-array", "plugins": ["own.py"]}),
    ],
)
def test_a_later_run_reads_them_anew(tmp_cwd: Path, write: Any, settings: dict[str, Any]) -> None:
    learnt = set()
    for shade in (10, 90):
        write(shade)
        result = flray.run({"experiment": small(**settings)})
        learnt.add((result.sha256, build_spec(result.experiment).data.fingerprint))
    assert len({model for model, _ in learnt}) == len({data for _, data in learnt}) == 2
