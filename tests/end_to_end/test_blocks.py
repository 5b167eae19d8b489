"""Weights added up near the clients, in blocks: the same bits on any number of actors, and what failures leave out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flray.federation.federation import Federation, inline_federation
from flray.federation.ray_backend.nodes import ship_user_modules
from flray.federation.spec import FederationSpec
from tests.end_to_end.pool import Pools, dies_once, kill_an_actor, pids
from tests.end_to_end.test_failures import BROKEN, TIMEOUT
from tests.helpers import built
from tests.messages import refused


def world_of(digits: dict[str, Any], method: str, **changes: Any) -> FederationSpec:
    """In float64, for the sums of float32 weights times whole numbers are exact as a rule, whatever their order."""
    local = {**digits["local"], "precision": "float64", **changes.pop("local", {})}
    blocks = {"partition": {"name": "iid", "clients": 10}, "aggregation": {"block": 3}}
    some = {"participation": {"fraction": 0.8}, "local": local, "algorithm": method}
    content = {**digits, **blocks, **some, **changes}
    return built(content)


def broken(tmp_cwd: Path, digits: dict[str, Any], method: str, **changes: Any) -> FederationSpec:
    (tmp_cwd / "broken.py").write_text(BROKEN)
    return world_of(digits, method, plugins=["broken.py"], participation={}, **changes)


def inline(spec: FederationSpec, warn: Callable[[str], None] = print) -> Federation:
    federation = inline_federation(spec, warn)
    for _ in range(spec.config.rounds):
        federation.step()
    return federation


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedbn", "fedskc", "scaffold"])
def test_number_of_actors_does_not_matter(
    digits: dict[str, Any], pools: Pools, method: str
) -> None:
    spec = world_of(digits, method)
    there, same = pools[2].same_as_inline(spec)
    assert {"bytes/up", "train/loss"} <= same
    assert there.sha256() != inline(world_of(digits, method, aggregation={})).sha256()


@pytest.mark.slow
def test_client_actor_killed_in_the_middle_of_a_block(
    digits: dict[str, Any], pools: Pools, tmp_path: Path
) -> None:
    alone = world_of(digits, "fedbn", participation={})
    dying = dies_once("fedbn", tmp_path, client=4)  # the second of its block
    spec = world_of(digits, dying.pop("algorithm"), participation={}, **dying)
    ship_user_modules()
    federation = pools[2].run_federation(spec)
    assert int((tmp_path / "victim").read_text()) not in pids(pools[2].executor_for(spec))
    assert federation.sha256() == inline(alone).sha256()


@pytest.mark.slow
def test_client_actor_killed_before_it_adds_up(
    digits: dict[str, Any], pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world_of(digits, "fedskc")
    executor = pools[2].executor_for(spec)
    federation = Federation(spec, executor)
    federation.step()
    victims = kill_an_actor(executor, lambda job: job.client_task.kind == "sum", monkeypatch)
    for _ in range(2):
        federation.step()
    assert victims and victims[0] not in pids(executor)
    assert federation.sha256() == inline(spec).sha256()


@pytest.mark.parametrize("method", ["fedskc", "scaffold"])
def test_one_sum_of_a_block_reaches_the_server(digits: dict[str, Any], method: str) -> None:
    up = {}
    for block in (None, 1, 10):
        spec = world_of(digits, method, aggregation={"block": block})
        up[block] = inline_federation(spec, print).step().metrics["bytes/up"]
    assert 0.99 < up[1] / up[None] < 1.01
    assert 7.9 < up[None] / up[10] < 8.1  # eight clients in one block


def test_a_client_that_fails_is_left_out_of_its_block_and_no_other(
    tmp_cwd: Path, digits: dict[str, Any]
) -> None:
    lines: list[str] = []
    changes = {"faults": {"on_client_error": "skip"}, "rounds": 2}
    blocked = inline_federation(broken(tmp_cwd, digits, "breaks", **changes), lines.append)
    metrics = [blocked.step().metrics for _ in range(2)]
    assert [m["cohort/left_out"] for m in metrics] == [0, 1]
    assert [m["bytes/up"] for m in metrics] == [metrics[0]["bytes/up"]] * 2  # its block still came
    (line,) = lines
    assert "left out: client 2 (client2), round 2, train: ValueError: this batch is not" in line
    # Left out by the plain mean it leaves the same model, but for the last bits of other sums.
    plain = inline(broken(tmp_cwd, digits, "breaks", aggregation={}, **changes))
    for name, value in plain.server.model.items():
        torch.testing.assert_close(blocked.server.model[name], value, rtol=1e-12, atol=1e-12)


def test_a_client_that_fails_ends_the_run_at_once(tmp_cwd: Path, digits: dict[str, Any]) -> None:
    federation = inline_federation(
        broken(tmp_cwd, digits, "breaks", aggregation={"block": 10}), print
    )
    federation.step()
    refused(federation.step)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "faults", "words"),
    [
        (
            "crashes",
            {"on_client_error": "skip", "attempts": 2},
            "round 1, train: its actor died 2 times while running this block",
        ),
        ("hangs", {"round_timeout": TIMEOUT}, f"round 2, train: no answer within {TIMEOUT:g} s"),
    ],
)
def test_a_block_that_dies_or_hangs_is_left_out(
    tmp_cwd: Path,
    digits: dict[str, Any],
    pools: Pools,
    method: str,
    faults: dict[str, Any],
    words: str,
) -> None:
    spec = broken(tmp_cwd, digits, method, faults=faults)
    ship_user_modules()
    lines: list[str] = []
    federation = pools[2].federation(spec, lines.append)
    metrics = federation.step().metrics
    if method == "hangs":
        assert not lines
        metrics = federation.step().metrics
    named = {int(line.split("client ")[1].split()[0]) for line in lines if words in line}
    # The hanging block's actor had others waiting behind it, which time out too.
    assert named == {0, 1, 2} if method == "crashes" else {0, 1, 2} <= named < set(range(10))
    assert metrics["cohort/left_out"] == len(named) == len(lines)
