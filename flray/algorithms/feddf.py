"""FedDF: the clients' ensemble is distilled on unlabelled public data (Lin, Kong, Stich, Jaggi, NeurIPS 2020)."""

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from flray import functional
from flray.algorithms.base import Algorithm, Client, Message, Replies, Reply, Server, Stage, View
from flray.algorithms.common.aggregation import average
from flray.algorithms.common.optimizers import Adam
from flray.algorithms.common.public_exchange import (
    Outputs,
    PublicCollaboration,
    PublicParams,
    public_subset,
)
from flray.algorithms.common.samples import Samples
from flray.config.experiment import Experiment
from flray.errors import ConfigError
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("feddf")
class FedDF(PublicCollaboration):
    """Students minimise ``KL(softmax(mean of all clients' logits / T) || softmax(logits / T))`` on public samples.

    Mode ``server``: FedAvg; then, per architecture, the server trains the mean of its clients'
    models towards all clients' mean logits. Teachers and students are in eval mode, so that batch
    norm keeps the averaged statistics. Mode ``peer``: whole models stay at the clients, who are all
    students on every public batch; its settings are `public_batch_size`, `public_passes`,
    `public_optimizer`, `pretrain_epochs` and `average`.
    """

    class Params(PublicParams):
        presets = (
            Preset("fcclplus", "WenkeHuang/FCCL, with which its tables were made", mode="peer"),
        )

        mode: Literal["server", "peer"] = hyper(
            "server",
            "who learns from the ensemble",
            "FedDF, Algorithm 1; the tables of FCCL+: peer",
        )
        temperature: float = hyper(
            1.0, "T", "epfml/federated-learning-public-code; WenkeHuang/FCCL", gt=0
        )
        steps: int = hyper(
            1000,
            "steps at the server in a round",
            "a decision: without labelled data at the server a fixed number; epfml/federated-learning-public-code ends "
            "after 1000 without gain, at the latest after 10000",
            ge=0,
        )
        batch_size: int = hyper(
            128, "public samples of such a step", "epfml/federated-learning-public-code", ge=1
        )
        lr: float = hyper(
            0.001,
            "Adam's learning rate at the server, falling to 0 by a cosine within the round",
            "epfml/federated-learning-public-code",
            gt=0,
        )
        clip_norm: float = hyper(
            5.0, "clip the server's gradient to this", "epfml/federated-learning-public-code", gt=0
        )

    hp: Params
    shared = "all"
    views: tuple[View, ...] = ("global",)
    trains_at_server = True

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        if self.hp.mode == "peer":
            self.shared, self.views, self.trains_at_server = "none", ("personal",), False
        else:  # which has no use for `average`
            self.needs -= {"homogeneous"}

    def check(self, config: Experiment) -> None:
        """Refuse statistics that stay at the clients: the server could not run their models."""
        if self.hp.mode == "server" and config.aggregation.buffers == "local":
            why = "feddf runs the clients' models at the server and so needs their statistics: average"
            raise ConfigError("experiment.aggregation.buffers", "local", why)

    def unused(self) -> dict[str, str]:
        """Add the augmentation of public images, which only peers have."""
        server = {
            "local.public_augment": "takes public images as they are (algorithm.mode: server)"
        }
        return {**super().unused(), **(server if self.hp.mode == "server" else {})}

    # --- client -----------------------------------------------------------------------------------

    def public_loss(self, client: Client, outputs: Outputs, reduced: Outputs) -> Tensor:
        """Return the divergence from the ensemble."""
        return functional.distillation_loss(
            outputs["logits"], reduced["logits"], self.hp.temperature
        )

    def train(self, client: Client) -> Message:
        """Train on private data, as peers after the last public batch."""
        return super().train(client) if self.hp.mode == "peer" else Algorithm.train(self, client)

    # --- server -----------------------------------------------------------------------------------

    def exchanges(self, server: Server) -> Iterable[Stage]:
        """Yield one stage, or those of the exchange between peers."""
        return super().exchanges(server) if self.hp.mode == "peer" else (Stage("train"),)

    def aggregate(self, server: Server, stage: Stage, replies: Replies) -> None:
        """Average the weights and, one client after another, the logits on public samples."""
        if self.hp.mode == "peer":
            super().aggregate(server, stage, replies)
            return
        ensemble = functional.WeightedMean()

        def accumulating() -> Iterator[Reply]:
            for reply in replies:
                if self.hp.steps:
                    ensemble.add({"logits": self.logits(server, reply)}, 1.0)
                yield reply

        for architecture, mean in average(
            accumulating(), lambda reply: self.weigh(server, reply)
        ).items():
            self.apply(server, architecture, mean)
            server.state["ensemble"] = ensemble.result() if self.hp.steps else {}

    def refine(self, server: Server) -> None:
        """Distil the ensemble into the model of every architecture that took part."""
        super().refine(server)
        ensemble = server.state.pop("ensemble", None)
        if ensemble:
            for architecture in sorted(
                {server.clients[client].architecture for client in server.cohort}
            ):
                self.distil(server, architecture, ensemble["logits"])

    @torch.no_grad()
    def logits(self, server: Server, reply: Reply) -> Tensor:
        """Return a client's logits on the public samples, in eval mode."""
        assert server.model_for is not None
        resident = server.model_for(reply.architecture)
        resident.load(reply["weights"])
        resident.model.eval()
        batches = self.samples(server).in_order(server.config.evaluation.batch_size)
        return torch.cat([resident.model(x) for x, _ in batches])

    def samples(self, server: Server) -> Samples:
        """Return the public samples that are used, labelled with the numbers of the ensemble's rows."""
        assert server.public is not None
        return server.public.relabelled_by_index(
            public_subset(server.config.seed, len(server.public), self.hp.public_size)
        )

    def distil(self, server: Server, architecture: str, teacher: Tensor) -> None:
        """Train one architecture's global model towards the ensemble."""
        assert server.model_for is not None
        resident, samples = server.model_for(architecture), self.samples(server)
        resident.load(server.models[architecture])
        student = resident.model.eval()
        optimizer = Adam(student.parameters(), lr=self.hp.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.hp.steps)
        for positions in self.batches(server, len(samples)):
            x, numbers = samples.take(positions)
            loss = functional.distillation_loss(student(x), teacher[numbers], self.hp.temperature)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), self.hp.clip_norm)
            optimizer.step()
            schedule.step()
        optimizer.zero_grad(set_to_none=True)
        server.log(f"feddf/loss/{architecture}", loss.detach())
        server.models[architecture] = {
            name: entry.detach().clone().cpu() for name, entry in resident.entries.items()
        }

    def batches(self, server: Server, count: int) -> Iterator[Tensor]:
        """Yield the positions of every step's batch, pass after pass over all samples."""
        generator, left = server.generator("public", "distillation"), self.hp.steps
        while left:
            for positions in torch.randperm(count, generator=generator).split(self.hp.batch_size)[
                :left
            ]:
                left -= 1
                yield positions
