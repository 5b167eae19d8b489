"""Segmentation, few-shot learning and EEG from a YAML file to figures, on small generated data."""

import json
from pathlib import Path
from typing import Any

import pytest

import flray
from flray.config.loader import load
from flray.data.loading import load_dataset
from flray.federation import SharedDataset, partition_summary
from flray.federation.building import build_spec
from flray.federation.evaluation import collect_diagnostics
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from tests.end_to_end.pool import Pools, inline_digest
from tests.helpers import INLINE, built, printed, tracked
from tests.messages import refused

FUNDUS: dict[str, Any] = {"name": "fundus", "rounds": 6, "algorithm": "fedavg", **INLINE}
FUNDUS["data"] = {"name": "fundus-synthetic", "samples": 20, "size": 32}
FUNDUS["model"] = {"name": "unet", "width": 8, "depth": 3}
FUNDUS["local"] = {"epochs": 2, "batch_size": 4, "optimizer": "adam", "lr": 0.002}
FUNDUS["local"]["augment"] = "flip"
GLYPHS: dict[str, Any] = {"name": "glyphs", "rounds": 4, "algorithm": "fedavg", **INLINE}
GLYPHS["data"] = {"name": "glyphs", "classes": 30, "unseen": 10, "samples": 30}
GLYPHS["partition"] = {"name": "dirichlet-equal", "clients": 4, "alpha": 1.0}
GLYPHS |= {"model": {"name": "protonet", "width": 16}, "episodes": {"test": 50}}
GLYPHS["local"] = {"epochs": 2, "lr": 0.05}
EEG: dict[str, Any] = {"name": "eeg", "rounds": 5, "algorithm": "fedbn", **INLINE}
EEG |= {"data": "eeg-synthetic", "local": {"batch_size": 16, "lr": 0.05}}
EEG["model"] = {"name": "mlp", "hidden": [32], "norm": "batch"}


SMALL_FUNDUS: dict[str, Any] = {**FUNDUS, "model": {"name": "unet", "width": 2, "depth": 2}}
SMALL_FUNDUS["data"] = {"name": "fundus-synthetic", "samples": 5, "size": 16}
SMALL_GLYPHS: dict[str, Any] = {**GLYPHS, "partition": {"name": "iid", "clients": 2}}
SMALL_GLYPHS["data"] = {"name": "glyphs", "classes": 8, "unseen": 3, "samples": 12, "size": 16}
SMALL_GLYPHS["model"] = {"name": "protonet", "width": 2}
SMALL_GLYPHS["episodes"] = {"way": 3, "shot": 2, "queries": 2, "test": 5}


@pytest.mark.slow
def test_dice_rises_over_the_rounds(tmp_cwd: Path) -> None:
    history = flray.run({"experiment": {**FUNDUS, "algorithm": "lgmix"}}).history
    dice, distance = (history[f"personal/local/{x}"].to_numpy() for x in ("dice", "hausdorff95"))
    assert dice[-1] > 0.45 and dice[-1] > dice[0] + 0.25 and distance[-1] < distance[0]
    assert history["train/loss"].iloc[-1] < history["train/loss"].iloc[0] - 0.1


def test_unseen_characters_are_told_apart(tmp_cwd: Path) -> None:
    accuracy = flray.run({"experiment": GLYPHS}).history["global/common/accuracy"]
    assert accuracy.iloc[-1] > 0.6 and accuracy.iloc[-1] > accuracy.iloc[0] + 0.05  # chance is 0.2


def test_auc_of_eeg(tmp_cwd: Path) -> None:
    result = flray.run({"experiment": EEG})
    assert result.metric == "personal/local/accuracy" and result.metrics["personal/local/auc"] > 0.8
    for name in ("auc", "f1", "sensitivity", "specificity"):
        assert {f"personal/local/{name}/client/{c}" for c in "ABCD"} <= result.metrics.keys()


def test_from_the_command_line(tmp_cwd: Path, store: str) -> None:
    small = {**SMALL_FUNDUS, "rounds": 2, "tracking": {"uri": store, "experiment": "fundus"}}
    Path("fundus.yaml").write_text(json.dumps({"experiment": small}))
    shown = printed("run", "fundus.yaml")
    assert "round 2/2  global/common/dice 0." in shown
    assert "global/common: dice_disc " in shown and ", hausdorff95_cup " in shown
    (run,) = Path("runs/fundus").iterdir()
    printed("sync", str(run))  # under load more is left than a run waits for
    names = ("curves", "curves-hausdorff95", "clients", "partition")
    assert {p.name for p in (run / "figures").iterdir()} == {f"{name}.png" for name in names}
    (run,) = tracked(store, "fundus")
    shares, distances = {"common/dice", "local/dice_cup/client/E"}, {"local/hausdorff/worst"}
    names = shares | distances | {"common/hausdorff95_disc"}
    assert {f"global/{name}" for name in names} <= run.data.metrics.keys()


def test_figures_of_classes_are_left_out_of_other_tasks() -> None:
    """What reports keep of every run exists for masks too; what they draw of logits does not."""
    spec = built(SMALL_FUNDUS)
    kept = partition_summary(spec.data)
    assert kept["classes"] == ["with masks of disc, cup"]
    assert [client["train"] for client in kept["clients"]] == [[4]] * 6
    assert collect_diagnostics(Federation(spec, InlineExecutor(spec))) == {}


def test_masks_lie_in_the_shared_samples_alone() -> None:
    content = {**FUNDUS, "data": {"name": "fundus-synthetic", "samples": 10, "size": 16}}
    small = load({"experiment": {**content, "rounds": 1}}).experiment
    shared = SharedDataset.of(load_dataset(small.data.name, small.data.options))
    assert shared.outline.domains[1].train_y.nbytes == 0
    assert len(shared.outline.domains[1].train_y) == 8
    assert shared.samples.y.nbytes == 60 * 2 * 16 * 16
    alone, spec = build_spec(small), build_spec(small, shared)
    assert spec.without_samples().data.y.nbytes == 0
    assert spec.without_samples().with_samples(shared.samples).data.y is shared.samples.y
    assert alone.data.partition_fingerprint == spec.data.partition_fingerprint
    assert inline_digest(alone) == inline_digest(spec)


def test_ray_gives_the_same_bits(pools: Pools) -> None:
    for experiment, algorithm in ((SMALL_FUNDUS, "lgmix"), (SMALL_GLYPHS, "fedskc")):
        pools[2].same_as_inline(built(experiment, algorithm=algorithm, rounds=2))


def test_a_sweep_minimises_distances() -> None:
    def mode(**sweep: str) -> str:
        space = {"experiment.seed": {"grid": [0, 1]}}
        return load({"experiment": FUNDUS, "space": space, "sweep": sweep}).sweep.mode

    assert mode(metric="global/common/hausdorff95") == "min"
    assert mode(metric="global/common/dice") == "max"
    assert mode(metric="train/own", mode="min") == "min"
    refused(mode, metric="global/common/dice", mode="min")
    refused(mode, metric="personal/local/hausdorff", mode="max")


def test_what_cannot_be_is_refused(tmp_cwd: Path) -> None:
    for model in ("lenet", {"name": "unet", "depth": 6}):
        refused(flray.run, {"experiment": {**FUNDUS, "rounds": 1, "model": model}})
    refused(flray.run, {"experiment": {**FUNDUS, "rounds": 1, "partition": "dirichlet"}})
