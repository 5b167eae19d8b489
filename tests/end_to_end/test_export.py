"""Models leave flray: plain PyTorch without it gets the same accuracy, and an RO-Crate describes and repeats a run."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch import Tensor, nn

import flray
from flray.federation.building import build_spec
from flray.records import directory
from flray.runs.export import _page, export, license_address, plain_code, write_crate
from flray.runs.runner import Result
from tests.helpers import printed, python, small
from tests.messages import refused
from tests.pages import FILES

PLAIN = """
import sys
sys.modules["flray"] = None  # importing it fails
import json, numpy, torch
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
found = {}
for folder in map(Path, sys.argv[1:]):
    card = json.loads((folder / "model.json").read_text())
    for stem, made in card["models"].items():
        place = spec_from_file_location("code", folder / made["code"])
        code = module_from_spec(place)
        place.loader.exec_module(code)
        samples = numpy.load(folder / f"{stem}.npz")
        with torch.no_grad():
            outputs = code.load(str(folder / made["weights"]))(code.prepare(torch.from_numpy(samples["x"])))
        found[f"{folder.name} {stem}"] = float((outputs.argmax(1).numpy() == samples["y"]).mean())
print(json.dumps(found))
"""
CASES: dict[str, dict[str, Any]] = {
    "fedbn": {"model": {"name": "lenet", "norm": "batch"}, "algorithm": "fedbn"},
    "fedco2": {"model": {"name": "cnn", "norm": "batch"}, "algorithm": "fedco2"},
    "fedrod": {"model": "mlp", "algorithm": "fedrod"},
    "copa": {"model": "lenet", "algorithm": "copa"},
    "fednh": {"model": "mlp", "algorithm": "fednh"},
    "fedproto": {"model": "lenet", "algorithm": "fedproto"},
    "float64": {"model": "linear", "algorithm": "fedavg", "local": {"precision": "float64"}},
}


OWN = """
from flray import register_algorithm, registry

@register_algorithm("own")
class Own(registry.algorithms.get("fedavg")):
    pass
