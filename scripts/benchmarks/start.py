"""What each command costs before it works: processor seconds of a whole process, beside importing typer and rich."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MISTAKES = {
    "key": "experiment: {data: digits-sklearn, model: linear, algorithm: fedavg, rouds: 3}",
    "name": "experiment: {data: digits-sklearn, model: linear, algorithm: fedvag}",
    "option": "experiment: {data: digits-sklearn, model: linear, algorithm: {name: fedprox, mu: -1}}",
}
COMMANDS = (
    "--help",
    "--version",
    "list algorithms",
    "list algorithms fedskc",
    "list datasets",
    "list models",
    "list partitions",
    "list papers",
    "data list",
    *(f"run {name}.yaml" for name in MISTAKES),
)
BASE = "typer and rich"


def seconds(command: list[str], folder: Path, repeats: int) -> float:
    """Return the least processor seconds of a command: others on the machine only add to them."""
    found = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in MISTAKES.items():
            (folder / f"{name}.yaml").write_text(text)
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        imports = "import typer, rich.console, rich.table, rich.progress"
        base = seconds([sys.executable, "-c", imports], folder, repeats)
        print(f"{BASE:24} {base:6.2f} s")
        ratios = []
        for command in COMMANDS:
            took = seconds([sys.executable, "-m", "flray", *command.split()], folder, repeats)
            ratios.append(took / base)
            print(f"{command:24} {took:6.2f} s {took / base:6.1f} times as long")
        print(f"median {statistics.median(ratios):.1f}, most {max(ratios):.1f}")


if __name__ == "__main__":
    main()
