"""The notebooks under docs/notebooks run from top to bottom, and were stored after a run without an error."""

from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def cells(name: str) -> list[Any]:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run_cells(name: str) -> dict[str, Any]:
    """Run a notebook's cells in this process and return its names."""
    matplotlib.use("agg")
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells(name), 1):
        exec(compile(cell.source, f"{name}.ipynb, cell {number}", "exec"), names)
    return names


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_it_was_stored_after_a_run(name: str) -> None:
    assert [cell.execution_count for cell in cells(name)] == list(range(1, len(cells(name)) + 1))
    outputs = [output for cell in cells(name) for output in cell.outputs]
    assert outputs and all(output.output_type != "error" for output in outputs)


def test_start(tmp_cwd: Path) -> None:
    names = run_cells("start")
    assert len(names["fedbn"].history) == names["experiment"]["rounds"]


def test_own_method(tmp_cwd: Path) -> None:
    names = run_cells("own_method")
    assert names["whole"] == names["fedavg"] != names["half"].sha256


@pytest.mark.slow
def test_sweep(tmp_cwd: Path, ray_here: dict[str, float]) -> None:
    result = run_cells("sweep")["result"]
    assert set(result.summary["seeds"]) == {3} and len(result.conclusions) >= 1
