"""The base class of all methods: a declaration and a few hooks, FedAvg's by default; the server as they see it.

A method is one file with one class. It declares what it shares and needs, overrides the hooks that
differ from FedAvg's, and keeps nothing on itself: a client's memory is ``client.state``, the
server's is ``server.state``, both plain trees. So a client's task is a pure function. Saving,
replaying and counting bytes need no code in the method.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from flray import registry, rng
from flray.algorithms.client import Client
from flray.algorithms.common.aggregation import average, weight_of
from flray.algorithms.common.samples import Batch, ResidentModel, Samples
from flray.algorithms.types import Message, Phase, Predictor, Replies, Reply, Stage, View, Weighting
from flray.config.experiment import Experiment
from flray.errors import MethodError
from flray.trees import Weights

__all__ = ["Algorithm", "Batch", "Client", "Message", "Phase", "Predictor", "Replies", "Server"]
__all__ += ["ClientInfo", "Reply", "Stage", "View", "Weighting"]
Need = Literal[
    "split",
    "features",
    "homogeneous",
    "same_features",
    "public",
    "validation",
    "classification",
    "labels",
    "exact_logits",
    "all_clients",
]


@dataclass(frozen=True)
class ClientInfo:
    """The server's knowledge of a client.

    Attributes
    ----------
    name, domain : str
        As in the partition.
    num_samples : int
        Training samples.
    class_counts : Tensor of int64 [C]
        Training samples by class; [0] where samples have masks.
    architecture : str
        Key of its model in ``server.models``.
    """

    name: str
    domain: str
    num_samples: int
    class_counts: Tensor
    architecture: str


@dataclass
class Server:
    """The server's side of a federation, as hooks see it.

    Attributes
    ----------
    models : dict of str to tree
        The global model of each architecture: every parameter and buffer (entries outside the
        shared group keep their initial values).
    state : dict
        The algorithm's own memory, a plain tree; replaced or extended by hooks.
    cohort : list of int
        Clients of the current round, sorted.
    round : int
        Current round, from 0.
    clients : tuple of ClientInfo
        All clients.
    shared_names : dict of str to frozenset of str
        For each architecture the names that travel.
    parameter_names : dict of str to frozenset of str
        For each architecture the names that are trainable parameters (the others are buffers or frozen).
    num_public : int
        Number of public samples, 0 without any.
    metrics : dict of str to float
        Metrics that hooks track this round (see `log`).
    model_for : callable, or None
        Returns the server's model of an architecture, for methods with `trains_at_server`. The
        model holds the weights that were loaded last.
    public : Samples, or None
        The public samples on the device of these models, for such methods.
    notify : callable
        Shows the user a line; hooks call `warn`.
    warned : set of str
        Subjects of the warnings so far.
    """

    config: Experiment
    clients: tuple[ClientInfo, ...]
    models: dict[str, Weights]
    shared_names: dict[str, frozenset[str]]
    parameter_names: dict[str, frozenset[str]]
    num_classes: int
    weighting: Weighting
    num_public: int = 0
    state: Message = field(default_factory=dict)
    cohort: list[int] = field(default_factory=list)
    round: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    model_for: Callable[[str], ResidentModel] | None = None
    public: Samples | None = None
    notify: Callable[[str], None] = print
    warned: set[str] = field(default_factory=set)

    @property
    def model(self) -> Weights:
        """The global model where all clients have the same architecture."""
        (weights,) = self.models.values()
        return weights

    @property
    def bench(self) -> Callable[[str], ResidentModel] | None:
        """The former name of `model_for`, for methods written against the first release."""
        return self.model_for

    def log(self, name: str, value: float | Tensor, client: int | None = None) -> None:
        """Track a number of this round, of the federation or of one client."""
        suffix = "" if client is None else f"/client/{self.clients[client].name}"
        self.metrics[f"{name}{suffix}"] = float(value)

    def warn(self, subject: str, line: str) -> None:
        """Warn the user in one line, once in a run, that the method is on but has no effect.

        Parameters
        ----------
        subject : str
            Subject of the warning; a second warning on the same subject is not shown.
        line : str
            The part without effect, the reason, and the setting to change.
        """
        if subject not in self.warned:
            self.warned.add(subject)
            self.notify(f"{self.config.algorithm.name}: {line}")

    def generator(self, purpose: rng.Purpose, extra: int | str = 0) -> torch.Generator:
        """Return the server's generator for one purpose in this round (client number -1)."""
        return rng.torch_generator(
            self.config.seed, purpose, round=self.round, client=-1, extra=extra
        )


