"""Record how many kernels a step of each case starts: ``python -m tests.accelerator.record``."""

import json
from pathlib import Path

from tests.accelerator.cases import covering, tasks
from tests.accelerator.run_cases import run_case

if __name__ == "__main__":
    kernels = {case["name"]: run_case(case)["kernels"] for case in [*covering(), *tasks()]}
    text = json.dumps(kernels, indent=1, sort_keys=True)
    (Path(__file__).parent / "kernels.json").write_text(text + "\n")
