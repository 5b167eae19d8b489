"""Each door for a task, loss, optimiser, data or unequal work of the user: both executors, identity, a kill."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.ray_backend.nodes import ship_user_modules
from flray.runs import identity, runner
from tests.end_to_end.pool import Pools
from tests.extensions.test_callbacks import PLUGIN, assert_told
from tests.extensions.test_own_tasks import OWN as TASK
from tests.helpers import python, small

LOSS_AND_OPTIMIZER = '''
import torch
from flray import register_loss, register_optimizer

@register_loss("sharp")
def sharp(outputs, targets, counts, *, heat: float = 2.0):
    """Cross-entropy of logits times the heat."""
    return torch.nn.functional.cross_entropy(heat * outputs, targets)

@register_optimizer("heavy")
def heavy(parameters, lr, *, times=1.0):
    """Steps that are longer."""
    return torch.optim.SGD(parameters, lr * times, 0.9)
'''
WARD = {"name": "table", "path": "ward.csv", "label": "ill", "by": "hospital"}
WARD |= {"words": "one-hot", "dates": ["seen"], "gaps": "median"}
WARD["leave_out"] = ["patient", "visits", "target", "use", "fat"]
CLASSES = {"task": "binary", "positive": "yes"}
COUNTS = {**WARD, "label": "visits", "task": "counts", "scale": "columns"}
COUNTS["leave_out"] = ["patient", "ill", "target", "use", "fat"]
NUMBERS = {**COUNTS, "label": "target", "task": "regression", "scale": "standard"}
NUMBERS["leave_out"] = ["patient", "ill", "visits", "use", "fat"]
FLAGS = {**WARD, "label": ["ill", "fat"], "task": "multi-label"}
FLAGS = {**FLAGS, "path": "flags.csv", "leave_out": ["patient", "visits", "target", "use"]}
HUB = {"name": "huggingface", "path": "set", "image": "glyph", "label": "digit", "size": 8}
SAVED = {**HUB, "path": "saved", "splits": ["learn", "check"]}
FOLDER = {"name": "folder", "path": "photos", "size": 8, **CLASSES}


def local(**settings: Any) -> dict[str, Any]:
    return {"local": {"batch_size": 16, **settings}}


def work(**settings: Any) -> dict[str, Any]:
    return {"participation": settings, **local(epochs=3)}


def data(of: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"data": {**of, **options}}


def loss(name: str, **options: Any) -> dict[str, Any]:
    return local(loss={"name": name, **options})


def heavy(times: float) -> dict[str, Any]:
    return local(optimizer={"name": "heavy", "times": times}, lr=0.01)


def focal(gamma: int) -> dict[str, Any]:
    return loss("focal", gamma=gamma, weights="balanced")


def epochs(photo: int) -> dict[str, Any]:
    return work(work={"inverted": {"epochs": 1}, "photo": {"epochs": photo}})


def stragglers(do: float | str) -> dict[str, Any]:
    return work(stragglers=0.5, straggler_work=do)


WRITERS = {**HUB, **CLASSES, "by": "writer", "samples": 12}
RMSPROP = {"name": "rmsprop", "alpha": 0.9}
DOORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "task of a file": (data(COUNTS), data(NUMBERS)),
    "regression": (data(NUMBERS) | local(loss="huber"), data(NUMBERS) | loss("huber", delta=2.0)),
    "multi-label": (data(FLAGS), data(FLAGS, label=["fat", "ill"])),
    "focal, class weights": (focal(1), focal(2)),
    "smoothing": (loss("cross-entropy", smoothing=0.1), loss("cross-entropy", smoothing=0.2)),
    "loss of a file": (loss("sharp", heat=3.0), loss("sharp", heat=2.0)),
    "optimiser by name": (local(optimizer=RMSPROP, lr=0.01), local(optimizer="nadam", lr=0.01)),
    "optimiser of a file": (heavy(2.0), heavy(3.0)),
    "words, gaps, dates": (data(WARD, **CLASSES), data(WARD, **CLASSES, gaps="mean")),
    "columns of client and split": (data(WARD, part="use", fit="domain"), data(WARD, part="use")),
    "folder": (data(FOLDER) | local(), data(FOLDER, positive="no") | local()),
    "parquet, part of it": (data(WRITERS, mapped=True), data(WRITERS, positive="no")),
    "save_to_disk": (data(SAVED), data(SAVED, splits=["check", "learn"])),
    "shares of the work": (work(work={"inverted": 0.5}), work(work={"inverted": 0.6})),
    "epochs by number": (epochs(5), epochs(4)),
    "drawn work": (stragglers("drawn"), stragglers(0.5)),
    "imbalanced test part": ({"shift": {"test_long_tail": 4}}, {"shift": {"test_long_tail": 2}}),
}
"""Settings, and others that are another run."""


def door(name: str, which: int = 0) -> dict[str, Any]:
    common = {"name": "-".join(name.replace(",", "").split()), "rounds": 3, "plugins": ["own.py"]}
    common["data"] = {"name": "digits-sklearn", "samples": 30}
    common["callbacks"] = ["lines", {"name": "kill", "round": 2}]
    common["checkpoint"] = {"min_seconds": 0}
    return small(**{**common, **DOORS[name][which]})


KILLED = """
import json, os
from pathlib import Path
import flray.runs.runner as runner
from flray.data import load_dataset

