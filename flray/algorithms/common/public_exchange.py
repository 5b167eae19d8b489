"""The exchange that methods on public data share: one stage per public batch, outputs up, their reduction down."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from flray import rng
from flray.algorithms.base import Algorithm, Client, Message, Phase, Replies, Server, Stage, View
from flray.algorithms.client import load_optimizer_state, optimizer_state
from flray.algorithms.common.aggregation import average_outputs
from flray.algorithms.common.variants import VariantParams, either
from flray.data.augment import augment_batch
from flray.registry import Params, hyper

Outputs = dict[str, Tensor]


class ExchangeParams(Params):
    """Hyper-parameters of every exchange on public data."""

    public_size: int = hyper(
        5000, "public samples, chosen once (all where there are fewer)", "FCCL+ section 4", ge=2
    )
    average: bool = hyper(
        False, "average all models between collaborative and local updating", "FCCL+ Table XV"
    )
    pretrain_epochs: int = hyper(
        0, "epochs of local training before a client's first round", "FCCL+: none", ge=0
    )


class PublicParams(VariantParams, ExchangeParams):
    """Hyper-parameters of an exchange per public batch; those without a default here depend on the variant."""

    public_batch_size: int | None = either(
        (512, 256), "samples of a public batch", "FCCL+ section 4: 512; released code: 256", ge=2
    )
    public_passes: int = hyper(
        1, "passes over the public samples per round", "FCCL+ section 4", ge=0
    )
    public_optimizer: Literal["kept", "fresh"] | None = either(
        ("kept", "fresh"),
        "the optimiser lives for all public batches of a round, or for a single one",
        "FCCL+ section 4: Adam, no more; released code: a new one per public batch",
    )


class PublicExchange(Algorithm):
    """Whole models stay at the clients; in each public stage they send outputs and then learn from their reduction.

    With ``average`` all models are averaged after the public stages (homogeneous mode of FCCL+,
    Table XV).
    """

    hp: ExchangeParams
    shared = "none"
    views: tuple[View, ...] = ("personal",)
    needs = frozenset({"public", "classification"})
    sent = ("reduced", "batch", "merged")

    def __init__(self, hp: ExchangeParams | None = None) -> None:
        super().__init__(hp)
        if self.hp.average:
            self.needs |= {"homogeneous"}

    # --- hooks for methods ------------------------------------------------------------------------

    @abstractmethod
    def public_order(self, seed: int, round: int, available: int) -> Sequence[Tensor]:
        """Return the positions of the samples of each of a round's public stages, out of those available."""

    @abstractmethod
    def collaborate(self, client: Client) -> Message:
        """Begin the stage, then return the outputs on its samples."""

    @abstractmethod
    def apply_reduced(self, client: Client, reduced: Outputs) -> None:
        """Learn from the reduced outputs of the stage before."""

    def local_settings(self, client: Client) -> dict[str, object]:
        """Return the settings of ``local`` that the method changes on private data. Default: none."""
        return {}

    def public_settings(self, client: Client) -> dict[str, object]:
        """Return the settings of ``local`` that the method changes on public data. Default: those on private data."""
        return self.local_settings(client)

    def reduce(self, server: Server, replies: Replies) -> Outputs:
        """Return the outputs to send back to the clients. Default: the mean of theirs."""
        return average_outputs(replies, "outputs")

    # --- client -----------------------------------------------------------------------------------

    def begin_stage(self, client: Client) -> None:
        """Load the client's model, pre-train it before the first round, and learn from the stage before."""
        self.receive(client)
        if "personal" not in client.state:
            self.pretrain(client)
        if reduced := client.message.get("reduced"):
            self.apply_reduced(client, reduced)

    def pretrain(self, client: Client) -> None:
        """Train on private data before the client's first round."""
        local = self.local_settings(client)
        self.train_phase(client, Phase("pretrain", epochs=self.hp.pretrain_epochs, local=local))

    def public_step(self, client: Client, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Step on a loss without counting the step as local training."""
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        client.clip_gradients()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        client.log("public_loss", loss)

    def merge(self, client: Client) -> Message:
        """Learn from the last public stage, then send the whole model to be averaged."""
        self.begin_stage(client)
        return {"weights": client.snapshot()}

    def train(self, client: Client) -> Message:
        """Learn from the last public stage or take over the averaged model, then train on private data."""
        self.begin_stage(client)
        client.load(client.message.get("merged", {}))
        client.state.pop("optimizer", None)
        self.begin(client)
        for phase in self.phases(client):
            self.train_phase(client, phase)
        return self.report(client)

    # --- server -----------------------------------------------------------------------------------

    def exchanges(self, server: Server) -> Iterable[Stage]:
        """Yield the public stages, an averaging stage if `average` is on, then local training."""
        order = self.public_order(server.config.seed, server.round, server.num_public)
        yield from (Stage("collaborate", index) for index in range(len(order)))
        if self.hp.average:
            yield Stage("merge")
        yield Stage("train")

    def aggregate(self, server: Server, stage: Stage, replies: Replies) -> None:
        """Reduce the outputs, or average the models if the stage sent them."""
        drop_stage_state(server)
        if stage.name == "collaborate":
            reduced = self.reduce(server, replies)
            if reduced:
                server.state.update(reduced=reduced, batch=stage.index)
        elif merged := average_outputs(replies, "weights"):
            server.state["merged"] = merged

    def refine(self, server: Server) -> None:
        """Forget the round's outputs."""
        drop_stage_state(server)


class PublicCollaboration(PublicExchange):
    """An exchange per public batch: all clients compute outputs before anyone steps.

    In stage b a client first steps on batch b - 1 with the server's reduction of its outputs, then
    computes its outputs on batch b; the stage after the last batch begins with the step on it. Outputs
    are computed in train mode without touching any buffer, and with the dropout masks of the step that
    follows, so that they are those of that step.
    """

    hp: PublicParams

    def public_outputs(self, client: Client, x: Tensor) -> Outputs:
        """Return the client's outputs on a public batch. Default: the logits."""
        return {"logits": client.model(x)}

    @abstractmethod
    def public_loss(self, client: Client, outputs: Outputs, reduced: Outputs) -> Tensor:
        """Return the client's loss on a public batch."""

    def collaborate(self, client: Client) -> Message:
        """Step on the batch before, then return the outputs on this one."""
        self.begin_stage(client)
        client.model.train()
        buffers = client.snapshot(frozenset(client.resident.entries) - client.parameters.keys())
        with torch.no_grad():
            outputs = self.public_outputs(client, self.public_batch(client, client.stage_index))
        client.load(buffers)
        return {"outputs": outputs}

    def apply_reduced(self, client: Client, reduced: Outputs) -> None:
        """Step on the public batch whose reduced outputs the server sent."""
        kept = self.hp.public_optimizer == "kept"
        optimizer = client.optimizer(Phase("public", local=self.public_settings(client)))
        # A client that failed within a round still has that round's memory at its next first batch.
        if kept and client.message["batch"]:
            load_optimizer_state(optimizer, client.parameters, client.state.get("optimizer", {}))
        outputs = self.public_outputs(client, self.public_batch(client, client.message["batch"]))
        self.public_step(client, self.public_loss(client, outputs, reduced), optimizer)
        if kept:
            client.state["optimizer"] = optimizer_state(optimizer, client.parameters)

    def public_batch(self, client: Client, index: int) -> Tensor:
        """Return a round's public batch, the same for every client, and fix the dropout masks that go with it."""
        assert client.public is not None
        x, _ = client.public.take(
            self.public_order(client.seed, client.round, len(client.public))[index]
        )
        if (seed := client.dropout_seed(f"public/{index}")) is not None:
            rng.seed_default_generators(seed, client.device)
        how = client.settings(Phase(local=self.public_settings(client))).of_public_images
        generator = rng.torch_generator(
            client.seed, "augmentation", round=client.round, client=-1, extra=f"public/{index}"
        )
        return augment_batch(x, how, generator, client.public.normalisation)

    def public_order(self, seed: int, round: int, available: int) -> Sequence[Tensor]:
        """Return the positions of a round's public batches, without a last batch of one sample."""
        chosen = public_subset(seed, available, self.hp.public_size)
        batches: list[Tensor] = []
        for number in range(self.hp.public_passes):
            generator = rng.torch_generator(seed, "public", round=round, client=-1, extra=number)
            order = chosen[torch.randperm(len(chosen), generator=generator)]
            batches += [batch for batch in order.split(self.hp.public_batch_size) if len(batch) > 1]
        return batches


def public_subset(seed: int, available: int, size: int) -> Tensor:
    """Return the positions of the public samples that an experiment uses, the same in all rounds and for everyone."""
    generator = rng.torch_generator(seed, "public", client=-1, extra="choice")
    return torch.randperm(available, generator=generator)[:size]


def drop_stage_state(server: Server) -> None:
    """Drop the entries that only the next stage needs."""
    for entry in ("reduced", "batch", "merged"):
        server.state.pop(entry, None)
