"""An exported run as RO-Crate: each file described, each reference there, nothing of the machine, and it runs again."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import flray
from flray.runs.crate import write_crate
from flray.runs.export import export
from flray.runs.runner import Result
from tests.helpers import printed, small
from tests.messages import refused

OWN = """
from flray import register_algorithm, registry

@register_algorithm("own")
class Own(registry.algorithms.get("fedavg")):
    \"\"\"FedAvg.\"\"\"
"""


def run(**more: Any) -> Result:
    return flray.run({"experiment": small(subset=120, **more)})


def graph_of(to: Path) -> dict[str, dict[str, Any]]:
    """Return a crate's entities by their identifier, each of which stands once."""
    graph = json.loads((to / "ro-crate-metadata.json").read_text())["@graph"]
    found = {entity["@id"]: entity for entity in graph}
    assert len(found) == len(graph)
    return found


def references(value: Any) -> list[str]:
    """Return all identifiers that an entity's properties refer to."""
    if isinstance(value, dict) and value.keys() == {"@id"}:
        return [value["@id"]]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for item in items for one in references(item)]


def test_a_crate_describes_a_whole_run_which_runs_again_from_it(tmp_cwd: Path) -> None:
    Path("own.py").write_text(OWN)
    result = run(algorithm="own", plugins=["own.py"], output=str(tmp_cwd / "secret"), rounds=2)
    to = tmp_cwd / "crate"
    for _ in range(2):  # over one that is there, too
        lines = printed(
            "export", str(result.folder), "--to", str(to), "--crate", "CC-BY-4.0"
        ).split()
    assert lines[-1] == str(to / "ro-crate-metadata.json")
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
    measured = {
        graph[one["@id"]]["name"]: graph[one["@id"]]["value"] for one in root["variableMeasured"]
    }
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
    write_crate(run().folder, tmp_cwd, [model], "https://example.org/terms?of=use")
    graph = graph_of(tmp_cwd)
    assert graph["client-%C3%A4%20b%231.safetensors"]["name"] == model.name
    assert graph["./"]["license"] == {"@id": "https://example.org/terms?of=use"}


@pytest.mark.parametrize("found", ["", "all mine", "https://a b", "file:///etc x", "-x"])
def test_a_crate_without_a_licence_is_not_begun(tmp_cwd: Path, found: str) -> None:
    folder = run().folder
    refused(export, folder, tmp_cwd / "to", crate=found)
    assert not (tmp_cwd / "to").exists()


def test_a_crate_of_a_run_without_rounds_is_refused(tmp_cwd: Path) -> None:
    folder = run().folder
    (folder / "journal.jsonl").unlink()
    refused(write_crate, folder, tmp_cwd, [], "CC0-1.0")
    assert not (tmp_cwd / "ro-crate-metadata.json").exists()