for experiment in json.loads(Path("doors.json").read_text()):
    child = os.fork()  # nothing was computed here yet, so that no thread is missing there
    if not child:
        runner.run({"experiment": experiment})
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == 9, (experiment, status)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with a run of each chosen door whose process was killed after its second round."""
    datasets = pytest.importorskip("datasets")
    folder = tmp_path_factory.mktemp("doors")
    with contextlib.chdir(folder):
        Path("own.py").write_text(PLUGIN + TASK + LOSS_AND_OPTIMIZER)
        rows, generator = range(90), np.random.default_rng(0)
        target = generator.normal(size=90)
        ward = pd.DataFrame(
            {
                "patient": [f"p{n}" for n in rows],
                "sex": [("f", "m", None)[n % 5 % 3] for n in rows],
                "seen": pd.to_datetime("2024-02-28") + pd.to_timedelta([n % 7 for n in rows], "D"),
                "weight": [np.nan if n % 4 == 1 else 60 + target[n] for n in rows],
                "hospital": [f"H{n % 3}" for n in rows],
                "use": ["test" if n % 5 == 0 else "train" for n in rows],
                "ill": ["yes" if target[n] > 0.3 else "no" for n in rows],
                "fat": [int(target[n] > 0) for n in rows],
                "visits": [int(2 + abs(target[n]) * 3) for n in rows],
                "target": target,
            }
        )
        ward.to_csv("ward.csv", index=False)
        ward.assign(ill=(ward["ill"] == "yes").astype(int)).to_csv("flags.csv", index=False)
        drawn = [Image.fromarray(generator.integers(0, 255, (9, 9), np.uint8)) for _ in rows]
        for n, image in enumerate(drawn):
            place = Path("photos", "ab"[n % 2], "yes" if n % 3 else "no", f"{n}.png")
            place.parent.mkdir(parents=True, exist_ok=True)
            image.save(place)
        label, word = datasets.ClassLabel(names=["no", "yes"]), datasets.Value("string")
        features = datasets.Features(glyph=datasets.Image(), digit=label, writer=word)
        glyphs = [{"glyph": x, "digit": n % 2, "writer": f"w{n % 3}"} for n, x in enumerate(drawn)]
        held = datasets.Dataset.from_list(glyphs, features=features)
        for n in range(2):
            held.shard(2, n).to_parquet(f"set/train-{n}.parquet", batch_size=10)
        datasets.DatasetDict(learn=held, check=held.select(range(30))).save_to_disk("saved")
        chosen = [item for item in request.session.items if item.path == Path(__file__)]
        names = [name for name in DOORS if any(f"[{name}]" in item.name for item in chosen)]
        Path("doors.json").write_text(json.dumps([door(name) for name in names]))
        python(KILLED, cwd=folder)
    return folder


QUICK = "regression", "folder"


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in DOORS]
)
def test_a_door_is_resumed_after_a_kill_and_on_both_executors_to_the_same_bits(
    name: str, killed: Path, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(killed)
    experiment = door(name)
    whole = runner.run({"experiment": {**experiment, "name": "whole", "callbacks": []}})
    resumed = runner.resume(Path("runs", experiment["name"], "001"))
    assert resumed.sha256 == whole.sha256 and list(resumed.history["round"]) == [1, 2, 3]
    assert_told(resumed.folder, resumed.history)
    if "positive" in experiment["data"]:
        clients = [c for c in map(str, whole.history) if "local/auc/client/" in c]
        assert len(clients) > 1 and '"positive": "yes"' in (whole.folder / "data.json").read_text()
    spec = build_spec(load({"experiment": {**experiment, "callbacks": []}}).experiment)
    ship_user_modules()  # as a run on Ray does
    assert pools[2].run_federation(spec).sha256() == whole.sha256
    both = (load({"experiment": door(name, which)}).experiment for which in (0, 1))
    one, two = (identity.run_identity(each, "auto", "x")["settings"] for each in both)
    assert one != two
    other = runner.run({"experiment": {**door(name, 1), "name": "other", "callbacks": []}})
    figures = [c for c in whole.history if str(c).startswith(("global/", "train/loss"))]
    changed = other.sha256 != whole.sha256
    assert changed or not other.history[figures].equals(whole.history[figures])
