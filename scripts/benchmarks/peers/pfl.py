"""The round benchmark's work on pfl-research, one process per core through torch.distributed; needs `pfl[pytorch]`."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# This file has the library's own name: it must not be found in its place.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]


def under_torchrun() -> None:
    """Start this script again in several processes."""
    count = f"--nproc_per_node={json.loads(sys.argv[1])['actors']}"
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", count, __file__]
    os.environ["OMP_NUM_THREADS"] = "1"
    os.execv(sys.executable, [*run, *sys.argv[1:]])


def run() -> None:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    sys.path.append(str(HERE))
    from work import network, report, resident, specification

    spec = specification()
    torch.set_num_threads(1)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(spec["model"])

        def loss(self, x: Any, y: Any, eval: bool = False) -> Any:
            self.train(not eval)
            return F.cross_entropy(self.net(x), y)

        def metrics(self, x: Any, y: Any, eval: bool = True) -> Any:
            return {}

    class Mark(TrainingProcessCallback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> Any:
            self.times.append(time.perf_counter())
            return False, Metrics()

    net, mark = Net(), Mark()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    users = list(range(spec["clients"]))
    data = FederatedDataset(
        lambda user: Dataset(resident(user, spec["samples"]), user_id=str(user)),
        get_user_sampler("random", users),
        dict.fromkeys(users, spec["samples"]),
    )
    np.random.seed(0)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=spec["rounds"] + 1,
            evaluation_frequency=10**9,
            train_cohort_size=spec["cohort"],
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_batch_size=spec["batch"], local_num_epochs=1, local_learning_rate=0.01
        ),
        None,
        [mark],
    )
    if int(os.environ.get("RANK", "0")) == 0:
        report(mark.times, spec)


if __name__ == "__main__":
    run() if "RANK" in os.environ else under_torchrun()
