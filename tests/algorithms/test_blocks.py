"""The mean added up in blocks of clients: which methods allow it, and that it is the mean."""

from pathlib import Path
from typing import Any

import pytest
import torch

from flray import registry, trees
from flray.algorithms.common.aggregation import BlockSum, average_blocks
from flray.errors import ConfigError
from flray.federation.federation import Federation
from flray.federation.replies import into_blocks
from flray.federation.worker.client_runner import InlineExecutor
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN, Permuted

REFUSED = [n for n in BUILT_IN if registry.algorithms.get(n).adds_up() == "at the server"]
"""Methods whose server looks at single replies."""
SIZES = (12, 9, 15, 7, 10)


def fresh(
    name: str, block: int | None, executor: Any = InlineExecutor, **changes: Any
) -> Federation:
    aggregation = {"block": block, **changes.pop("aggregation", {})}
    settings = {**tiny.settings_for(name), **changes, "aggregation": aggregation}
    spec = tiny.spec_of(name, tiny.gaussian_clients(SIZES), **settings)
    return tiny.federation_of(spec, executor(spec))


def rounds(name: str, block: int | None, count: int = 1, **changes: Any) -> Federation:
    federation = fresh(name, block, **changes)
    for _ in range(count):
        federation.step()
    return federation


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_whose_server_sees_replies_is_refused(name: str) -> None:
    said = rf"found 2; the server of {name} looks at single replies.*choose one of apfl, .*fedavg"
    with pytest.raises(ConfigError, match="experiment.aggregation.block: " + said):
        tiny.spec_of(name, aggregation={"block": 2}, **tiny.settings_for(name))


@pytest.mark.parametrize("name", sorted({*BUILT_IN} - {*REFUSED}))
def test_it_is_the_mean(name: str) -> None:
    """To the accuracy of float64; in blocks of one client or of all, to the bit."""
    whole, blocked = rounds(name, None), rounds(name, 2)
    for architecture, weights in whole.server.models.items():
        tiny.close(blocked.server.models[architecture], weights, rtol=1e-12)
    for block in (1, 5):
        assert rounds(name, block).sha256() == whole.sha256()


def test_the_bits_depend_on_the_blocks() -> None:
    assert len({tiny.models_sha(rounds("fedavg", block, 3)) for block in (1, 2, 3)}) == 3


@pytest.mark.parametrize(
    "name", ["fedavg", "fedbn", "fedadam", "apfl", "lgmix", "fedskc", "scaffold"]
)
def test_neither_the_order_of_the_blocks_nor_a_checkpoint_changes_a_bit(
    name: str, tmp_path: Path
) -> None:
    some = {"participation": {"clients": 4}} if tiny.partial_participation(name) else {}
    permuted = rounds(name, 2, 3, executor=Permuted, **some)
    assert permuted.sha256() == tiny.resumed_from_any_round(permuted.spec, tmp_path)


def test_the_server_gets_one_sum_per_block() -> None:
    size = sum(v.numel() * 8 for v in fresh("fedavg", None).server.model.values())
    for block, messages in ((None, 5), (1, 5), (2, 3), (3, 2), (5, 1), (9, 1)):
        metrics = fresh("fedavg", block).step().metrics
        assert (metrics["bytes/up"], metrics["bytes/down"]) == (messages * size, 5 * size)


def test_blocks_follow_the_client_number_not_the_cohort() -> None:
    federation = fresh("fedavg", 2, executor=tiny.Noting, participation={"clients": 3})
    calls: list[Any] = federation.executor.calls  # type: ignore[attr-defined]
    sizes = set[int]()
    for _ in range(6):
        calls.clear()
        federation.step()
        (blocks,) = (blocks for blocks in calls if all(block.summed for block in blocks))
        seen = [[job.client_task.client for job in block.jobs] for block in blocks]
        assert [client for block in seen for client in block] == federation.server.cohort
        assert all(len({client // 2 for client in block}) == 1 for block in seen)
        sizes.add(len(seen))
    assert {2, 3} <= sizes and into_blocks([], 2) == []


def test_several_architectures_in_one_block() -> None:
    sums = [BlockSum(), BlockSum()]
    for client, (architecture, value, samples) in enumerate(
        [("a", 1.0, 1), ("b", 5.0, 2), ("a", 4.0, 2), ("a", 9.0, 1), ("b", 2.0, 0)]
    ):
        sums[client // 3].add(architecture, {"w": torch.tensor([value])}, samples)
    sums[1].add("a", {}, 100)
    packed = [trees.unpack(trees.pack(one.tree())) for one in sums]
    means = {a: mean["w"].item() for a, mean in average_blocks(packed).items()}
    assert means == {"a": 4.5, "b": 5.0}
    assert average_blocks([{}, {}]) == {} and BlockSum().tree() == {}
