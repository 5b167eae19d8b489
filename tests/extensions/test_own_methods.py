"""Mistakes of a user's method are named."""

from typing import Any

from flray import register_algorithm
from flray.algorithms import Algorithm
from tests.algorithms import helpers as tiny
from tests.messages import refused


@register_algorithm("no-stages")
class NoStages(Algorithm):
    """Forgets to yield."""

    def exchanges(self, server: Any) -> Any:
        """Return nothing."""


def test_stages_that_are_not_yielded_are_named() -> None:
    refused(tiny.run, "no-stages")
