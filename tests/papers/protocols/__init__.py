"""What the papers' experiments are, written down from papers and released code: nothing here is read from a suite.

A `Suite` gives each of its runs a value and a source for every field of `facts.facts`. A component
is its name or a mapping with its name and the options that matter; options that are not named have
their defaults.
"""

from dataclasses import dataclass, field

Fact = tuple[object, str]
"""A value and where it is printed or released; "ours" where neither says it."""
Row = dict[str, Fact]


@dataclass(frozen=True)
class Suite:
    """What holds for all runs of a suite, and what is different by axis and arm, and for combinations of arms."""

    runs: Row
    arms: dict[str, dict[str, Row]] = field(default_factory=dict)
    where: tuple[tuple[dict[str, str], Row], ...] = ()

    def expected(self, arms: dict[str, str]) -> Row:
        """Return the facts of the run of one arm per axis."""
        row = dict(self.runs)
        for axis, name in arms.items():
            row |= self.arms.get(axis, {}).get(name, {})
        for names, more in self.where:
            if names.items() <= arms.items():
                row |= more
        return row


def rows(source: str, **values: object) -> Row:
    """Return facts of one source."""
    return {name: (value, source) for name, value in values.items()}


def method(source: str, name: str, **options: object) -> Row:
    """Return the fact of an algorithm with its options."""
    return {"method": ({"name": name, **options}, source)}


def divided(source: str, name: str, clients: int, **options: object) -> Row:
    """Return the facts of a partition into so many clients."""
    return rows(source, clients=clients, partition={"name": name, "clients": clients, **options})
