"""How the clients of a round are chosen: ``participation.sampler``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from flray.algorithms.base import ClientInfo
from flray.errors import MethodError
from flray.registry import register_sampler
from flray.tasks.base import finite_or_infinite


@dataclass(frozen=True)
class Sampling:
    """A round before its clients are chosen.

    Attributes
    ----------
    round : int
        From 0.
    size : int
        Clients that ``participation`` asks for; a sampler may return fewer or more.
    clients : sequence of ClientInfo
        All clients: name, domain, number of samples, samples by class.
    generator : numpy Generator
        Keyed by seed and round.
    state : dict
        The sampler's memory, a plain tree (see `flray.trees`): kept in checkpoints.
    ask : callable
        ``ask(numbers)`` sends these clients the model that they would train and returns, by number,
        the task's measures, such as ``loss``, on their training samples. Clients that do not
        answer in this round (``participation.dropout``) are missing.
    """

    round: int
    size: int
    clients: Sequence[ClientInfo]
    generator: np.random.Generator
    state: dict[str, Any]
    ask: Callable[[Iterable[int]], dict[int, dict[str, float]]]


def choose(name: str, sampler: Callable[[Sampling], object], sampling: Sampling) -> list[int]:
    """Return the clients that a sampler chooses, sorted.

    Parameters
    ----------
    name : str
        The name that errors show.
    sampler : callable
        A registered sampler with its options.
    sampling : Sampling
        The round.

    Raises
    ------
    MethodError
        If it returns something else than numbers of clients, each once.
    """
    found = check_clients(name, sampler(sampling), sampling.round, len(sampling.clients))
    if not found:
        raise MethodError(f"sampler {name!r} returned nobody in round {sampling.round + 1}")
    return found


def check_clients(name: str, numbers: object, round_: int, count: int) -> list[int]:
    """Return the client numbers of a sampler's answer, sorted.

    Parameters
    ----------
    name : str
        The registered sampler.
    numbers : object
        Its answer.
    round_ : int
        Counted from 0; the message shows it.
    count : int
        Number of clients.

    Raises
    ------
    MethodError
        If the answer is not a list of different client numbers.
    """
    given = list(numbers) if isinstance(numbers, Iterable) else [numbers]
    # A mask's True and False are integers in Python.
    whole = (int(one) for one in given if not isinstance(one, bool) and isinstance(one, Integral))
    found = sorted(one for one in whole if 0 <= one < count)
    if len(found) < len(given) or len(set(found)) < len(found):
        shown = ", ".join(repr(one) for one in given[:5])
        raise MethodError(
            f"sampler {name!r} gave {shown}{', ...' if len(given) > 5 else ''} in round {round_ + 1}; "
            f"numbers of clients are needed, from 0 to {count - 1}, each once"
        )
    return found


@register_sampler("uniform")
def uniform(sampling: Sampling) -> Sequence[int]:
    """Every client with the same chance."""
    order: Sequence[int] = sampling.generator.permutation(len(sampling.clients)).tolist()
    return order[: sampling.size]


@register_sampler("power-of-choice")
def power_of_choice(
    sampling: Sampling,
    *,
    candidates: Annotated[
        int | None,
        Field(ge=1, description="clients that are asked for their loss; null: twice the cohort"),
    ] = None,
) -> Sequence[int]:
    """Candidates, drawn by their share of the samples, report their loss; those with the largest take part.

    Section 3 of the paper: d candidates without replacement, client k with a chance in proportion
    to its share p_k of the data; of these the m largest local losses of the current model.
    """
    count = len(sampling.clients)
    sizes = np.array([client.num_samples for client in sampling.clients], dtype=float)
    wanted = min(max(candidates or 2 * sampling.size, sampling.size), int(np.count_nonzero(sizes)))
    drawn = sampling.generator.choice(count, wanted, replace=False, p=sizes / sizes.sum())
    answers = sampling.ask(sorted(drawn.tolist()))
    losses = {client: finite_or_infinite(answer["loss"]) for client, answer in answers.items()}
    worst_first = sorted(losses, key=lambda client: (-losses[client], client))
    return worst_first[: sampling.size] or drawn[: sampling.size].tolist()
