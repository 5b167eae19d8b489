"""Torchvision's networks by name: theirs to the bit but for the last layer, with weights from files."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml
from torch import nn

import flray
from flray.config.loader import load
from flray.models import build, feature_dim, layer_taps
from flray.runs import runner
from flray.runs.identity import run_identity
from tests.messages import refused

zoo = pytest.importorskip("torchvision.models")
NETWORK = "shufflenet_v2_x0_5"
X = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A network with weights of its own, and their file."""
    network = zoo.get_model(NETWORK).eval()
    file = tmp_path_factory.mktemp("weights") / "shuffle.pth"
    torch.save(network.state_dict(), file)
    return network, file


def made(shape: tuple[int, ...] = (3, 64, 64), seed: int = 0, **options: Any) -> nn.Module:
    model = {"name": "torchvision", **options}
    content = {"data": "digits-sklearn", "model": model, "algorithm": "fedavg"}
    choice = load({"experiment": content}).experiment.model
    return build(choice.name, shape, 5, choice.options, seed).eval()


@pytest.mark.parametrize("network", [NETWORK, "mobilenet_v3_small"])
def test_features_are_what_the_last_layer_of_torchvisions_is_given(network: str) -> None:
    own = made(network=network)
    theirs = zoo.get_model(network).eval()
    prefix = "features.network."
    entries = {n.removeprefix(prefix): v for n, v in own.state_dict().items() if prefix in n}
    (last,) = [n for n, m in theirs.named_modules() if isinstance(m, nn.Linear)][-1:]
    missing, unexpected = theirs.load_state_dict(entries, strict=False)
    assert not unexpected and {n.rpartition(".")[0] for n in missing} == {last}
    given: list[torch.Tensor] = []
    theirs.get_submodule(last).register_forward_hook(lambda m, x, y: given.append(x[0]))
    with torch.no_grad():
        theirs(X)
        assert torch.equal(own.get_submodule("features")(X), given[0])
    assert feature_dim(own) == given[0].shape[1] and 2 <= len(layer_taps(own)) <= 5


@pytest.mark.parametrize("form", ["pth", "safetensors", "name"])
def test_weights_are_those_of_the_file_but_for_the_last_layer(
    form: str, trained: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, file = trained
    weights = str(file)
    if form == "safetensors":
        weights = str(tmp_path / "w.safetensors")
        safetensors.torch.save_file(network.state_dict(), weights)
    elif form == "name":
        url = zoo.get_model_weights(NETWORK)["IMAGENET1K_V1"].url
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        place = tmp_path / "hub" / "checkpoints"
        refused(made, network=NETWORK, weights="IMAGENET1K_V1")
        place.mkdir(parents=True)
        torch.save(network.state_dict(), place / url.rpartition("/")[2])
        weights = "IMAGENET1K_V1"
    own, other = (made(network=NETWORK, weights=weights, seed=seed) for seed in (0, 1))
    for name, value in network.state_dict().items():
        if not name.startswith("fc."):
            assert torch.equal(own.state_dict()[f"features.network.{name}"], value)
    last = (model.state_dict()["classifier.weight"] for model in (own, other))
    assert not torch.equal(*last)


def test_grey_images_are_repeated() -> None:
    colour, grey = made(network=NETWORK), made((1, 64, 64), network=NETWORK)
    with torch.no_grad():
        assert torch.equal(grey(X[:, :1]), colour(X[:, :1].repeat(1, 3, 1, 1)))
    refused(made, (4, 64, 64), network=NETWORK)


def test_a_run_with_them_is_resumed_and_told_apart_by_the_file(
    tmp_cwd: Path, digits: dict[str, Any], trained: tuple[Any, Path]
) -> None:
    file = Path("w.pth")
    file.write_bytes(trained[1].read_bytes())
    digits["data"] |= {"samples": 16, "domains": ["plain"]}
    digits |= {"rounds": 1, "resources": {"executor": "inline"}}
    model = {"name": "torchvision", "network": NETWORK, "weights": "w.pth"}
    content = {"experiment": {**digits, "model": model}}
    result = flray.run(content)
    saved = yaml.safe_load((result.folder / "config.yaml").read_text())["experiment"]["model"]
    assert saved["weights"]["weights"] == str(file.resolve())
    more = runner.resume(result.folder, rounds=2)
    assert len(more.history) == 2
    first = run_identity(load(content).experiment, "auto", "data")
    state = trained[0].state_dict()
    torch.save({**state, "conv1.0.weight": state["conv1.0.weight"] + 1}, file)
    assert run_identity(load(content).experiment, "auto", "data") != first
    refused(runner.resume, result.folder, rounds=3)


@pytest.mark.parametrize(
    "options",
    [
        {"network": "resnet19"},
        {"network": "squeezenet1_0"},
        {"network": "vit_b_16"},
        {"weights": "nowhere.pth"},
        {"weights": "IMAGENET9"},
        {"weights": "FILE", "norm": "group"},
        {"weights": "FILE"},
        {"weights": __file__},
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    options: dict[str, Any], trained: tuple[Any, Path]
) -> None:
    options = {n: str(trained[1]) if v == "FILE" else v for n, v in options.items()}
    refused(made, (3, 50, 50), **options)
