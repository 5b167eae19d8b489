"""The part ``paper`` of a suite: the printed table it reproduces, and the mapping from runs to its numbers."""

from typing import Literal

from pydantic import Field, field_validator

from flray.config.sections import Section

PaperName = Literal["fedco2", "fcclplus", "fedskc", "lgmix"]


class PaperTable(Section):
    """Ties a sweep with arms to a table of a paper.

    A cell of the table is a combination of arms, a client and a measure. Its printed number is a row
    of `flray.papers.reported`. The row's ``method`` is the name of the arm of the axis ``method``,
    unless `printed` gives another value; its ``client`` and ``metric`` are those of the cell.
    """

    name: PaperName
    """the paper"""
    table: str = Field(pattern=r"^(table|fig)\d+$")
    """the table or figure, for example table1"""
    title: str = Field(min_length=1)
    """what it shows, in a few words"""
    rows: str = "method"
    """axis of arms whose arms are the rows; the others are columns"""
    measures: dict[str, str] = Field({"top1": "own/accuracy"}, min_length=1)
    """printed metric: what is measured here. own/X: the method's own model on each client's test part (global/local/X
    or personal/local/X); others/X: on the other clients' parts; pooled/X: the method's own model on all clients'
    test parts together (global/common/X or personal/pooled/X); auto: the method's main metric; a metric's name; any
    of them with `>= 75`: first round that reaches 75 %; hours; memory (most MiB on a GPU, without one of a client
    process); several with ` | ` between them: the first that was measured"""
    clients: dict[str, tuple[str, ...]] | None = Field({})
    """printed client: clients or domains here, where the names differ; of several, as with several data sets, the one
    that there is; null: averages only"""
    printed: dict[str, dict[str, dict[str, str]]] = Field(default_factory=dict)
    """by axis and arm: columns of the printed rows with their values"""
    departures: tuple[str, ...] = ()
    """how this suite differs from the paper's experiment"""

    @field_validator("measures", mode="before")
    @classmethod
    def _taken_out(cls, value: object) -> object:
        """Leave out measures of a base that are set to null."""
        return (
            {key: one for key, one in value.items() if one is not None}
            if isinstance(value, dict)
            else value
        )


__all__ = ["PaperName", "PaperTable"]
