"""A cluster whose CPUs other jobs hold: plans use what is free, and what waits says so."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from flray import api
from flray.federation.ray_backend import nodes
from flray.runs import runner
from tests.clusters import joined_cluster
from tests.helpers import Said, Settings

pytestmark = pytest.mark.slow
Hold = Callable[[int], Any]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with joined_cluster({"num_cpus": 3}):
        yield


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Hold CPUs with an actor, until the test ends or the actor is killed."""
    held: list[Any] = []

    def start(cpus: int) -> Any:
        actor: Any = ray.remote(dict).options(num_cpus=cpus).remote()  # of another job
        ray.get(actor.__ray_ready__.remote(), timeout=120)
        held.append(actor)
        return actor

    yield start
    for actor in held:
        ray.kill(actor)


class Awaited(Said):
    """Another job, which ends when something waits for it."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.other = other

    def say(self, line: str) -> None:
        super().say(line)
        if "waits for room" in line:
            ray.kill(self.other)


def experiment(digits: Settings, **resources: Any) -> Settings:
    return {**digits, "rounds": 1, "algorithm": "fedavg", "resources": resources}


def sweep(digits: Settings, **resources: Any) -> dict[str, Any]:
    choice = {"space": {"local.lr": {"grid": [0.05]}}, "sweep": {"metric": "auto"}}
    return {"experiment": experiment(digits, **resources), **choice}


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.timeout(300)
def test_plans_are_for_what_others_leave(tmp_cwd: Path, digits: Settings, hold: Hold) -> None:
    hold(1)
    said = Said()
    runner.run({"experiment": experiment(digits)}, progress=said)
    (plan,) = said.find("others hold 1 of 3 CPUs")
    assert "-> 2 actors, 1 CPU each" in plan
    said = Said()
    result = api.tune(sweep(digits), progress=said)
    assert list(result.results["status"]) == ["finished"] and said.find("others hold 1 of 3 CPUs")
    assert not said.find("waits for room")


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_whatever_has_no_room_says_so_and_goes_on_when_there_is_some(
    tmp_cwd: Path, digits: Settings, hold: Hold, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(nodes, "WAIT_SECONDS", 0.5)
    said = Awaited(hold(3))
    if kind == "run":
        runner.run({"experiment": experiment(digits)}, progress=said)
    else:
        result = api.tune(sweep(digits, actors=1, cpus_per_actor=2), progress=said)
        assert list(result.results["status"]) == ["finished"]
    (line,) = said.find("waits for room")
    who, needs = ("the run", 1) if kind == "run" else ("trial 0001", 2)
    assert line == (
        f"{who} waits for room: it needs {needs} CPU (0 of the cluster's 3 are free); "
        "`ray status` shows who holds the others"
    )
