"""A method that is on and does nothing says so: in one line, once in a run, inline and on Ray."""

import re
from typing import Any

import pytest

from flray import registry
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from tests.algorithms import helpers as tiny

EVEN = tiny.gaussian_clients((12, 9, 15))
SKEWED = tiny.gaussian_clients((12, 9, 15), skew=True)
MANY = tiny.gaussian_clients((60, 66, 72))


def lines_of(
    algorithm: dict[str, Any], clients: list[tiny.Arrays], rounds: int = 4, **settings: Any
) -> list[str]:
    """Return what a run says, with a reset in the middle as after a loss."""
    spec, lines = tiny.spec_of(algorithm, clients, rounds=2 * rounds, **settings), list[str]()
    federation = Federation(spec, InlineExecutor(spec), lines.append)
    for _ in range(2):
        for _ in range(rounds):
            federation.step()
        federation.reset()
    assert all("\n" not in line and len(line) < 250 for line in lines)
    return lines


ALONE = {"name": "fedskc", "lcl": False, "gda": False, "gpr": False}
STEPS = {**ALONE, "gpr": True, "beta": 0.9999}


@pytest.mark.parametrize(
    ("algorithm", "clients", "said"),
    [
        (
            {"name": "fedhkd", "threshold": 0.5},
            EVEN,
            "fedhkd: the largest class of any client has 33.3% of its samples, less than algorithm.threshold=0.5",
        ),
        ({"name": "fedhkd", "threshold": 0.25}, EVEN, ""),
        ({"name": "fedhkd", "threshold": 0}, EVEN, ""),
        ({"name": "fedhkd", "threshold": 0.5}, SKEWED, ""),
        ({"name": "fedrs"}, EVEN, "fedrs: every client has every class.*algorithm.graded=true"),
        ({"name": "fedrs"}, SKEWED, ""),
        ({"name": "fedrs", "graded": True}, EVEN, ""),
        (
            {**ALONE, "gda": True},
            MANY,
            "round 1: .*the weights of GDA are equal to five digits.*algorithm.sample_scale=fraction",
        ),
        ({**ALONE, "gda": True}, tiny.gaussian_clients((4, 3, 5)), ""),
        ({**ALONE, "gda": True, "sample_scale": "fraction"}, MANY, ""),
        (ALONE, MANY, ""),
        (STEPS, EVEN, r"round 2: .*GPR steps by \(1 - beta\) \|rho\| = "),
        ({**STEPS, "review": "interpolate"}, EVEN, r"^((?!multiplies).)*$"),
        ({**STEPS, "beta": 0.5}, EVEN, ""),
        ({"name": "fedavg"}, EVEN, ""),
    ],
    ids=str,
)
def test_it_is_said_once_with_what_helps_and_only_where_it_is_so(
    algorithm: dict[str, Any], clients: list[tiny.Arrays], said: str
) -> None:
    lines = lines_of(algorithm, clients, local={"lr": 0.01})
    assert len(lines) == bool(said)
    assert not said or re.search(said, lines[0])


def test_what_is_said_to_do_nothing_does_nothing() -> None:
    plain = tiny.digest("fedavg", EVEN, rounds=2)
    for method in ({"name": "fedrs"}, {"name": "fedhkd", "threshold": 0.5}):
        assert tiny.digest(method, EVEN, rounds=2) == plain
    uniform = tiny.run("fedavg", MANY, rounds=2, aggregation={"weights": "uniform"})
    gda = tiny.run({**ALONE, "gda": True}, MANY, rounds=2)
    tiny.close(gda.server.model, uniform.server.model, rtol=0, atol=1e-5)


def test_a_warning_is_no_part_of_what_is_learnt() -> None:
    """Neither digest nor metrics know of it."""
    spec = tiny.spec_of({"name": "fedrs"}, EVEN)
    loud, quiet = (Federation(spec, InlineExecutor(spec), list[str]().append) for _ in range(2))
    quiet.server.warned.add("scale")
    first, second = loud.step().metrics, quiet.step().metrics
    assert loud.sha256() == quiet.sha256() and set(first) == set(second)


def test_a_method_of_ones_own_can_say_it_too() -> None:
    @registry.register_algorithm("idle")
    class Idle(registry.algorithms.get("fedavg")):  # type: ignore[misc]
        """Says that it is idle."""

        def aggregate(self, server: Any, stage: Any, replies: Any) -> None:
            server.warn("idle", f"round {server.round + 1}: nothing to do")
            super().aggregate(server, stage, replies)

    try:
        assert lines_of({"name": "idle"}, EVEN) == ["idle: round 1: nothing to do"]
    finally:
        del registry.algorithms._entries["idle"]
