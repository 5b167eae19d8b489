"""MLflow itself: a server killed and started again has all rounds once; the trained model is loaded by MLflow alone."""

import contextlib
import http.server
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch

from flray import api
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.records import Journal
from flray.runs import runner
from flray.tracking import client
from flray.tracking.background import sync
from flray.tracking.client import connect
from flray.tracking.exporter import MlflowExporter
from tests.helpers import Settings, inline, python, tracked
from tests.messages import refused
from tests.services import PATIENCE, Service
from tests.tracking.helpers import Sending, recorded, tracking_threads, wait

pytestmark = pytest.mark.timeout(400)


@pytest.mark.slow
def test_the_server_is_killed_twice_in_mid_run(server: Service, tmp_path: Path) -> None:
    server.start()
    to = Sending(tmp_path, server.uri)
    journal = to.start(params={"lr": "0.1"})
    (tmp_path / "run" / "curve.png").write_bytes(b"picture")
    tracker, said = to.tracker("run")

    def start_again(told: int) -> None:
        wait(lambda: len(said) > told)
        server.start()

    with contextlib.closing(tracker), ThreadPoolExecutor() as beside:
        restarts: list[Future[None]] = []
        for round_ in range(120):
            metrics = {f"m{i}": round_ + i / 10 for i in range(20)}
            journal.record_round(round_, metrics | {"bad": math.nan, "up": math.inf})
            if round_ in (40, 80):
                for restart in restarts:
                    restart.result(PATIENCE)
                wait(lambda: client.load_cursor(tmp_path / "run", server.uri).offset > 0)
                wait(lambda: len(said) % 2 == 0)
                told = len(said)  # the outage may be said before the kill is over
                # No pause between the kill and the rounds: some batch may be half-way in the
                # server just now.
                server.kill()
                restarts.append(beside.submit(start_again, told))
            time.sleep(0.02)
        journal.artifact("curve.png", "plots")
        journal.end("FINISHED")
        restarts[-1].result(PATIENCE)
        assert tracker.close(120) == 0
    back_and_forth = [(True, False), (False, True)] * (len(said) // 2)
    assert [("is away" in line, "is back" in line) for line in said] == back_and_forth
    assert len(said) >= 4 and tracking_threads() == []

    (run,) = to.runs()
    assert run.info.status == "FINISHED" and run.data.params == {"lr": "0.1"}
    for metric in ("m0", "m19"):
        assert to.points(metric) == recorded(journal, metric)
    for metric in ("m19", "bad", "up"):
        assert [step for step, _, _ in to.points(metric)] == list(range(120))
    (artifact,) = to.client.list_artifacts(run.info.run_id, "plots")
    assert (artifact.path, artifact.file_size) == ("plots/curve.png", 7)


@pytest.mark.slow
def test_both_are_killed_and_the_run_is_resumed(server: Service, tmp_path: Path) -> None:
    to, run = Sending(tmp_path, server.uri), tmp_path / "run"
    to.start().close()
    code = (
        "import sys, time; from contextlib import closing; from pathlib import Path\n"
        "from flray.records import Journal; from flray.tracking.background import Tracker\n"
        "run, uri, first, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])\n"
        "with Journal(run / 'journal.jsonl') as journal, closing(Tracker(uri, print)) as tracker:\n"
        "    tracker.register(run)\n"
        "    for round_ in range(first, last):\n"
        "        journal.record_round(round_, {f'm{i}': round_ + i / 10 for i in range(20)})\n"
        "        print(round_, flush=True); time.sleep(0.02)\n"
    )

    def train(first: int, last: int) -> subprocess.Popen[bytes]:
        arguments = [str(run), server.uri, str(first), str(last)]
        return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)

    server.start()
    training = train(0, 10**6)
    wait(lambda: (known := client.read_cursor(run)) is not None and known.offset >= 5000)
    training.send_signal(signal.SIGKILL)
    training.communicate()
    server.kill()
    with Journal(run / "journal.jsonl") as journal:
        reached = len(journal.rounds())
    # Resumed from a checkpoint some rounds back, the server still away: everything waits.
    training = train(max(0, reached - 15), reached + 20)
    out, _ = training.communicate(timeout=120)
    assert training.returncode == 0 and b"is away" in out
    server.start()
    assert sync(run).events > 0
    with Journal(run / "journal.jsonl") as journal:
        assert to.points("m7") == recorded(journal, "m7")
        assert [step for step, _, _ in to.points("m7")] == list(range(reached + 20))


