"""The round benchmark's work on Flower's simulation engine; needs `flwr[simulation]` and torch."""

import time
from typing import Any

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from work import network, report, resident, specification, train

SPEC = specification()
MARKS: list[float] = []


class Client(NumPyClient):
    def __init__(self, client: int) -> None:
        self.client = client

    def fit(self, parameters: Any, config: Any) -> Any:
        torch.set_num_threads(1)
        model, (x, y) = network(SPEC["model"]), resident(self.client, SPEC["samples"])
        tensors = (torch.from_numpy(value.copy()) for value in parameters)
        model.load_state_dict(dict(zip(model.state_dict(), tensors, strict=True)))
        train(model, x, y, SPEC["batch"])
        return [v.numpy() for v in model.state_dict().values()], len(y), {}


class Timed(FedAvg):
    def aggregate_fit(self, number: int, results: Any, failures: Any) -> Any:
        if failures:  # Flower counts such a round as done
            raise RuntimeError(f"round {number}: {failures[0]!r}")
        result = super().aggregate_fit(number, results, failures)
        MARKS.append(time.perf_counter())
        return result


def server(context: Context) -> ServerAppComponents:
    first = ndarrays_to_parameters(
        [v.numpy() for v in network(SPEC["model"]).state_dict().values()]
    )
    strategy = Timed(
        fraction_fit=SPEC["cohort"] / SPEC["clients"],
        fraction_evaluate=0.0,
        min_fit_clients=SPEC["cohort"],
        min_available_clients=SPEC["clients"],
        initial_parameters=first,
        accept_failures=False,
    )
    config = ServerConfig(num_rounds=SPEC["rounds"] + 1)
    return ServerAppComponents(strategy=strategy, config=config)


def client(context: Context) -> Any:
    return Client(int(context.node_config["partition-id"])).to_client()


if __name__ == "__main__":
    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=SPEC["clients"],
        backend_config={
            "init_args": {"num_cpus": SPEC["actors"], "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    report(MARKS, SPEC)
