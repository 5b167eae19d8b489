"""``tracking.model``: the trained model in MLflow, loaded by MLflow alone."""

import os
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch

from flray import api
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.runs import runner
from flray.tracking.client import connect
from flray.tracking.exporter import MlflowExporter
from tests.helpers import inline, python
from tests.messages import refused

LOAD = """
import sys
import mlflow, numpy as np
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(f"runs:/{sys.argv[2]}/model")
np.save(sys.argv[3], model.predict(np.load("x.npy")))
assert "flray" not in sys.modules
print(model.metadata.signature)
"""


def loaded(uri: str, run_id: str, cwd: Path) -> tuple[np.ndarray[Any, Any], str]:
    environment = {**os.environ, "PYTHONPATH": ""}
    done = python(LOAD, uri, run_id, "outputs.npy", cwd=cwd, env=environment)
    return np.load(cwd / "outputs.npy"), done.stdout


@pytest.mark.slow
def test_a_run_s_model_is_loaded_by_mlflow_alone(
    tmp_cwd: Path, digits: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_cwd}/mlflow.db"
    settings = {"resources": {"executor": "inline"}, "tracking": {"uri": uri, "model": True}}
    result = runner.run({"experiment": {**digits, **settings}})
    assert capfd.readouterr().err == ""  # no word of MLflow's
    client = connect(uri)
    experiment = client.get_experiment_by_name("flray")
    (run,) = client.search_runs([experiment.experiment_id])

    data = build_spec(load(result.folder / "config.yaml").experiment).data
    np.save("x.npy", data.x[data.test])
    outputs, signature = loaded(uri, run.info.run_id, tmp_cwd)
    assert (
        outputs.shape == (len(data.test), 10) and "uint8" in signature and "(-1, 10)" in signature
    )
    (held,) = run.inputs.dataset_inputs
    assert mlflow.data.get_source(held.dataset).to_dict() == {"tags": {"origin": "real, composed"}}

    (made,) = client.search_logged_models([experiment.experiment_id])
    assert (made.name, made.status, made.source_run_id) == ("model", "READY", run.info.run_id)
    assert [one.model_id for one in run.outputs.model_outputs] == [made.model_id]
    # Killed before it was noted, once while the model was on its way.
    for status in ("READY", "FAILED"):
        if status == "FAILED":
            client.finalize_logged_model(made.model_id, status)
        (result.folder / "tracking.json").unlink()
        assert MlflowExporter(result.folder, uri).flush() == 0
        (again,) = client.search_logged_models([experiment.experiment_id])
        assert (again.model_id, again.status) == (made.model_id, "READY")

    accuracy = (outputs.argmax(1) == data.y[data.test]).mean()
    assert accuracy == pytest.approx(result.history["global/common/accuracy"].iloc[-1], abs=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_trials_that_have_one_leave_a_model(
    tmp_cwd: Path, digits: dict[str, Any], ray_here: dict[str, float]
) -> None:
    content = inline(digits, tracking={"uri": None, "model": True}, rounds=1)
    arms = {"method": {"fedavg": {}, "local": {"algorithm": "local"}}}
    found = api.tune({**content, "arms": arms, "sweep": {"concurrency": 1}})
    assert [path.parent.parent.name for path in found.folder.glob("trials/*/model/MLmodel")] == [
        "0001"
    ]
    assert len(found) == 2 and [trial.method for trial in found] == ["fedavg", "local"]
    (best,) = found.best_trials
    assert best is max(found, key=lambda trial: trial.history[trial.metric].iloc[-1])
    data = build_spec(load(best.folder / "config.yaml").experiment).data
    model = found.data.trials[0].model()
    assert model(torch.zeros(2, *data.shape)).shape == (2, 10)
    refused(found.data.trials[1].model)
    client = found.data.trials[1].model(data.clients[0].name)
    assert client(torch.zeros(2, *data.shape)).shape == (2, 10)
