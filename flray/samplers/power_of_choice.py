"""Power-of-choice: of some candidates, those on which the model is worst (Cho, Wang and Joshi 2020)."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from flray.registry import register_sampler
from flray.samplers.sampling import Sampling


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
    worst_first = sorted(answers, key=lambda client: (-_of(answers[client]), client))
    return worst_first[: sampling.size] or drawn[: sampling.size].tolist()


def _of(answer: Mapping[str, float]) -> float:
    """Return a client's loss; NaN counts as the worst."""
    return math.inf if math.isnan(answer["loss"]) else answer["loss"]
