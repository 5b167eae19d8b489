"""The mean added up in blocks of clients: which methods allow it, and that it is the mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from flray import registry, trees
from flray.algorithms.common.aggregation import BlockSum, average_blocks
from flray.errors import ConfigError
from flray.federation.executor import InlineExecutor
from flray.federation.federation import Federation
from flray.federation.messages import TaskBlock, TaskBlockResult
from flray.federation.replies import into_blocks
from tests.algorithms import helpers as tiny

ABLE = (
    "apfl",
    "fedadagrad",
    "fedadam",
    "fedalt",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedbn",
    "fedopt",
    "fedper",
    "fedprox",
    "fedrcl",
    "fedrep",
    "fedrod",
    "fedrs",
    "fedsim",
    "fedyogi",
    "l2sgd",
    "lgmix",
    "local",
    "moon",
    "perfedavg",
    "pooled",
)
WAITED = ("copa", "fedco2", "fedhkd", "fednh", "fedproc", "fedskc", "scaffold")
"""Added up when all have replied: what weighs them follows from every reply, or they send more besides."""
BUILT_IN = sorted(set(registry.algorithms.names()) - set(registry.algorithms.added()))
SIZES = (12, 9, 15, 7, 10)


def rounds(
    name: str,
    block: int | None,
    count: int = 1,
    executor: type[InlineExecutor] = InlineExecutor,
    **changes: Any,
) -> Federation:
    settings = {**tiny.settings_for(name), **changes}
    spec = tiny.spec_of(
        name, tiny.gaussian_clients(SIZES), aggregation={"block": block}, **settings
    )
    federation = tiny.federation_of(spec, executor(spec))
    for _ in range(count):
        federation.step()
    return federation


def test_the_methods_that_allow_it_are_these() -> None:
    when: dict[str, list[str]] = {}
    for name in BUILT_IN:
        when.setdefault(registry.algorithms.get(name).adds_up(), []).append(name)
    assert tuple(when["as clients train"]) == ABLE
    assert tuple(when["when all have replied"]) == WAITED


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {*ABLE, *WAITED}))
def test_a_method_whose_server_sees_replies_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"experiment.aggregation.block: found 2; the server of {name} looks at "
        "single replies.*choose one of apfl, .*fedavg",
    ):
        tiny.spec_of(name, aggregation={"block": 2}, **tiny.settings_for(name))


@pytest.mark.parametrize("name", ABLE + WAITED)
def test_is_the_mean_to_the_accuracy_of_float64(name: str) -> None:
    whole, blocked = rounds(name, None), rounds(name, 2)
    for architecture, weights in whole.server.models.items():
        tiny.assert_weights(blocked.server.models[architecture], weights)


@pytest.mark.parametrize("name", ABLE + WAITED)
@pytest.mark.parametrize("block", [1, 5])
def test_blocks_of_one_client_or_of_all_have_the_bits_of_the_plain_mean(
    name: str, block: int
) -> None:
    assert rounds(name, None, 2).sha256() == rounds(name, block, 2).sha256()


def test_the_bits_depend_on_the_blocks() -> None:
    assert len({tiny.models_sha(rounds("fedavg", block, 3)) for block in (1, 2, 3)}) == 3


class Permuted(InlineExecutor):
    """Runs the last block first, and hands the results on in the blocks' order."""

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None
    ) -> Iterator[TaskBlockResult]:
        yield from reversed(list(super().run_blocks(list(reversed(blocks)), timeout)))


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedadam", "apfl", "lgmix"])
def test_the_order_in_which_blocks_are_played_changes_no_bit(name: str) -> None:
    some = (
        {}
        if "all_clients" in registry.algorithms.get(name).needs
        else {"participation": {"clients": 4}}
    )
    assert rounds(name, 2, 3, Permuted, **some).sha256() == rounds(name, 2, 3, **some).sha256()


def test_the_server_gets_one_sum_per_block() -> None:
    size = sum(v.numel() * 8 for v in rounds("fedavg", None, 0).server.model.values())
    for block, messages in ((None, 5), (1, 5), (2, 3), (3, 2), (5, 1), (9, 1)):
        spec = tiny.spec_of("fedavg", tiny.gaussian_clients(SIZES), aggregation={"block": block})
        metrics = tiny.federation_of(spec).step().metrics
        assert (metrics["bytes/up"], metrics["bytes/down"]) == (messages * size, 5 * size)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_blocks_are_weighed_by_their_clients(weights: str) -> None:
    plain = {"weights": weights, "block": None}
    whole, blocked = (
        tiny.fresh("fedavg", tiny.gaussian_clients(SIZES), aggregation={**plain, "block": block})
        for block in (None, 2)
    )
    for federation in (whole, blocked):
        federation.step()
    tiny.assert_weights(blocked.server.model, whole.server.model)


def test_blocks_follow_the_client_number_not_the_cohort() -> None:
    federation = rounds("fedavg", 2, 0, participation={"clients": 3})
    seen: list[list[list[int]]] = []
    run_blocks = federation.executor.run_blocks

    def watched(
        blocks: Sequence[TaskBlock], timeout: float | None = None
    ) -> Iterator[TaskBlockResult]:
        seen.append([[job.client_task.client for job in block.jobs] for block in blocks])
        return run_blocks(blocks, timeout)

    federation.executor.run_blocks = watched  # type: ignore[method-assign]
    for _ in range(6):
        federation.step()
        assert [client for block in seen[-1] for client in block] == federation.server.cohort
    assert all(len({client // 2 for client in block}) == 1 for blocks in seen for block in blocks)
    assert any(len(blocks) == 3 for blocks in seen) and any(len(blocks) == 2 for blocks in seen)
    assert into_blocks([], 2) == []


def test_several_architectures_in_one_block() -> None:
    sums = [BlockSum(), BlockSum()]
    for client, (architecture, value, samples) in enumerate(
        [("a", 1.0, 1), ("b", 5.0, 2), ("a", 4.0, 2), ("a", 9.0, 1), ("b", 2.0, 0)]
    ):
        sums[client // 3].add(architecture, {"w": torch.tensor([value])}, samples)
    sums[1].add("a", {}, 100)
    packed = [trees.unpack(trees.pack(one.tree())) for one in sums]
    assert {a: mean["w"].item() for a, mean in average_blocks(packed).items()} == {
        "a": 4.5,
        "b": 5.0,
    }
    assert average_blocks([{}, {}]) == {} and BlockSum().tree() == {}
