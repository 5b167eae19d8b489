"""Parts of a client's side that methods share: gradients elsewhere, classifiers that travel, class statistics."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flray import functional
from flray.algorithms.base import Batch, Client, Reply, Server
from flray.config.experiment import Experiment
from flray.errors import RunFailedError
from flray.models import as_split


def gradient_at(
    client: Client,
    batch: Batch,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the gradient of the task's loss on a batch at given parameters; the model itself does not change.

    The random state is restored, so that the next forward pass drops out the same units.

    Parameters
    ----------
    client : Client
        Its model computes the gradient, in its current mode.
    batch : Batch
        Only its inputs and labels are used, never its outputs.
    parameters : dict of Tensor
        A value for each of the model's parameters.
    buffers : dict of Tensor, optional
        Buffers to use, and to update in place; by default the model's own.

    Returns
    -------
    gradient : dict of Tensor
        By the parameters' names.
    loss : Tensor
        Scalar.
    """
    leaves = {
        name: parameters[name].detach().clone().requires_grad_() for name in client.parameters
    }
    with torch.random.fork_rng(devices=[client.device] if client.device.type == "cuda" else []):
        outputs = call_at(client.model, {**(buffers or {}), **leaves}, batch.x)
    loss = client.task.loss(outputs, batch.y)
    return dict(
        zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)
    ), loss.detach()


def call_at(model: nn.Module, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return a model's outputs with other values, which are updated in place; a tied tensor has its first name's.

    `functional_call` refuses values for several names of a tensor, and leaves its value in a module with several names.
    """
    held = {
        f"{place}.{name}".lstrip("."): tensor
        for place, module in model.named_modules()
        for own in (module.named_parameters, module.named_buffers)
        for name, tensor in own(recurse=False)
    }
    first = {id(tensor): name for name, tensor in reversed(held.items())}
    names = {name: first[id(tensor)] for name, tensor in held.items()}
    given = {name: values[source] for name, source in names.items() if source in values}
    outputs: Tensor = functional_call(model, given, (x,), tie_weights=False)
    return outputs


def classifier_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the classifier's entries of a split model's state."""
    return {name: value for name, value in weights.items() if name.startswith("classifier.")}


def heads_of(client: Client) -> list[nn.Module]:
    """Return all clients' classifiers, in client order, frozen and in eval mode, over the message's own tensors."""
    heads: Mapping[str, Mapping[str, Tensor]] = client.message.get("heads", {})
    own, entries = as_split(client.model).classifier, client.resident.entries
    modules: list[nn.Module] = []
    for index in sorted(map(int, heads)):
        # For deepcopy these are the copies of the own tensors, so that it copies none.
        theirs: dict[int, Any] = {id(entries[n]): value for n, value in heads[str(index)].items()}
        modules.append(copy.deepcopy(own, theirs).eval())
    return modules


def features_of(client: Client) -> tuple[Tensor, Tensor]:
    """Return the features [n, d] of all training samples in their stored order, in eval mode, and their labels [n]."""
    return client.outputs(of=as_split(client.model).features)


def class_features(client: Client) -> dict[str, Tensor]:
    """Return a reply's class means of the client's features, ``vectors`` [C, d], and ``counts`` [C]."""
    vectors, counts = functional.class_means(*features_of(client), client.num_classes)
    return {"vectors": vectors, "counts": counts}


def keep_class_means(
    server: Server, replies: Iterable[Reply], entry: str, weighting: Literal["uniform", "samples"]
) -> None:
    """Merge the clients' statistics of each class into the server's state; classes that nobody sent stay unchanged.

    Parameters
    ----------
    server : Server
        ``server.state[entry]`` becomes a dict with the merged tensors [C, D] and the mask
        ``present`` [C]; it is not there before the first reply.
    replies : iterable of Reply
        Each with an entry of that name: one or several tensors [C, D] and ``counts`` [C], 0 for a
        class not sent.
    entry : str
        Its name.
    weighting : {"uniform", "samples"}
        See `flray.functional.class_vectors.merge_prototypes`.
    """
    sent = [reply[entry] for reply in replies]
    if not sent:
        return
    counts = torch.stack([one["counts"] for one in sent])
    before, bank = server.state.get(entry), {}
    for name in sorted(sent[0].keys() - {"counts"}):
        means = torch.stack([one[name] for one in sent])
        previous = None if before is None else (before[name], before["present"])
        bank[name], bank["present"] = functional.merge_prototypes(
            means, counts, weighting, previous
        )
    server.state[entry] = bank


def refuse_diverged(config: Experiment, what: str, values: Tensor) -> None:
    """End training that has diverged, if a method cannot compute anything from such numbers.

    Parameters
    ----------
    config : Experiment
        The experiment.
    what : str
        What the numbers are, in the plural.
    values : Tensor
        The numbers.

    Raises
    ------
    RunFailedError
        If one of them is not finite.
    """
    if not bool(torch.isfinite(values).all()):
        raise RunFailedError(
            f"{config.algorithm.name}: {what} are not finite, training has diverged: lower local.lr, or set "
            "local.clip_norm, for example to 1"
        )
