"""FedFomo: clients mix the models that help them on their validation data (Zhang, Sapra, Fidler et al., ICLR 2021)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from flray import devices, functional, registry, rng, trees
from flray.algorithms.base import Algorithm, Client, Message, Replies, Server, Stage
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("fedfomo")
class FedFomo(Algorithm):
    """Clients begin at ``theta_ref + sum_n w_n (theta_n - theta_ref)``, w the positive gains per distance, normalised.

    Candidates are the client's own last model and up to M peers' last models; theta_ref is the
    model before the client's last local training. If no candidate gains, not even that training,
    the client returns to theta_ref. Without peers or validation samples it keeps its model. Down:
    the peers' models. Up: the trained model and the gains. Client state: the model and theta_ref.
    Server state: everyone's last model and P, the gains that each client has found so far. P
    chooses the peers; unknown ones come in random order.
    """

    class Params(registry.Params):
        presets = (Preset("lgmix", "all of its 4 to 6 clients", peers=5),)

        peers: int = hyper(
            5,
            "M, models that a client receives",
            "TsingZ0/PFLlib, KarhouTam/FL-bench; LG-Mix, with 4 to 6 clients, has all",
            ge=1,
        )
        epsilon: float = hyper(
            0.3,
            "chance that a client's peers of a round are random ones",
            "NVlabs/FedFomo",
            ge=0,
            le=1,
        )
        epsilon_decay: float = hyper(
            0.05, "what that chance falls by each round", "NVlabs/FedFomo", ge=0
        )

    hp: Params
    needs = frozenset({"homogeneous", "validation"})
    shared = "none"
    views = ("personal",)

    # --- client -----------------------------------------------------------------------------------

    def begin(self, client: Client) -> None:
        """Mix the candidates; the mixture is the next round's reference."""
        peers = client.message.get("models", {})
        client.scratch["gains"] = {}
        if peers and len(client.validation):
            self.mix(client, peers)
        client.state["reference"] = client.snapshot()

    def mix(self, client: Client, peers: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load the mixture of the client's and the peers' models, and note each peer's gain."""
        own, reference = client.snapshot(), client.state.get("reference", client.resident.initial)
        candidates = [own, *peers.values()]
        losses = torch.stack([self.validation_loss(client, one) for one in candidates])
        distances = torch.stack([self.distance(client, one, reference) for one in candidates])
        before, losses, distances = devices.to_host(
            [self.validation_loss(client, reference), losses, distances]
        )
        gains = functional.fomo_affinities(float(before), losses, distances)
        weights = functional.fomo_weights(gains)
        client.load(functional.fomo_mix(reference, candidates, weights))
        client.scratch["gains"] = dict(zip(peers, gains[1:], strict=True))
        client.log("fedfomo/own_weight", weights[0])

    def validation_loss(self, client: Client, weights: Mapping[str, Tensor]) -> Tensor:
        """Return a model's mean loss over the client's validation data, in eval mode, as float64."""
        client.load(weights)
        return client.task.loss(*client.outputs(client.validation)).double()

    def distance(
        self, client: Client, one: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the Euclidean distance of two models' parameters, as float64."""
        gaps = (one[name].double() - other[name].double() for name in client.parameters)
        return torch.stack([gap.square().sum() for gap in gaps]).sum().sqrt()

    def report(self, client: Client) -> Message:
        """Send the whole model and the peers' gains."""
        return {
            "model": client.weights(frozenset(client.resident.entries)),
            "gains": client.scratch["gains"],
        }

    # --- server -----------------------------------------------------------------------------------

    def server_setup(self, server: Server) -> None:
        """Begin with no models and no gains."""
        count = len(server.clients)
        server.state.update(models={}, gains=torch.zeros(count, count, dtype=torch.float64))

    def send_private(self, server: Server, client: int, stage: Stage) -> Message:
        """Send the peers' models."""
        if stage.name != "train":
            return {}
        chosen = {
            str(peer): server.state["models"][str(peer)] for peer in self.choose(server, client)
        }
        return {"models": chosen} if chosen else {}

    def choose(self, server: Server, client: int) -> list[int]:
        """Return whose models a client receives: those that gained most, or by chance random ones."""
        known = sorted(int(peer) for peer in server.state["models"] if int(peer) != client)
        generator = rng.torch_generator(
            server.config.seed, "noise", round=server.round, client=client, extra="peers"
        )
        chance = self.hp.epsilon - self.hp.epsilon_decay * server.round
        explores = float(torch.rand((), generator=generator)) < chance
        peers = [known[i] for i in torch.randperm(len(known), generator=generator).tolist()]
        if not explores:
            peers.sort(key=lambda peer: -float(server.state["gains"][client, peer]))
        return peers[: self.hp.peers]

    def aggregate(self, server: Server, stage: Stage, replies: Replies) -> None:
        """Keep the models; add the gains to P."""
        models, gains = dict(server.state["models"]), server.state["gains"].clone()
        for reply in replies:
            models[str(reply.client)] = trees.clone(reply["model"])
            for peer, gain in reply.get("gains", {}).items():
                gains[reply.client, int(peer)] += gain
        server.state.update(models=models, gains=gains)
