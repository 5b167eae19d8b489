"""What all tests share: one Ray on this machine, results in temporary folders, nothing left behind."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from threadpoolctl import threadpool_limits

from tests.forked import light_nodes
from tests.helpers import Settings
from tests.messages import COLLECTED
from tests.services import bucket_server

if TYPE_CHECKING:
    from tests.end_to_end.pool import Pools

gc.set_threshold(50_000)  # as the command line
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# Tests compare one process with actors, whose Ray has no GPU: a machine's own is hidden from both.
# CUDA sees none from the first -1 on; Ray counts the entries, and starts nodes with at most as many fake GPUs.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1,-1,-1,-1")
os.environ.setdefault("FLRAY_FAKE_GPUS", "1")  # Ray's fake GPUs are computed on the CPU
# As flray's own: else actors starve beside the other test process, and each Ray starts a process for every CPU.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup
    # The tests still ignore it, and the programs that they start, some of which have to end by it, do not.
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """One core for each test process: threads of NumPy's products wait for each other where others run."""
    torch.set_num_threads(1)
    threadpool_limits(1, "blas")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note each test, those that are left out too."""
    item.config.stash.setdefault(COLLECTED, set()).add(item.nodeid)


@pytest.hookimpl(trylast=True)  # without the tests that are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules that share a Ray one behind the other: each start of one takes seconds."""
    sharing = {item.path for item in items if "ray_here" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in sharing)


@pytest.fixture(scope="module", autouse=True)
def _ray_ends_where_it_is_not_shared(request: pytest.FixtureRequest) -> None:
    """End the Ray of the modules before, so that what starts or joins one of its own does."""
    items = [item for item in request.session.items if item.path == request.path]
    sharing = any("ray_here" in getattr(item, "fixturenames", ()) for item in items)
    if "ray" in sys.modules and not sharing:
        sys.modules["ray"].shutdown()


@pytest.fixture
def ray_here() -> dict[str, float]:
    """Ray on this machine with four CPUs to give away, whatever the machine has; left to the next test.

    It has one more, for the client actors that tests share, which ask for next to none each.
    """
    import ray

    if ray.is_initialized() and ray.cluster_resources().get("CPU") != 5:
        ray.shutdown()  # that of a test before, which needed another
    if not ray.is_initialized():
        with light_nodes():
            ray.init(address="local", num_cpus=5, num_gpus=0, logging_level="ERROR")
    return {**ray.cluster_resources(), "CPU": 4.0}


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sweeps end without figures and report, which take longer than the trials of these tests."""
    monkeypatch.setattr("flray.tuning.sweep.add_report", lambda *_: None)
    monkeypatch.setattr("flray.drawing.canvas.render", lambda *_: b"<svg >")


_POOLS: dict[str, "Pools"] = {}
"""By the address of their Ray: pools of one that has ended are of no use."""


@pytest.fixture
def pools(ray_here: dict[str, float]) -> "Pools":
    """Client actors by their number: ``pools[2]``. They serve one test after the other."""
    import ray

    from tests.end_to_end.pool import Pools

    return _POOLS.setdefault(ray.get_runtime_context().gcs_address, Pools())


def pytest_sessionfinish() -> None:
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture
def tmp_cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh current folder, so that runs and databases land there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a database of MLflow; tests name their experiments.

    It is made here, because that takes longer than a run waits for MLflow if the machine is busy.
    """
    from flray.tracking.client import connect

    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
    connect(uri)
    return uri


@pytest.fixture
def digits() -> Settings:
    """A small real federation: scikit-learn's digits in four domains, one client each."""
    data, model = {"name": "digits-sklearn", "samples": 96}, {"name": "lenet", "norm": "batch"}
    world = {"name": "digits", "rounds": 3, "data": data, "model": model, "algorithm": "fedavg"}
    local = {"epochs": 1, "batch_size": 32, "lr": 0.05}
    return {**world, "local": local, "checkpoint": {"min_seconds": 0}, "tracking": {"uri": None}}


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3-compatible server on this machine, with the bucket ``flray-test``."""
    server = bucket_server(tmp_path_factory.mktemp("s3"), "flray-test").start()
    yield server.uri
    server.kill()


@pytest.fixture
def bucket(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment in which ``s3://flray-test`` is a bucket and this machine has a working folder."""
    aws = {"ENDPOINT_URL": s3_server, "ACCESS_KEY_ID": "one", "SECRET_ACCESS_KEY": "two-secret"}
    aws |= {"REGION": "us-east-1", "EC2_METADATA_DISABLED": "true"}
    for name, value in aws.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("FLRAY_WORK", str(tmp_path / "work"))
