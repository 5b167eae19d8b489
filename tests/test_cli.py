"""What a person types and sees: lists, schema, doctor, partitions, runs; and the same from Python."""

import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from mlflow import MlflowClient

import flray
from flray import registry
from flray.cli.main import app, invoke
from flray.config.loader import load, schema
from flray.federation.building import build_spec
from tests.helpers import INLINE, written


@pytest.fixture
def file(tmp_cwd: Path, digits: dict[str, Any]) -> str:
    return written({**digits, **INLINE, "rounds": 2})


@pytest.mark.parametrize("kind", sorted(registry.ALL))
def test_lists_name_everything(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["list", kind]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in registry.ALL[kind].names())


def test_an_algorithm_is_listed_with_defaults_and_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke(["list", "algorithms", "fedprox"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mu" in shown and "0.01" in shown and "Table VII" in shown and "number >= 0" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "algoritms"], "did you mean 'algorithms'"),
        (["list", "algorithms", "fedprx"], "did you mean 'fedprox'"),
        (["data", "get", "digit5-local"], "digits5-local"),
    ],
)
def test_misspelt_names_are_answered_with_the_nearest(
    tmp_cwd: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(arguments) == 2
    assert words in capsys.readouterr().err


def test_the_schema_describes_every_component_with_its_options() -> None:
    document = schema()
    text = json.dumps(document)
    for registered in registry.ALL.values():
        for name in registered.names():
            assert f'"const": "{name}"' in text
    forms = document["$defs"]["AlgorithmChoice"]["anyOf"]
    names = [form.get("properties", {}).get("name", {}).get("const") for form in forms]
    prox = forms[names.index("fedprox")]
    assert prox["properties"]["mu"]["default"] == 0.01
    assert prox["additionalProperties"] is False
    assert set(document["properties"]) == {"experiment", "arms", "space", "sweep", "paper"}
    assert set(document["$defs"]["Local"]["properties"]) >= {"lr", "epochs", "batch_size"}


def test_a_partition_is_shown_and_drawn(
    file: str, tmp_cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partition = "partition={name: dirichlet, clients: 3, alpha: 0.3}"
    assert invoke(["data", "show", file, partition, "--plot", "p.png"]) == 0
    shown = capsys.readouterr().out
    assert "partition fingerprint: " in shown
    assert (tmp_cwd / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert build_spec(load(file, [partition]).experiment).data.partition_fingerprint in shown


def test_a_run_ends_with_table_digest_folder_and_how_to_see_it(
    file: str, tmp_cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And MLflow holds its parameters, metrics, tags and figures."""
    uri = f"sqlite:///{tmp_cwd}/mlflow.db"  # it keeps connections by their address
    method = "algorithm={name: fedprox, mu: 0.5}"
    assert invoke(["run", file, method, f"tracking.uri={uri}"]) == 0
    shown = capsys.readouterr().out
    folder = tmp_cwd / "runs/digits/001"
    identity = json.loads((folder / "run.json").read_text())
    assert identity["status"] == "finished"
    assert f"model SHA-256: {identity['sha256']}" in shown
    assert "run: runs/digits/001" in shown and "mlflow ui --backend-store-uri sqlite:///" in shown
    assert "round 2/2" in shown and "global/common" in shown
    speed = (
        r"\n[\d.e-]+ s per round, [\d,.]+ training samples per second, at most [\d,]+ MiB in one"
    )
    assert re.search(speed, shown)
    figures = {f"figures/{name}.png" for name in ("curves", "clients", "partition")}
    assert {f"figures/{path.name}" for path in (folder / "figures").iterdir()} == figures

    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("flray").experiment_id])
    wanted = {"algorithm.name": "fedprox", "algorithm.mu": "0.5", "local.momentum": "0.0"}
    assert wanted.items() <= run.data.params.items()
    assert run.data.tags["model.sha256"] == identity["sha256"]
    assert run.data.tags["version.torch"] and len(run.data.tags["partition.fingerprint"]) == 64
    accuracy = flray.resume(folder).metrics["global/common/accuracy"]
    assert run.data.metrics["global/common/accuracy"] == accuracy
    kept = [*client.list_artifacts(run.info.run_id)]
    kept += client.list_artifacts(run.info.run_id, "figures")
    assert {"config.yaml", *figures} <= {one.path for one in kept}


def test_python_gives_a_history(file: str, tmp_cwd: Path) -> None:
    result = flray.run(file, rounds=3, **{"local.lr": 0.1})
    assert list(result.history["round"]) == [1, 2, 3]
    assert result.experiment.local.lr == 0.1
    assert result.history["global/common/accuracy"].between(0, 1).all()
    assert result.metrics["time/round"] > 0
    assert 0 < result.metrics["system/server/cpu_utilization_percentage"] < 400
    assert 0 < result.metrics["system/system_memory_usage_percentage"] <= 100
    assert not any(name.startswith("system/actor") for name in result.metrics), "it is this process"
    assert (result.history["train/samples"] == 4 * 96).all()  # four clients, one epoch
    seen = result.history["time/samples_per_second"] * result.history["time/train"]
    assert seen.to_numpy() == pytest.approx(4 * 96)
    again = flray.run(result.folder / "config.yaml")  # the resolved file
    assert again.sha256 == result.sha256
    other = flray.run(file, ["local.lr=0.1", "rounds=3", "seed=1"])
    assert other.sha256 != result.sha256


def test_dropouts_and_stragglers_are_simulated_by_key(file: str, tmp_cwd: Path) -> None:
    settings = ["participation={dropout: 0.4, stragglers: 0.5, straggler_work: 0.34}", "rounds=4"]
    one, two = flray.run(file, settings), flray.run(file, settings)
    assert one.sha256 == two.sha256
    sizes, steps = list(one.history["cohort/size"]), list(one.history["train/steps"])
    assert sizes == list(two.history["cohort/size"]) and len(set(sizes)) > 1
    full = flray.run(file, ["rounds=1"]).history["train/steps"][0] / 4
    assert all(count <= size * full for count, size in zip(steps, sizes, strict=True))
    assert any(count < size * full for count, size in zip(steps, sizes, strict=True))


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *path, name)


def test_every_help_text_ends_with_an_example_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path in commands(typer.main.get_command(app)):
        assert invoke([*path, "--help"]) == 0
        example = " ".join(capsys.readouterr().out.split()).rsplit("Example: ", 1)[1]
        assert example.startswith(" ".join(["flray", *path]))


def test_version_and_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out == f"flray {metadata.version('flray')}\n"
    assert invoke(["runn"]) == 2
