"""What each command costs before it works: processor seconds of a whole process, beside importing typer and rich."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from runner import flray, processor_seconds

MISTAKES = {
    "key": "experiment: {data: digits-sklearn, model: linear, algorithm: fedavg, rouds: 3}",
    "name": "experiment: {data: digits-sklearn, model: linear, algorithm: fedvag}",
    "option": "experiment: {data: digits-sklearn, model: linear, algorithm: {name: fedprox, mu: -1}}",
}
LISTS = ("algorithms", "algorithms fedskc", "datasets", "models", "partitions", "papers")
COMMANDS = (
    *("--help", "--version"),
    *(f"list {what}" for what in LISTS),
    "data list",
    *(f"run {name}.yaml" for name in MISTAKES),
)
BASE = "typer and rich"


@dataclass
class Options:
    repeats: int = 5


def seconds(command: list[str], folder: Path, repeats: int) -> float:
    """Return the least processor seconds of a command: others on the machine only add to them."""
    return min(processor_seconds(command, folder) for _ in range(repeats))


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in MISTAKES.items():
            (folder / f"{name}.yaml").write_text(text)
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        imports = "import typer, rich.console, rich.table, rich.progress"
        base = seconds([sys.executable, "-c", imports], folder, options.repeats)
        print(f"{BASE:24} {base:6.2f} s")
        ratios = []
        for command in COMMANDS:
            took = seconds(flray(*command.split()), folder, options.repeats)
            ratios.append(took / base)
            print(f"{command:24} {took:6.2f} s {took / base:6.1f} times as long")
        print(f"median {statistics.median(ratios):.1f}, most {max(ratios):.1f}")
