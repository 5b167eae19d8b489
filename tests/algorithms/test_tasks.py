"""Every method: on every task it runs or says why not, what does nothing says so, its mean is added up in blocks."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from flray import registry, trees
from flray.algorithms.common.aggregation import BlockSum, average_blocks
from flray.data.types import DataSet, Domain
from flray.errors import ConfigError
from flray.federation import FederationSpec
from flray.federation.federation import Federation
from flray.federation.replies import into_blocks
from flray.federation.worker.client_runner import InlineExecutor
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN, Permuted
from tests.helpers import built, cases
from tests.messages import refused

SEGMENTATION, FEW_SHOT = yaml.safe_load(
    """[{data: {name: fundus-synthetic, samples: 5, size: 16, domains: [A, E]},
      model: {name: unet, width: 2, depth: 2}, local: {batch_size: 2}},
    {data: {name: glyphs, classes: 8, unseen: 3, samples: 12, size: 16},
      partition: {name: iid, clients: 2}, model: {name: protonet, width: 2},
      episodes: {way: 3, shot: 2, queries: 2, test: 5}}]"""
)
EEG, MLP = {"name": "eeg-synthetic", "samples": 20}, {"name": "mlp", "hidden": [6], "norm": "batch"}
BINARY = {"data": EEG, "model": MLP}
NUMBERS = {"data": "two-numbers", "model": "two-layer", "local": {"lr": 0.05, "batch_size": 4}}


@registry.register_dataset("two-numbers")
def two_numbers(root: Path, *, kind: str = "right", task: str = "regression") -> DataSet:
    generator = np.random.default_rng(0)
    domains = []
    for client in range(3):
        x = generator.normal(size=(12, 4)) + client
        y: Any = x @ np.array([[1.0, 0.0], [-1.0, 2.0], [0.5, 0.0], [0.0, 1.0]]) + 0.1
        if kind == "nan":
            y[0, 0] = np.nan
        flags, twos = (y > 0).astype(np.uint8), np.full((12, 2), 2, np.uint8)
        y = {"line": y[:, 0], "flags": flags, "twos": twos}.get(kind, y)
        domains.append(Domain(f"c{client}", "random", x, y, x, y))
    names = ("first", "second", "third")[: 3 if kind == "names" else 2]
    return DataSet("two-numbers", tuple(domains), names, (0.0,), (1.0,), task=task)


UNLABELLED = "classification labels public"
TASKS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "segmentation": (SEGMENTATION, "dice", "fundus-synthetic is segm", UNLABELLED),
    "few-shot": (FEW_SHOT, "accuracy", "glyphs is few-shot", "classification public split"),
    "binary": (BINARY, "auc", "", "public"),
    "numbers": (NUMBERS, "r2", "two-numbers is regr", UNLABELLED),
}
"""Settings, metric, what is said of the data, and which needs of a method the task does not meet."""
SAID = {
    "classification": "it needs classification, and {}",
    "labels": "it needs class labels, and {}",
    "public": "needs public data, and this set has none",
    "split": "needs a network with classifier",
}


def world_of(algorithm: Any, task: dict[str, Any], **settings: Any) -> FederationSpec:
    name = algorithm if isinstance(algorithm, str) else algorithm["name"]
    content = {"algorithm": algorithm, **task, **tiny.settings_for(name), **settings}
    content["resources"] = {"gpus_per_actor": 0}
    return built(content)


def needs(name: str) -> frozenset[str]:
    algorithm = registry.algorithms.get(name)
    return frozenset(algorithm(registry.algorithms.params(name)()).needs)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_runs_or_says_what_it_needs(name: str, task: str) -> None:
    """Two rounds: what is learnt is finite and was changed, and the task's metrics are there."""
    settings, metric, data, unmet = TASKS[task]
    missing = [SAID[need].format(data) for need in unmet.split() if need in needs(name)]
    if missing:
        with pytest.raises(ConfigError, match="|".join(missing)):
            world_of(name, settings)
        return
    federation = tiny.federation_of(world_of(name, settings))
    before = federation.sha256()
    metrics = [federation.step().metrics for _ in range(2)][-1]
    assert federation.sha256() != before
    weights = [v for w in federation.server.models.values() for v in w.values()]
    assert all(bool(torch.isfinite(v).all()) for v in weights)
    found = [metrics[f"{view}/local/{metric}"] for view in federation.spec.algorithm.views]
    assert all(np.isfinite(one) and one <= 1 and (one >= 0 or metric == "r2") for one in found)


def test_the_papers_methods_run_where_their_tables_say() -> None:
    """LG-Mix Table 3 has segmentation without FedBABU, FedRep and FedHKD; FedSKC Table I has few-shot learning."""
    on_masks = {"fedavg", "fedbn", "lgmix", "local", "fedper"}
    assert not any(needs(name) & {"classification", "labels"} for name in on_masks)
    assert all("classification" in needs(name) for name in ("fedbabu", "fedrep", "fedhkd"))
    few_shot = {"fedavg", "fedprox", "scaffold", "moon", "fedrcl", "fedopt", "fedskc", "fedproto"}
    assert not any(needs(name) & {"classification", "split"} for name in few_shot)


def test_a_distance_is_worst_where_it_is_largest() -> None:
    metrics = tiny.federation_of(world_of("fedavg", SEGMENTATION)).step().metrics
    for measure, worst in (("dice", min), ("hausdorff95", max), ("hausdorff", max)):
        values = [metrics[f"global/local/{measure}/client/{client}"] for client in "AE"]
        found = {metrics[f"global/local/{measure}/{name}"] for name in ("worst", "worst10")}
        assert found == {worst(values)}


