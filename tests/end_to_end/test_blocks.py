"""Weights added up near the clients, in blocks: the same bits on any number of actors, and what failures leave out."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.failures import ClientError
from flray.federation.federation import Federation, inline_federation
from flray.federation.messages import SumResult, SumTask
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import PoolPlanner
from flray.federation.spec import FederationSpec
from tests.end_to_end.killing import step_while_an_actor_is_killed
from tests.end_to_end.pool import Pools
from tests.end_to_end.test_failures import BROKEN

everywhere = pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedadam", "fedskc", "scaffold"])


def world_of(digits: dict[str, Any], method: str, **changes: Any) -> FederationSpec:
    """In float64, for the sums of float32 weights times whole numbers are exact as a rule, whatever their order."""
    local = {**digits["local"], "precision": "float64", **changes.pop("local", {})}
    content = {
        **digits,
        "algorithm": method,
        "partition": {"name": "iid", "clients": 10},
        "aggregation": {"block": 3},
        "participation": {"fraction": 0.8},
        "local": local,
        **changes,
    }
    return build_spec(load({"experiment": content}).experiment)


def broken(tmp_cwd: Path, digits: dict[str, Any], method: str, **changes: Any) -> FederationSpec:
    (tmp_cwd / "broken.py").write_text(BROKEN)
    return world_of(digits, method, plugins=["broken.py"], participation={}, **changes)


def inline(spec: FederationSpec, warn: Callable[[str], None] = print) -> Federation:
    federation = inline_federation(spec, warn)
    for _ in range(spec.config.rounds):
        federation.step()
    return federation


@pytest.mark.slow
@everywhere
@pytest.mark.parametrize("actors", [2])
def test_number_of_actors_does_not_matter(
    digits: dict[str, Any], pools: Pools, method: str, actors: int
) -> None:
    spec = world_of(digits, method)
    tmp_cwd, there = inline_federation(spec, print), pools[actors].federation(spec)
    for _ in range(spec.config.rounds):
        ours, theirs = tmp_cwd.step().metrics, there.step().metrics
        same = [
            n for n in ours if not n.startswith(("time/", "memory/", "system/", "train/seconds"))
        ]
        assert {n: ours[n] for n in same} == {n: theirs[n] for n in same}
        assert "bytes/up" in same and "train/loss" in same
    assert tmp_cwd.sha256() == there.sha256()
    assert tmp_cwd.sha256() != inline(world_of(digits, method, aggregation={})).sha256()


@everywhere
def test_restored_from_a_checkpoint(tmp_path: Path, digits: dict[str, Any], method: str) -> None:
    spec = world_of(digits, method)
    first, second = inline_federation(spec, print), inline_federation(spec, print)
    first.step()
    first.save(tmp_path, 1)
    assert second.restore(tmp_path) == 1
    for _ in range(2):
        second.step()
    assert second.sha256() == inline(spec).sha256()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedskc"])
def test_client_actor_killed_in_the_middle_of_a_block(
    digits: dict[str, Any], pools: Pools, method: str
) -> None:
    spec = world_of(digits, method, local={"epochs": 5})
    executor = pools[2].executor_for(spec)
    federation = Federation(spec, executor)
    federation.step()
    victim = step_while_an_actor_is_killed(federation, executor.pids())
    federation.step()
    assert victim not in executor.pids()
    assert federation.sha256() == inline(spec).sha256()


@pytest.mark.slow
def test_client_actor_killed_before_it_adds_up(
    digits: dict[str, Any], pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world_of(digits, "fedskc")
    executor = pools[2].executor_for(spec)
    federation, add_up, victims = Federation(spec, executor), executor.add_up, []

    def kill_one(tasks: Sequence[SumTask]) -> Iterator[SumResult]:
        if not victims:
            victims.append(min(executor.pids()))
            os.kill(victims[0], signal.SIGKILL)
        return add_up(tasks)

    monkeypatch.setattr(executor, "add_up", kill_one)
    for _ in range(spec.config.rounds):
        federation.step()
    assert victims and victims[0] not in executor.pids()
    assert federation.sha256() == inline(spec).sha256()


@pytest.mark.parametrize("method", ["fedavg", "fedskc", "scaffold"])
def test_one_sum_of_a_block_reaches_the_server(digits: dict[str, Any], method: str) -> None:
    up = {
        block: inline_federation(world_of(digits, method, aggregation={"block": block}), print)
        .step()
        .metrics["bytes/up"]
        for block in (None, 1, 10)
    }
    assert 0.99 < up[1] / up[None] < 1.01
    assert 7.9 < up[None] / up[10] < 8.1  # eight clients in one block


@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_client_that_fails_is_left_out_of_its_block_and_no_other(
    tmp_cwd: Path, digits: dict[str, Any], executor: str, request: pytest.FixtureRequest
) -> None:
    lines: list[str] = []
    spec = broken(
        tmp_cwd,
        digits,
        "breaks",
        faults={"on_client_error": "skip"},
        rounds=2,
        resources={"actors": 2},
    )
    federation: Federation | RayFederation
    if executor == "inline":
        federation = inline_federation(spec, lines.append)
    else:
        federation = RayFederation(
            spec, PoolPlanner(spec, request.getfixturevalue("ray_here")).plan(), lines.append
        )
    try:
        metrics = [federation.step().metrics for _ in range(2)]
        assert federation.sha256() == inline(spec).sha256()
    finally:
        federation.close()
    assert [m["cohort/left_out"] for m in metrics] == [0, 1]
    assert [m["bytes/up"] for m in metrics] == [metrics[0]["bytes/up"]] * 2  # its block still came
    (line,) = lines
    assert (
        "left out: client 2 (client2), round 2, train: ValueError: this batch is not to my taste at"
        in line
    )
    # Left out by the plain mean it leaves the same model, but for the last bits of other sums.
    plain = inline(
        broken(
            tmp_cwd, digits, "breaks", faults={"on_client_error": "skip"}, rounds=2, aggregation={}
        )
    )
    blocked = inline(spec)
    for name, value in plain.server.model.items():
        torch.testing.assert_close(blocked.server.model[name], value, rtol=1e-12, atol=1e-12)


def test_a_client_that_fails_ends_the_run_at_once(tmp_cwd: Path, digits: dict[str, Any]) -> None:
    federation = inline_federation(
        broken(tmp_cwd, digits, "breaks", aggregation={"block": 10}), print
    )
    federation.step()
    with pytest.raises(
        ClientError,
        match=r"^client 2 \(client2\), round 2, train: ValueError: this .*broken.py:\d+",
    ):
        federation.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "faults", "left_out", "text"),
    [
        ("hangs", {"round_timeout": 12.0}, {0, 1, 2}, "round 2, train: no answer within 12 s"),
        (
            "crashes",
            {"on_client_error": "skip", "attempts": 2},
            {0, 1, 2},
            "round 1, train: its actor died 2 times while running this block",
        ),
    ],
)
def test_a_block_that_hangs_or_dies_is_left_out(
    tmp_cwd: Path,
    digits: dict[str, Any],
    ray_here: dict[str, float],
    method: str,
    faults: dict[str, Any],
    left_out: set[int],
    text: str,
) -> None:
    lines: list[str] = []
    spec = broken(tmp_cwd, digits, method, faults=faults, resources={"actors": 2})
    federation = RayFederation(spec, PoolPlanner(spec, ray_here).plan(), lines.append)
    try:
        metrics = federation.step().metrics
        if method == "hangs":
            assert not lines
            metrics = federation.step().metrics
    finally:
        federation.close()
    named = {int(line.split("client ")[1].split()[0]) for line in lines if text in line}
    # The hanging block's actor had others waiting behind it, which time out too.
    assert named == left_out if method == "crashes" else left_out <= named < set(range(10))
    assert metrics["cohort/left_out"] == len(named) == len(lines)
