"""LG-Mix: every client mixes its local and the global update by their expected convergence (LG-Mix, Algorithm 1)."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from flray import functional, trees
from flray.algorithms.base import Algorithm, Client, Message, Phase, Server, Stage
from flray.algorithms.common.client_parts import refuse_diverged
from flray.algorithms.common.samples import Batch, mean_over_positions
from flray.algorithms.common.variants import VariantParams, either, require
from flray.functional.numerics import map_floating
from flray.registry import hyper, register_algorithm
from flray.trees import Weights


@register_algorithm("lgmix")
class LGMix(Algorithm):
    """A round has two exchanges: clients train from their personalised models, then mix the updates.

    Server: ``u``, which is not the mean of the personalised models. Client state: ``own``, the
    personalised model w_c (before its first training: the u it receives), and ``ratios``, lambda of
    earlier rounds; within a round also the trained model and the u it was trained beside. Up: ``u +
    Delta_c`` in one model, so that the mean over clients is ``u + sum_c p_c Delta_c`` and, with
    lambda = 0 throughout, FedAvg's average to the bit. Down: u before training (its features are
    compared) and u after it. Counters follow the larger share. The released code trains U-Nets by
    one AMSGrad for all rounds, which is not copied.
    """

    class Params(VariantParams):
        server_lr: float = hyper(
            1.0,
            "eta_g, step of the server along the mean update",
            "Algorithm 1 leaves it open; 1 is plain averaging",
            gt=0,
        )
        ratio: float | None = hyper(
            None,
            "a fixed lambda instead of the traces' ratio: 0 is FedAvg, 1 is local training",
            "Eq. 2",
            ge=0,
            le=1,
        )
        centred: bool | None = either(
            (False, True),
            "traces of features that are centred over the samples of an epoch",
            "Eq. 5: no; released code: yes",
        )
        drop_smallest: bool | None = either(
            (False, True),
            "traces without the smallest of the eigenvalues over an epoch's samples",
            "Eq. 5: all of them; released code: without it",
        )
        history: Literal["earlier", "all", "none"] | None = either(
            ("earlier", "all"),
            "lambda is the mean over the rounds before this one, over all up to this one, or this round's own",
            "below Eq. 6: rounds before t; released code: includes t; Table 4 has none",
        )
        inputs: Literal["normalised", "unit"] | None = either(
            ("normalised", "unit"),
            "images normalised by the data set's mean and deviation, or only scaled to [0, 1]",
            "not said: as for all methods here; released code: scaled only",
        )
        update: Literal["round", "last_epoch"] | None = either(
            ("round", "last_epoch"),
            "the local update is the whole round's, or that of its last epoch, where every epoch "
            "begins at the round's start",
            "Algorithm 1; in the released code only the last epoch's survives",
        )
        drop_last: bool | None = either(
            (None, True),
            "an epoch's last batch is left out where it has fewer samples; null in the paper's "
            "variant: local.drop_last",
            "not said; released code: left out",
        )

    hp: Params
    needs = frozenset({"homogeneous"})
    views = ("personal", "global")

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        self.normalise = self.hp.inputs == "normalised"

    # --- client: local training -------------------------------------------------------------------

    def receive(self, client: Client) -> None:
        """Load the personalised model; before the first training that is u."""
        state, message = client.state, client.message
        client.load(state["own"] if "own" in state else message["weights"])
        client.load_personal()

    def train(self, client: Client) -> Message:
        """Train with an eye on the last layer's inputs, of this model and of u."""
        # Made before the hooks are set: a copy would carry them along.
        u = client.resident.frozen("u")
        with _last_inputs(client.model, u) as client.scratch["features"]:
            return super().train(client)

    def phases(self, client: Client) -> Sequence[Phase]:
        """Train everything once, with the last batch that the variant has."""
        dropped = self.hp.drop_last
        return (Phase(local={} if dropped is None else {"drop_last": dropped}),)

    def begin(self, client: Client) -> None:
        """Keep where training starts, and u for its features."""
        client.scratch["start"] = client.snapshot(client.resident.shared)
        client.scratch["u"] = client.reference(client.message["weights"], "u")
        client.scratch["traces"] = torch.zeros(2, dtype=torch.float64, device=client.device)
        client.scratch["seen"] = []
        if self.hp.update == "last_epoch":
            client.scratch["whole"] = client.snapshot()

    def step(self, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Do one step; before the first one of a further epoch end the one before."""
        if batch.epoch != client.scratch.setdefault("epoch", batch.epoch):
            client.scratch["epoch"] = batch.epoch
            self.end_epoch(client)
            if self.hp.update == "last_epoch":
                client.load(client.scratch["whole"])
                client.scratch["traces"].zero_()
        super().step(client, batch, optimizer)

    def after_backward(self, client: Client, batch: Batch) -> None:
        """Add up the traces of both models' features on the batch (Eq. 5), or keep these for the epoch's end."""
        if self.hp.ratio is not None:
            return
        with torch.no_grad():
            client.scratch["u"](batch.x)
        features = [mean_over_positions(h).double() for h in client.scratch["features"]]
        if self.hp.centred or self.hp.drop_smallest:
            client.scratch["seen"].append(features)
        else:
            client.scratch["traces"] += torch.stack([self.trace(h) for h in features])

    def end_epoch(self, client: Client) -> None:
        """Add the traces of all features that an epoch has left."""
        if client.scratch["seen"]:
            client.scratch["traces"] += torch.stack(
                [self.trace(torch.cat(h)) for h in zip(*client.scratch["seen"], strict=True)]
            )
            client.scratch["seen"].clear()

    def trace(self, features: Tensor) -> Tensor:
        """Return the Gram trace of penultimate features [n, m]."""
        return functional.gram_trace(
            features, require(self.hp.centred), drop_smallest=require(self.hp.drop_smallest)
        )

    def report(self, client: Client) -> Message:
        """Keep the trained model for mixing; send u + Delta_c."""
        self.end_epoch(client)
        start, u = client.scratch["start"], client.message["weights"]
        trained = client.snapshot(client.resident.shared)
        ratio = self.hp.ratio
        if ratio is None:
            traces = client.scratch["traces"].cpu()
            refuse_diverged(client.config, "the traces of features", traces)
            ratio = float(functional.trace_ratio(*traces))
        client.state.update(own=start, trained=trained, before=trees.clone(u), ratio=ratio)
        client.log("lgmix/lambda_of_round", ratio)
        sent = map_floating(lambda end, u, start: u + (end - start), trained, u=u, start=start)
        return {"weights": sent}

    # --- client: mixing ---------------------------------------------------------------------------

    def exchanges(self, server: Server) -> Iterable[Stage]:
        """Train, then hand out the new u for mixing."""
        yield Stage("train")
        yield Stage("mix")

    def mix(self, client: Client) -> Message:
        """Return nothing; the personalised model becomes w_c + lambda Delta_c + (1 - lambda) Delta_u (Eq. 2)."""
        self.receive(client)
        state, u = client.state, client.message["weights"]
        earlier = state.get("ratios", torch.zeros(0, dtype=torch.float64)).tolist()
        share = state["ratio"]
        if self.hp.history != "none":
            share = functional.stabilised_ratio(
                earlier, share, include_current=self.hp.history == "all"
            )
        client.log("lgmix/lambda", share)
        local, common = _difference(state["trained"], state["own"]), _difference(u, state["before"])
        mixed = functional.mix_updates(state["own"], local, common, share)
        larger = state["trained"] if share >= 0.5 else u
        client.state = {
            "own": {n: mixed[n] if w.is_floating_point() else w for n, w in larger.items()},
            "ratios": torch.tensor([*earlier, state["ratio"]], dtype=torch.float64),
        }
        return {}

    # --- server -----------------------------------------------------------------------------------

    def apply(self, server: Server, architecture: str, mean: Weights) -> None:
        """Step from u towards the mean of u + Delta_c: u + eta_g sum_c p_c Delta_c."""
        u = server.models[architecture]
        stepped = {
            name: torch.lerp(u[name], value, self.hp.server_lr)
            for name, value in mean.items()
            if value.is_floating_point()
        }
        super().apply(server, architecture, {**mean, **stepped})


@contextlib.contextmanager
def _last_inputs(*models: nn.Module) -> Iterator[list[Tensor]]:
    """Keep the last input of each model's last layer with parameters: its penultimate features, however it is split.

    The classifier of a split model may be several layers, and networks for other tasks have none.
    """
    seen = [torch.empty(0)] * len(models)

    def keep(position: int, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[position] = inputs[0].detach()

    with contextlib.ExitStack() as hooks:
        for position, model in enumerate(models):
            head = getattr(model, "classifier", model)
            layers = [
                layer
                for layer in head.modules()
                if any(True for _ in layer.parameters(recurse=False))
            ]
            last = layers[-1] if layers else head  # few-shot: no classifier
            hooks.enter_context(last.register_forward_pre_hook(partial(keep, position)))
        yield seen


def _difference(new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> Weights:
    return {name: value.double() - old[name].double() for name, value in new.items()}