EVEN = tiny.gaussian_clients()
HELD = {"even": EVEN, "skewed": tiny.gaussian_clients(skew=True)}
HELD |= {"many": tiny.gaussian_clients((60, 66, 72)), "few": tiny.gaussian_clients((4, 3, 5))}


def lines_of(algorithm: Any, clients: Any, rounds: int = 4, **settings: Any) -> list[str]:
    """Return what a run says, with a reset in the middle as after a loss."""
    spec, lines = tiny.spec_of(algorithm, clients, rounds=2 * rounds, **settings), list[str]()
    federation = Federation(spec, InlineExecutor(spec), lines.append)
    for _ in range(2):
        for _ in range(rounds):
            federation.step()
        federation.reset()
    assert all("\n" not in line and len(line) < 250 for line in lines)
    return lines


@cases(
    "algorithm, clients, said",
    r"""[{name: fedhkd, threshold: 0.5}, even, 'fedhkd: the largest class of any client has 33.3% of
    its samples, less than algorithm.threshold=0.5'],
    [{name: fedhkd, threshold: 0.25}, even, ''], [{name: fedhkd, threshold: 0}, even, ''],
    [{name: fedhkd, threshold: 0.5}, skewed, ''],
    [{name: fedrs}, even, 'fedrs: every client has every class.*algorithm.graded=true'],
    [{name: fedrs}, skewed, ''], [{name: fedrs, graded: true}, even, ''],
    [&alone {name: fedskc, lcl: false, gda: false, gpr: false}, many, ''],
    [{<<: *alone, gda: true}, many, 'round 1: .*the weights of GDA are equal to five
    digits.*algorithm.sample_scale=fraction'],
    [{<<: *alone, gda: true}, few, ''], [{<<: *alone, gda: true, sample_scale: fraction}, many, ''],
    [&steps {<<: *alone, gpr: true, beta: 0.9999}, even, 'round 2: .*GPR steps by \(1 - beta\) \|rho\| = '],
    [{<<: *steps, review: interpolate}, even, '^((?!multiplies).)*$'],
    [{<<: *steps, beta: 0.5}, even, ''], [{name: fedavg}, even, '']""",
)
def test_it_is_said_once_and_only_where_it_is_so(algorithm: Any, clients: str, said: str) -> None:
    lines = lines_of(algorithm, HELD[clients], local={"lr": 0.01})
    assert len(lines) == bool(said)
    assert not said or re.search(said, lines[0])


def test_a_warning_is_no_part_of_what_is_learnt() -> None:
    """Neither digest nor metrics know of it."""
    spec = tiny.spec_of("fedrs", EVEN)
    loud, quiet = (tiny.federation_of(spec) for _ in range(2))
    quiet.server.warned.add("scale")
    first, second = loud.step().metrics, quiet.step().metrics
    assert loud.sha256() == quiet.sha256() and set(first) == set(second)


REFUSED = [n for n in BUILT_IN if registry.algorithms.get(n).adds_up() == "at the server"]
"""Methods whose server looks at single replies."""


def rounds(name: str, block: Any, count: int = 1, executor: Any = None, **changes: Any) -> Any:
    """Return a federation after some rounds, in blocks of so many clients."""
    settings = {**tiny.settings_for(name), **changes, "aggregation": {"block": block}}
    spec = tiny.spec_of(name, tiny.gaussian_clients((12, 9, 15, 7, 10)), **settings)
    federation = tiny.federation_of(spec, executor and executor(spec))
    for _ in range(count):
        federation.step()
    return federation


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_whose_server_sees_replies_is_refused(name: str) -> None:
    refused(tiny.spec_of, name, aggregation={"block": 2}, **tiny.settings_for(name))


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


@cases("name", "fedavg, fedbn, fedadam, apfl, lgmix, fedskc, scaffold")
def test_neither_order_of_blocks_nor_checkpoint_changes_a_bit(name: str, tmp_path: Path) -> None:
    some = {"participation": {"clients": 4}} if tiny.partial_participation(name) else {}
    permuted = rounds(name, 2, 3, executor=Permuted, **some)
    assert permuted.sha256() == tiny.resumed_from_any_round(permuted.spec, tmp_path)


def test_the_server_gets_one_sum_per_block() -> None:
    size = sum(v.numel() * 8 for v in rounds("fedavg", None, 0).server.model.values())
    for block, messages in ((None, 5), (1, 5), (2, 3), (3, 2), (5, 1), (9, 1)):
        metrics = rounds("fedavg", block, 0).step().metrics
        assert (metrics["bytes/up"], metrics["bytes/down"]) == (messages * size, 5 * size)


def test_blocks_follow_the_client_number_not_the_cohort() -> None:
    federation, sizes = rounds("fedavg", 2, 0, tiny.Noting, participation={"clients": 3}), set()
    calls = federation.executor.calls
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
    replies = [("a", 1.0, 1), ("b", 5.0, 2), ("a", 4.0, 2), ("a", 9.0, 1), ("b", 2.0, 0)]
    for client, (architecture, value, samples) in enumerate(replies):
        sums[client // 3].add(architecture, {"w": torch.tensor([value])}, samples)
    sums[1].add("a", {}, 100)
    packed = [trees.unpack(trees.pack(one.tree())) for one in sums]
    means = {a: mean["w"].item() for a, mean in average_blocks(packed).items()}
    assert means == {"a": 4.5, "b": 5.0}
    assert average_blocks([{}, {}]) == {} and BlockSum().tree() == {}
