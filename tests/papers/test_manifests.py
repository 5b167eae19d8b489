"""What each client of a suite's runs holds and does, as its paper and its released code have it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray.config import suites
from flray.config.arms import PREFIX
from flray.config.loader import experiment_at, load
from flray.data import FederatedData
from flray.federation.manifest import digests, manifest
from flray.tuning.space import enumerate_settings, resolve_sweep
from tests.algorithms import helpers as tiny
from tests.helpers import cases
from tests.papers.protocols.facts import divided

ALL = suites.files(Path(__file__).parents[2] / "search_spaces" / "papers")

# Of each client: training, validation and test images, weight in the mean, steps in a round. Sources: FCCL+ tables V
# and XIX, section 4.1, digits.py; Fed-CO2 appendices A and B, data_utils.py (percent 0.1; 0.5 and 0.4 of DSLR's 125,
# 0.05 of Infograph's 2,103); LG-Mix appendix D.1, get_datasets.py; FedSKC section IV, sample_dirichlet.py.
_WRITTEN = """
fcclplus/table8 data=Digits method=fccl rounds=40 epochs=20
  mnist 150 0 10000 - 20
  usps 80 0 2007 - 20
  svhn 5000 0 26032 - 400
  syn 1800 0 2000 - 160
fcclplus/table15 data=Digits method=fedavg rounds=40 epochs=20
  mnist 150 0 10000 0.25 20
  usps 80 0 2007 0.25 20
  svhn 5000 0 26032 0.25 400
  syn 1800 0 2000 0.25 160
fcclplus/table8 data=Office31 method=fccl rounds=40 epochs=20
  amazon 1082 0 564 - 100
  dslr 192 0 100 - 20
  webcam 305 0 159 - 40
fedco2/table1 method=fedavg rounds=300 epochs=1
  amazon 62 50 192 0.25 2
  caltech 62 50 225 0.25 2
  dslr 62 50 32 0.25 2
  webcam 62 50 59 0.25 2
fedco2/table2 method=fedavg rounds=300 epochs=1
  clipart 105 105 500 0.1667 4
  infograph 105 105 500 0.1667 4
  painting 105 105 500 0.1667 4
  quickdraw 105 105 500 0.1667 4
  real 105 105 500 0.1667 4
  sketch 105 105 500 0.1667 4
fedco2/table7 method=fedavg rounds=300 epochs=1
  mnist 743 0 14000 0.2 24
  svhn 743 0 19858 0.2 24
  usps 743 0 1860 0.2 24
  synthdigits 743 0 97791 0.2 24
  mnistm 743 0 14000 0.2 24
lgmix/table1 data=Digits5 method=fedavg rounds=100 epochs=1
  mnist 42000 14000 14000 0.0949 329
  svhn 59574 19857 19858 0.1346 466
  usps 5579 1859 1860 0.0126 44
  synthdigits 293372 97790 97791 0.6630 2292
  mnistm 42000 14000 14000 0.0949 329
lgmix/table1 data=Office-Caltech10 method=fedavg rounds=200 epochs=1
  amazon 574 192 192 0.3779 18
  caltech 673 225 225 0.4431 21
  dslr 95 31 31 0.0625 3
  webcam 177 59 59 0.1165 6
"""
"""FedBN's data_preprocess.py: images of each domain's training and test part."""


def written() -> list[Any]:
    """Return suite, arms, rounds with epochs, and the clients, of each block."""
    blocks: list[Any] = []
    for line in _WRITTEN.strip().splitlines():
        if line.startswith(" "):
            blocks[-1][3].append(line.split())
        else:
            name, *given = line.split()
            values = dict(one.split("=") for one in given)
            counts = int(values.pop("rounds")), int(values.pop("epochs"))
            blocks.append((name, values, counts, []))
    return blocks


def run(name: str, arms: dict[str, str]) -> tuple[Any, FederatedData]:
    """Return a suite's run and its clients."""
    config = resolve_sweep(load(ALL[name]))
    chosen = {f"{PREFIX}{axis}": arm for axis, arm in arms.items()}
    setting = next(one for one in enumerate_settings(config) if chosen.items() <= one.items())
    experiment = experiment_at(config, {**setting, "seed": 0})
    data = divided(experiment)
    if experiment.model.name == "resnet18-imagenet":  # is looked at for batch norms
        pixels = np.broadcast_to(np.zeros((3, 32, 32), np.uint8), (len(data.y), 3, 32, 32))
        data = replace(data, x=pixels)
    return experiment, data


@pytest.mark.parametrize(
    ("name", "arms", "counts", "clients"),
    [pytest.param(*block, id=f"{block[0]} {' '.join(block[1].values())}") for block in written()],
)
def test_clients_hold_and_do_what_the_paper_says(
    name: str, arms: dict[str, str], counts: tuple[int, int], clients: list[list[str]]
) -> None:
    experiment, data = run(name, arms)
    found = manifest(experiment, data, digests(data))
    assert (found["rounds"], found["epochs"]) == counts
    for one, (client, *wanted) in zip(found["clients"], clients, strict=True):
        held = [str(one[part]) for part in ("client", "train", "val", "test")]
        assert held == [client, *wanted[:3]]
        assert wanted[3] == "-" or one["weight"] == pytest.approx(float(wanted[3]), abs=5e-5)
        assert one["steps"] == int(wanted[4])
        assert sum(one["classes"].values()) == one["train"]


@pytest.mark.parametrize("alpha", ["0.05", "0.2"])
def test_fedskcs_released_clients_have_as_many_samples_each(alpha: str) -> None:
    experiment, data = run("fedskc/table1", {"data": f"CIFAR-10 α = {alpha}, equal sizes"})
    found = manifest(experiment, data, digests(data))["clients"]
    held = [(one["train"], one["weight"], one["steps"]) for one in found]
    assert held == [(2500, 0.05, 400)] * 20


@cases(
    "local, models",
    """[{}, {}], [{steps: 13}, {}], [{drop_last: true}, {}], [{epochs: 1.5}, {}],
    [{epochs: 10}, {client1: {name: two-layer, norm: false}}]""",
)
def test_steps_are_those_that_are_done(local: dict[str, Any], models: dict[str, Any]) -> None:
    work = {"work": {"client1": 0.3}}
    spec = tiny.spec_of("fedavg", local=local, models=models, participation=work)
    steps = [one["steps"] for one in manifest(spec.config, spec.data, [{}] * 3)["clients"]]
    assert tiny.federation_of(spec).step().metrics["train/steps"] == sum(steps)


def test_digests_name_the_samples_of_each_part() -> None:
    experiment, data = run("fedco2/table1", {"method": "fedavg"})
    found = manifest(experiment, data, digests(data))["clients"]
    written_down = [one[f"{part}_sha256"] for one in found for part in ("train", "val", "test")]
    assert all(len(digest) == 64 for digest in written_down)
    labels = data.y.copy()
    labels[data.clients[0].train[0]] += 1
    moved = replace(data, y=labels)
    again, other = (manifest(experiment, one, digests(one))["clients"] for one in (data, moved))
    assert found == again
    pairs = zip(found, other, strict=True)
    same = [one["train_sha256"] == two["train_sha256"] for one, two in pairs]
    assert same == [False, True, True, True]