def test_a_server_without_answers_is_given_up(to: Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    to.start()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracker, _ = to.tracker("run", uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with silent.accept()[0]:
            assert tracker.close(1.0) == 1
            wait(lambda: not tracking_threads())


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_an_address_that_is_no_tracking_server_is_said_as_such(to: Sending) -> None:
    to.start()
    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        tracker, said = to.tracker("run", uri=f"http://127.0.0.1:{web.server_address[1]}")
        assert tracker.close(60) == 1
        web.shutdown()
    (line,) = said
    assert "404" in line and "is no longer sent" in line


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
def test_mlflow_loads_it(
    tmp_cwd: Path, digits: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_cwd}/mlflow.db"
    settings = {"resources": {"executor": "inline"}, "tracking": {"uri": uri, "model": True}}
    result = runner.run({"experiment": {**digits, **settings}})
    assert capfd.readouterr().err == ""  # no word of MLflow's
    client, (run,) = connect(uri), tracked(uri, "flray")
    experiments = [run.info.experiment_id]

    data = build_spec(load(result.folder / "config.yaml").experiment).data
    np.save("x.npy", data.x[data.test])
    outputs, signature = loaded(uri, run.info.run_id, tmp_cwd)
    assert outputs.shape == (len(data.test), 10)
    assert "uint8" in signature and "(-1, 10)" in signature
    (held,) = run.inputs.dataset_inputs
    assert mlflow.data.get_source(held.dataset).to_dict() == {"tags": {"origin": "real, composed"}}

    (made,) = client.search_logged_models(experiments)
    assert (made.name, made.status, made.source_run_id) == ("model", "READY", run.info.run_id)
    assert [one.model_id for one in run.outputs.model_outputs] == [made.model_id]
    # Killed before it was noted, once while the model was on its way.
    for status in ("READY", "FAILED"):
        if status == "FAILED":
            client.finalize_logged_model(made.model_id, status)
        (result.folder / "tracking.json").unlink()
        assert MlflowExporter(result.folder, uri).flush() == 0
        (again,) = client.search_logged_models(experiments)
        assert (again.model_id, again.status) == (made.model_id, "READY")

    longer = runner.resume(result.folder, rounds=5)
    assert len(client.search_logged_models(experiments)) == 2
    for ended, logits in ((result, outputs), (longer, loaded(uri, run.info.run_id, tmp_cwd)[0])):
        accuracy = (logits.argmax(1) == data.y[data.test]).mean()
        assert accuracy == pytest.approx(ended.history["global/common/accuracy"].iloc[-1], abs=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures", "tmp_cwd", "ray_here")
def test_trials_that_have_one_leave_a_model(digits: Settings) -> None:
    content = inline(digits, tracking={"uri": None, "model": True}, rounds=1)
    arms = {"method": {"fedavg": {}, "local": {"algorithm": "local"}}}
    found = api.tune({**content, "arms": arms, "sweep": {"concurrency": 1}})
    (made,) = found.folder.glob("trials/*/model/MLmodel")
    assert made.parent.parent.name == "0001"
    assert len(found) == 2 and [trial.method for trial in found] == ["fedavg", "local"]
    (best,) = found.best_trials
    assert best is max(found, key=lambda trial: trial.history[trial.metric].iloc[-1])
    data = build_spec(load(best.folder / "config.yaml").experiment).data
    models = found.data.trials[0].model(), found.data.trials[1].model(data.clients[0].name)
    refused(found.data.trials[1].model)
    assert {model(torch.zeros(2, *data.shape)).shape for model in models} == {(2, 10)}
