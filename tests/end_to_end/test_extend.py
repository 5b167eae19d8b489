"""A run that is given more rounds is the run that had as many from the start."""

import inspect
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import flray
from flray import registry
from flray.algorithms.base import Algorithm
from flray.federation.federation import Federation
from flray.interrupts import InterruptedRunError
from flray.records import directory
from flray.runs.resume_checks import parse_rounds
from flray.runs.runner import Result
from tests.helpers import small, steady
from tests.messages import mistyped, refused


def run(rounds: int, **more: Any) -> Result:
    partition = {"name": "dirichlet", "clients": 3, "alpha": 0.5}
    some = {"participation": {"fraction": 0.7}, "local": {"lr_decay": 0.9}, "subset": 200, **more}
    return flray.run({"experiment": small(rounds=rounds, partition=partition, **some)})


@pytest.mark.parametrize("algorithm", ["scaffold", "fedproc"])
def test_extended_to_the_bits_of_a_run_that_had_them_from_the_start(
    algorithm: str, tmp_cwd: Path
) -> None:
    whole, begun = run(5, algorithm=algorithm), run(2, algorithm=algorithm)
    assert begun.sha256 != whole.sha256
    extended = flray.resume(begun.folder, rounds=5)
    assert isinstance(extended, Result)
    assert extended.sha256 == whole.sha256
    kept = [*steady(whole.history)]
    pd.testing.assert_frame_equal(extended.history[kept], whole.history[kept], check_exact=True)
    assert extended.experiment.rounds == 5
    again = flray.resume(begun.folder)
    assert isinstance(again, Result) and again.sha256 == whole.sha256
    assert directory.read(begun.folder)["status"] == "finished"


def test_an_extension_that_is_interrupted_goes_on_or_is_taken_back_to_the_rounds_done(
    tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, begun, other = run(3), run(2), run(2)
    step = Federation.step

    def stopped(self: Federation) -> Any:
        if self.rounds_done == 3:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patched:
        patched.setattr(Federation, "step", stopped)
        for one in (begun, other):
            with pytest.raises(InterruptedRunError):
                flray.resume(one.folder, rounds=4)
    longer = flray.resume(begun.folder)
    assert isinstance(longer, Result) and longer.sha256 == run(4).sha256
    refused(flray.resume, other.folder, rounds=2)
    result = flray.resume(other.folder, rounds=3)
    assert isinstance(result, Result) and result.sha256 == whole.sha256
    assert len(result.history) == 3


def test_refused_with_the_reason(tmp_cwd: Path) -> None:
    begun = run(3, evaluation={"every": 2})
    refused(flray.resume, begun.folder, rounds=4)
    for rounds in (1, 10**23):
        refused(flray.resume, begun.folder, rounds=rounds)
    same = flray.resume(begun.folder, rounds=3)
    assert isinstance(same, Result) and same.sha256 == begun.sha256
    method = {"name": "fccl", "variant": "released", "public_size": 16, "public_batch_size": 8}
    photos = {"name": "photos", "size": 8, "samples": 16}
    scheduled = run(1, algorithm=method, public=photos, normalisation="none")
    refused(flray.resume, scheduled.folder, rounds=2)
    assert directory.read(scheduled.folder)["status"] == "finished"
    mistyped("resume", str(begun.folder), "local.lr=1")
    assert parse_rounds(["rounds=7"]) == 7
    refused(parse_rounds, ["rounds=many"])
    refused(parse_rounds, ["rounds=9", "rounds=8"])


def test_what_reads_the_number_of_rounds_says_so() -> None:
    """A method whose file reads ``config.rounds`` has to name the option in `needs_rounds`."""
    for name in registry.algorithms.names():
        method = registry.algorithms.get(name)
        reads = any(
            "config.rounds" in inspect.getsource(base)
            for base in method.__mro__
            if base.__module__.startswith("flray.algorithms.")
        )
        assert reads == (method.needs_rounds is not Algorithm.needs_rounds), name
    for folder in ("functional", "tasks", "federation/worker", "algorithms/common"):
        for path in (Path(flray.__file__).parent / folder).glob("*.py"):
            assert "config.rounds" not in path.read_text(), path