"""


def run(name: str, **more: Any) -> Result:
    partition = {"name": "dirichlet", "clients": 2, "alpha": 0.5}
    settings = {"partition": partition, "rounds": 2, "subset": 200, **CASES[name], **more}
    return flray.run({"experiment": small(**settings)})


@pytest.mark.slow
def test_plain_pytorch_gets_the_same_accuracy(tmp_cwd: Path) -> None:
    expected = {}
    for name in CASES:
        result, to = run(name), tmp_cwd / name
        export(result.folder, to, every=True)
        spec = build_spec(result.experiment)
        stems = json.loads((to / "model.json").read_text())["models"]
        assert stems
        for stem in stems:
            rows, metric = spec.data.test, "global/common/accuracy"
            if stem.startswith("client-"):
                client = next(c for c in spec.data.clients if stem == f"client-{c.name}")
                rows, metric = client.test, f"personal/local/accuracy/client/{client.name}"
            np.savez(to / f"{stem}.npz", x=spec.data.x[rows], y=spec.data.y[rows])
            expected[f"{name} {stem}"] = result.metrics[metric]
    done = python(PLAIN, *(str(tmp_cwd / name) for name in CASES), cwd=tmp_cwd)
    assert json.loads(done.stdout) == pytest.approx(expected, abs=1e-9)


def test_rows_as_they_are_in_a_file_are_predicted_by_the_guide_s_lines(tmp_cwd: Path) -> None:
    """Words, gaps and dates: the same outputs as for flray's own test samples, and the label's unit comes back."""
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "age": np.where(draw.random(60) < 0.2, np.nan, draw.normal(60, 9, 60)),
            "grade": [*draw.choice(["1", "low", ""], 40), *draw.choice(["1", ""], 20)],
            "seen": pd.date_range("2024-02-01", periods=60, freq="9D").strftime("%Y-%m-%d"),
            "days": draw.normal(500, 70, 60),
            "part": ["train"] * 40 + ["test"] * 20,
        }
    )
    rows.to_csv("stays.csv", index=False)
    table = {"name": "table", "path": "stays.csv", "label": "days", "part": "part"}
    table |= {"words": "one-hot", "gaps": "median", "dates": ["seen"], "task": "regression"}
    settings = {"data": table, "model": "linear", "algorithm": "fedavg", "subset": None}
    result = flray.run({"experiment": small(**settings)})
    export(result.folder, tmp_cwd)
    rows[40:].drop(columns=["days", "part"]).to_csv("new.csv", index=False)
    Path("predict.py").write_text(FILES["predict.py"] + "\nprint(outputs.tolist())\n")
    outputs = np.array(json.loads(python("import predict", cwd=tmp_cwd).stdout))
    data = build_spec(result.experiment).data
    with torch.no_grad():
        own = result.model()(torch.from_numpy(data.x[data.test])).numpy()
    np.testing.assert_allclose(outputs, own, rtol=1e-5, atol=1e-6)
    columns = json.loads(Path("model.json").read_text())["columns"]
    assert [one.get("word") for one in columns["inputs"]] == [None, "1", "low", None]
    (label,) = columns["labels"]
    true = data.y[data.test] * label["std"] + label["mean"]
    np.testing.assert_allclose(true[:, 0], rows["days"][40:], rtol=1e-5)


def test_a_run_s_folder_says_how_to_check_its_numbers(tmp_cwd: Path) -> None:
    own = tmp_cwd / "own.py"
    own.write_text(OWN)
    result = run("float64", plugins=[str(own)], algorithm="own", model="linear")
    data = build_spec(result.experiment).data
    held = json.loads((result.folder / "data.json").read_text())
    assert held["normalisation"] == {"mean": list(data.mean), "std": list(data.std)}
    assert held["clients"] == ["client0", "client1"]
    assert held["partition"] == data.partition_fingerprint
    with np.load(result.folder / "samples.npz", allow_pickle=False) as rows:
        for number, client in enumerate(data.clients):
            for part in ("train", "val", "test"):
                assert np.array_equal(rows[f"{number}-{part}"], getattr(client, part))
    assert (result.folder / "plugins" / "own.py").read_text() == own.read_text()
    source = json.loads((result.folder / "run.json").read_text())["source"]
    assert source["user"] and source["command"]


def test_an_export_has_a_card_whose_code_runs(tmp_cwd: Path) -> None:
    export(run("fedrod").folder, tmp_cwd)
    _, head, body = (tmp_cwd / "model.md").read_text().split("---\n", 2)
    assert yaml.safe_load(head)["tags"] == ["federated-learning", "flray", "fedrod"]
    code, shown = re.findall(r"```(?:python|json)\n(.*?)```", body, re.S)
    assert json.loads(shown) == json.loads((tmp_cwd / "model.json").read_text())
    for name in ("demo/001", "tuned/001/trials/0003"):  # a trial is named by the sweep
        assert directory.place_of(tmp_cwd / "runs" / name) == name
    first = "import sys, torch; sys.modules['flray'] = None; x = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)\n"
    done = python(f"{first}{code}print(list(outputs.shape))", cwd=tmp_cwd)
    assert done.stdout.strip() == "[2, 10]"


def test_names_of_data_stay_within_the_card() -> None:
    """A class, a data set and a method come from others: no fence, heading or entry begins with them."""
    bad = "x`\n```\n# y\ntags: [z]"
    made = {"global": {"weights": "global.safetensors", "code": "model.py", "outputs": [2]}}
    about = {"input": {"shape": [4], "pixels": "float32"}, "models": made, "flray": "1", "round": 2}
    card = {"algorithm": {"name": bad}, "data": {"name": bad}, "classes": [bad], **about}
    page = _page(card)
    assert page.count("```") == 4 and "\n# y" not in page
    _, head, body = page.split("---\n", 2)
    assert re.fullmatch(r"[\w .-]+", yaml.safe_load(head)["tags"][2])
    (shown,) = re.findall(r"```json\n(.*?)```", body, re.S)
    assert json.loads(shown) == card


def test_plug_ins_of_one_name_are_both_copied(tmp_cwd: Path) -> None:
    for folder in ("one", "two"):
        Path(folder).mkdir()
        Path(folder, "mine.py").write_text(f"# {folder}")
    ran = flray.run({"experiment": small(plugins=["one/mine.py", "two/mine.py"], rounds=1)})
    assert {path.read_text() for path in (ran.folder / "plugins").iterdir()} == {"# one", "# two"}


OWN_NETWORK = """
import math
from torch import nn
from flray import register_model