class Algorithm:
    """FedAvg, and the base of all methods: broadcast, train locally, average.

    Attributes
    ----------
    shared : str
        Group of parameters and buffers that travels and is averaged; the rest stays at the client.
    needs : frozenset of str
        Requirements on the federation, checked before round 0. ``classification``: outputs are the
        logits of fixed classes; ``exact_logits``: and of no others; ``labels``: samples have
        classes, which few-shot episodes have too; ``split``: the network has features and a
        classifier; ``features``: at least features.
    weighting : {"samples", "uniform"}
        Weights of the average.
    views : tuple of {"global", "personal"}
        The models to evaluate; the first one gives the method's primary metric.
    vectorised : bool
        Whether `loss` depends only on the client's parameters, its batch and the common message, so
        that several clients can be trained in one step. A class that overrides `loss` must declare
        it again.
    trains_at_server : bool
        Whether the server gets models and the public samples to work with, ``server.model_for`` and
        ``server.public``.
    sent : tuple of str
        Entries of ``server.state`` that every client gets besides the shared weights, once they are
        there; see `send`.
    further : tuple of str
        Names of the models that `parts` returns, for lists of metrics.
    pools : bool
        Whether one task per round trains on all clients' training samples together.
    normalise : bool
        Whether images are normalised by the data set's mean and deviation, or only scaled to [0,
        1].
    averages_waited : bool
        Whether `aggregate`, with `after_average`, uses the replies' weights only in means over all replies, which
        `flray.algorithms.common.aggregation.average` takes after ``replies.wait()``. The means'
        coefficients may depend on the other entries of every reply.
    hp : Params
        The hyper-parameters, after `Params.resolved` has filled in those that follow from others.
    """

    Params: ClassVar[type[registry.Params]] = registry.Params
    hp: registry.Params
    shared: str = "all"
    needs: frozenset[Need] = frozenset()
    weighting: Weighting = "samples"
    views: tuple[View, ...] = ("global",)
    vectorised: bool = False
    trains_at_server: bool = False
    sent: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    pools: bool = False
    normalise: bool = True
    averages_waited: bool = False

    def __init__(self, hp: registry.Params | None = None) -> None:
        self.hp = (hp if hp is not None else self.Params()).resolved()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, until the federation begins.

        Raises
        ------
        MethodError
            If a hook sets one: other processes would not see it, and a resume would lose it.
        """
        if vars(self).get("begun"):
            raise MethodError(
                f"{type(self).__name__}: self.{name} is set in a hook, and neither a resume nor another process would "
                "know it; put it into client.state or server.state, or within a task into client.scratch"
            )
        super().__setattr__(name, value)

    def begin_federation(self) -> None:
        """Refuse from now on what hooks would remember in ``self``.

        Raises
        ------
        MethodError
            If ``self`` or the class has an empty dict, list or set, which only hooks can fill.
        """
        scopes = [vars(self), *map(vars, type(self).__mro__)]
        for name, value in ((n, v) for scope in scopes for n, v in scope.items()):
            if isinstance(value, dict | list | set) and not (value or name.startswith("__")):
                raise MethodError(
                    f"{type(self).__name__}: self.{name} is empty, and neither a resume nor another process would know "
                    "what a hook puts into it; use client.state or server.state, or within a task client.scratch"
                )
        self.begun = True

    @classmethod
    def takes_mean_only(cls) -> bool:
        """Tell whether the server takes nothing of a stage's replies but the default weighted mean of their weights.

        Only then can ``aggregation.block`` add the weights up as the clients train.
        """
        return all(
            getattr(cls, hook) is getattr(Algorithm, hook)
            for hook in ("aggregate", "weigh", "after_average")
        )

    @classmethod
    def adds_up(cls) -> Literal["as clients train", "when all have replied", "at the server"]:
        """Tell when ``aggregation.block`` adds up weights near the clients; at the server: it cannot."""
        if cls.takes_mean_only():
            return "as clients train"
        return "when all have replied" if cls.averages_waited else "at the server"

    def check(self, config: Experiment) -> None:
        """Refuse settings that the method cannot run with, before round 0. Default: nothing.

        Raises
        ------
        ConfigError
            If a setting is refused; the message names it and the value to write instead.
        """

    def own_loss(self) -> str:
        """Return the loss that `loss` minimises instead of the task's, which ``local.loss`` sets; empty: none.

        Default: empty if the code of `loss` calls a ``loss``, the task's or that of the class above, and so does a
        loop of the method's that computes gradients.
        """
        loops = (one.__code__.co_names for one in (self.step, self.train_phase, self.train))
        names = [self.loss.__code__.co_names, *(one for one in loops if "backward" in one)]
        return "" if all("loss" in found for found in names) else "a loss of its own"

    def unused(self) -> dict[str, str]:
        """Return the settings that have no effect on the method, each with the reason: a run says so.

        Default: those of averages, public data, cohorts and lengths of training that it does not have.
        """
        found = {}
        if self.pools or self.shared == "none":
            found["aggregation.weights"] = "averages no clients' weights"
        if self.pools:
            names = ("dropout", "sampler", "stragglers")
            found |= {f"participation.{name}": "has no cohort" for name in names}
        if "public" not in self.needs:
            found["local.public_augment"] = "uses no public data"
        if own := self.own_epochs():
            why = f"sets the lengths of its phases ({own})"
            found |= dict.fromkeys(("local.epochs", "local.steps"), why)
        return found

    def own_epochs(self) -> str:
        """Return the options that set the lengths of all phases in place of ``local``; empty: none. Default: empty."""
        return ""

    def needs_rounds(self) -> str:
        """Return which option makes results depend on the number of rounds, for example a schedule; empty: none.

        A run of such a method cannot be given more rounds than it began with. Default: empty.
        """
        return ""

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network to be trained, made from the freshly initialised one. Default: the same.

        The same bits in every process, so from nothing but the model and the hyper-parameters.

        Raises
        ------
        ConfigError
            Before round 0, if the method cannot be run on it.
        """
        return model

    # --- client -----------------------------------------------------------------------------------

    def setup(self, client: Client) -> None:
        """Fill ``client.state`` before the client's first task. Default: nothing."""

    def receive(self, client: Client) -> None:
        """Set all parameters and buffers of ``client.model`` from the message and the client's state."""
        client.load(client.message.get("weights", {}))
        client.load_personal()

    def begin(self, client: Client) -> None:
        """Prepare local training from the received model: references, constants of the round. Default: nothing."""

    def phases(self, client: Client) -> Sequence[Phase]:
        """Return the stretches of local training, in order. Default: one over everything."""
        return (Phase(),)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return the scalar to minimise. Default: the task's loss of the current model."""
        return client.task.loss(batch.outputs, batch.y)

    def step(self, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Do one optimiser step on one batch."""
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss(client, batch)
        loss.backward()
        self.after_backward(client, batch)
        client.clip_gradients()
        optimizer.step()
        client.record_loss(loss)

    def after_backward(self, client: Client, batch: Batch) -> None:
        """Correct the gradients between backward and the optimiser's step. Default: nothing."""

    def report(self, client: Client) -> Message:
        """Return the reply's tree after training. Default: the shared group's weights."""
        return {"weights": client.weights()}

    def train(self, client: Client) -> Message:
        """Run the client's side of the stage ``train``."""
        self.receive(client)
        self.begin(client)
        for phase in self.phases(client):
            self.train_phase(client, phase)
        return self.report(client)

    def train_phase(self, client: Client, phase: Phase) -> None:
        """Do a phase's optimiser steps."""
        for batch, optimizer in client.run(phase):
            self.step(client, batch, optimizer)

    def adapt(self, client: Client, phase: Phase) -> None:
        """Train the received model on the client's training data for the test alone, from within `predictor`.

        With the full learning rate, because decay, schedule and warm-up belong to rounds: after the
        last one a cosine has no rate left. An evaluation returns no state, so that nothing of this
        outlives the test.
        """
        full = {"lr_decay": 1.0, "schedule": "constant", "warmup": 0}
        self.train_phase(client, replace(phase, local={**full, **phase.local}))

    def predictor(self, client: Client, view: View) -> Predictor:
        """Return the function that scores a batch of normalised inputs. Default: the received model in eval mode.

        The model is in eval mode already; one that was trained for the test (`adapt`) has to return to it.
        """
        model: nn.Module = client.model.eval()
        return model

    def parts(self, client: Client) -> Mapping[str, Predictor]:
        """Return models within a client's own one that are tested alone too, as ``<name>/local``. Default: none."""
        return {}

    # --- server -----------------------------------------------------------------------------------

    def server_setup(self, server: Server) -> None:
        """Fill ``server.state`` before round 0. Default: nothing."""

    def exchanges(self, server: Server) -> Iterable[Stage]:
        """Yield the stages of a round; the server's state is already updated by the stages before. Default: train."""
        return (Stage("train"),)

    def send(self, server: Server, stage: Stage) -> Message:
        """Return the entries that every client gets besides the shared weights. Default: those of `sent`."""
        return {name: server.state[name] for name in self.sent if name in server.state}

    def send_private(self, server: Server, client: int, stage: Stage) -> Message:
        """Return the entries that this client alone gets. Default: none."""
        return {}

    def weigh(self, server: Server, reply: Reply) -> float:
        """Return a reply's weight in the average (any scale)."""
        return weight_of(server.weighting, reply.num_samples)

    def aggregate(self, server: Server, stage: Stage, replies: Replies) -> None:
        """Take in a stage's replies, which come in client order. Default: the weighted mean of the weights.

        A method with `after_average` has all of them wait for it; without, large ones are in memory one at a time.
        """
        if type(self).after_average is not Algorithm.after_average:
            replies.wait()
        for architecture, mean in average(replies, lambda reply: self.weigh(server, reply)).items():
            self.apply(server, architecture, mean)
        self.after_average(server, replies)

    def apply(self, server: Server, architecture: str, mean: dict[str, Tensor]) -> None:
        """Turn the mean of the clients' weights into the server's new ones. Default: take the mean."""
        server.models[architecture] = {**server.models[architecture], **mean}

    def after_average(self, server: Server, replies: Replies) -> None:
        """Take in the other entries of a stage's replies, once the weights are averaged. Default: nothing."""

    def refine(self, server: Server) -> None:
        """Train or review at the server after aggregation. Default: nothing."""