@register_model("own-network")
def own_network(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), num_classes), nn.ReLU())
"""


def test_a_changed_network_is_exported_only_if_its_file_is_named(tmp_cwd: Path) -> None:
    file = Path("own_network.py")
    file.write_text(OWN_NETWORK)
    settings = {"plugins": [str(file)], "model": "own-network", "rounds": 1}
    ran = flray.run({"experiment": small(**settings)})
    before = ran.model()
    file.write_text(OWN_NETWORK.replace("nn.ReLU()", "nn.Tanh()"))
    refused(export, ran.folder)
    refused(ran.model)
    file.rename("other.py")
    file.write_text(OWN_NETWORK)
    export(ran.folder, plugins=("other.py",))
    assert "Tanh" in (ran.folder / "export" / "model.py").read_text()
    assert str(ran.model()) == str(before)


def test_the_model_of_a_result_and_what_there_is_not(tmp_cwd: Path) -> None:
    result = run("fedrod")
    batch = torch.rand(3, *build_spec(result.experiment).data.shape)
    with torch.no_grad():
        own = result.model("client0")(batch)
        assert not torch.equal(own, result.model("client1")(batch))
        assert torch.equal(own, result.model("client0")(batch))
        assert result.model()(batch).shape == own.shape
    refused(result.model, "client9")
    refused(run("fedbn").model)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attention(x, x, x)[0]
        return found


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_a_network_that_is_not_written_as_plain_pytorch_is_named() -> None:
    for network in (Attends(), Branches()):
        refused(plain_code, network, None)


def small_run(**more: Any) -> Result:
    return flray.run({"experiment": small(subset=120, **more)})


def graph_of(to: Path) -> dict[str, dict[str, Any]]:
    graph = json.loads((to / "ro-crate-metadata.json").read_text())["@graph"]
    found = {entity["@id"]: entity for entity in graph}
    assert len(found) == len(graph)
    return found


def references(value: Any) -> list[str]:
    if isinstance(value, dict) and value.keys() == {"@id"}:
        return [value["@id"]]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for item in items for one in references(item)]


def test_a_crate_describes_a_whole_run_which_runs_again_from_it(tmp_cwd: Path) -> None:
    Path("own.py").write_text(OWN)
    own = {"algorithm": "own", "plugins": ["own.py"], "output": str(tmp_cwd / "secret")}
    result = small_run(**own, rounds=2)
    to = tmp_cwd / "crate"
    words = ["export", str(result.folder), "--to", str(to), "--crate", "CC-BY-4.0"]
    for _ in range(2):  # over one that is there, too
        assert printed(*words).split()[-1] == str(to / "ro-crate-metadata.json")
    graph = graph_of(to)
    root, action = graph["./"], graph["#run"]
    known = {*graph, "https://w3id.org/ro/crate/1.1"}
    assert {one for entity in graph.values() for one in references(entity)} <= known
    assert root["license"] == {"@id": "https://spdx.org/licenses/CC-BY-4.0"}
    assert action["actionStatus"].endswith("/CompletedActionStatus")
    files = {path.relative_to(to).as_posix(): path for path in to.rglob("*") if path.is_file()}
    del files["ro-crate-metadata.json"]
    assert {one["@id"] for one in root["hasPart"]} == files.keys()
    for name, path in files.items():
        content = path.read_bytes()
        assert graph[name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert graph[name]["contentSize"] == str(len(content))
        assert b"secret" not in content
    values = [graph[one["@id"]] for one in root["variableMeasured"]]
    measured = {one["name"]: one["value"] for one in values}
    assert measured["global/common/accuracy"] == result.metrics["global/common/accuracy"]
    assert not any("/client/" in name for name in measured)
    environment = json.loads(files["record/environment.json"].read_text())
    assert "source" not in environment and environment["sha256"] == result.sha256
    config = files["record/config.yaml"]
    assert yaml.safe_load(config.read_text())["experiment"]["tracking"] == {"uri": None}
    assert len(files["record/history.jsonl"].read_text().splitlines()) == 2
    assert flray.run(config).sha256 == result.sha256


def test_a_file_s_name_is_quoted_and_a_licence_may_be_an_address(tmp_cwd: Path) -> None:
    model = tmp_cwd / "client-ä b#1.safetensors"
    model.write_bytes(b"weights")
    write_crate(small_run().folder, tmp_cwd, [model], "https://example.org/terms?of=use")
    graph = graph_of(tmp_cwd)
    assert graph["client-%C3%A4%20b%231.safetensors"]["name"] == model.name
    assert graph["./"]["license"] == {"@id": "https://example.org/terms?of=use"}
    assert license_address("cc-by-4.0") == "https://spdx.org/licenses/CC-BY-4.0"


def test_a_crate_without_a_licence_or_rounds_is_not_begun(tmp_cwd: Path) -> None:
    folder = small_run().folder
    mistakes = ("", "all mine", "https://a b", "file:///etc x", "-x", "CC-BY", "LicenseRef-mine")
    for licence in mistakes:
        refused(export, folder, tmp_cwd / "to", crate=licence)
        assert not (tmp_cwd / "to").exists()
    (folder / "journal.jsonl").unlink()
    refused(write_crate, folder, tmp_cwd, [], "CC0-1.0")
    assert not (tmp_cwd / "ro-crate-metadata.json").exists()
