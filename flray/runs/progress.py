"""Progress of runs and sweeps: a bar on a terminal, one line in a notebook, lines in a log."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich import progress
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from flray.errors import NO_TEXT, one_line
from flray.process import reader_gone

if TYPE_CHECKING:
    from flray.federation import FederationSpec
    from flray.federation.federation import RoundResult


def _ignore(self: object, *info: Any, **more: Any) -> None:
    """Do nothing."""


class Progress:
    """A display of a run or sweep that shows nothing; derive yours, as `RunProgress` and `SweepProgress` do."""

    begin = trial_started = round = trial_done = ended = standing = values = say = end = _ignore

    def tell(self, line: str) -> None:
        """Show a line for the user, and give it to the logger ``flray`` too."""
        logging.getLogger("flray").info(line)
        self.say(line)


class _Console(Console):
    """A console that shows no control characters, and stops a run as a closed terminal does if its reader goes."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text to be printed or measured, escaped."""
        return super().render_str(_escape(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments to be printed, with their texts escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else _escape(text), style, control)

    def on_broken_pipe(self) -> None:
        """Write no more, and stop."""
        reader_gone()


def _escape(text: str) -> str:
    return "\n".join(map(one_line, text.split("\n"))) if NO_TEXT.search(text) else text


# Names and messages are data: their [tags] are not markup, nor their :names: emoji.
console = _Console(
    highlight=False,
    markup=False,
    emoji=False,
    soft_wrap=True,
    width=None if sys.stdout.isatty() else 140,
)


class _Bar(progress.Progress):
    """A bar with a line below it."""

    below = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, and the line if there is one."""
        yield from super().get_renderables()
        if self.below:
            yield Text(self.below, no_wrap=True, overflow="ellipsis")


class _Display(Progress):
    """A bar on a terminal, one changing line in a notebook, otherwise lines."""

    def __init__(self) -> None:
        self._bar: _Bar | None = None
        self._task: progress.TaskID | None = None
        self._cell: Any = None
        self._state: dict[str, Any] = {}
        self._printed = time.monotonic()

    def say(self, line: str) -> None:
        """Show a line for the user."""
        (self._bar.console if self._bar is not None else console).print(one_line(line))
        sys.stdout.flush()

    def end(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_bar(self, unit: str, total: int, done: int, *after: progress.ProgressColumn) -> None:
        """Open a bar where the output is a terminal, or a line in a notebook; `_update` sets the text behind it."""
        if console.is_jupyter:
            from IPython.display import display  # a notebook has it

            self._state = {"unit": unit, "total": total, "completed": done, "news": ""}
            self._cell = display({"text/plain": ""}, raw=True, display_id=True)
            self._update()
        elif console.is_terminal:
            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[news]}", markup=False),
                *after,
            )
            self._bar = _Bar(*columns, console=console)
            self._task = self._bar.add_task(unit, total=total, completed=done, news="")
            self._bar.start()

    def _update(self, done: int | None = None, news: str | None = None) -> bool:
        """Bring the bar or line up to date; False if there is none."""
        changed: dict[str, Any] = {"completed": done, "news": news}
        changed = {name: value for name, value in changed.items() if value is not None}
        if self._cell is not None:
            self._state |= changed
            text = "{unit} {completed}/{total}  {news}".format(**self._state)
            self._cell.update({"text/plain": one_line(text)}, raw=True)
        elif self._bar is not None and self._task is not None:
            self._bar.update(self._task, **changed)
        else:
            return False
        return True


class RunProgress(_Display):
    """A bar on a terminal, otherwise a line per round (at most one a second) so that logs stay readable."""

    def begin(self, spec: FederationSpec, done: int) -> None:
        """Show that the rounds start after `done`."""
        self._total, self._done_at_start = spec.config.rounds, done
        self._begun = time.monotonic()
        if done:
            self.say(f"going on after round {done} of {self._total}")
        self._show_bar("round", self._total, done, progress.TimeRemainingColumn())

    def round(self, finished: RoundResult, metric: str) -> None:
        """Show a finished round."""
        value = finished.metrics.get(metric)
        score = f"{metric} {value:.4f}" if value is not None else ""
        if self._update(finished.number, news=score):
            return
        now = time.monotonic()
        if now - self._printed >= 1.0 or finished.number in (1, self._total):
            self._printed = now
            pace = (now - self._begun) / max(1, finished.number - self._done_at_start)
            left = pace * (self._total - finished.number)
            self.say(
                f"round {finished.number}/{self._total}  {score}  "
                f"{finished.metrics['time/round']:.2f} s  {left:.0f} s left"
            )


_STANDING_SECONDS = 60.0
"""Between two lines on how a sweep stands, where there is no bar."""


class SweepProgress(_Display):
    """A bar over trials with the running ones' newest scores; on a file, a line per trial and now and then a round."""

    def __init__(self) -> None:
        super().__init__()
        self._printed = 0.0
        self._stood = time.monotonic()

    def begin(self, total: int, done: int) -> None:
        """Show that `total` trials run, `done` of them already."""
        self._total, self._done = total, done
        self.say(f"{total} trials" + (f", {done} of them done before" if done else ""))
        self._show_bar("trials", total, done)

    def trial_started(self, number: str, label: str, rounds_done: int) -> None:
        """Show that a trial starts or resumes."""
        if self._bar is None and self._cell is None:
            self.say(
                f"trial {number} begins: {label}"
                + (f" (after round {rounds_done})" if rounds_done else "")
            )

    def round(
        self, number: str, label: str, done: int, rounds: int, score: float, left: float
    ) -> None:
        """Show a finished round of a trial, with the seconds the sweep will still take."""
        time_left = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"
        news = f"{label}: round {done}/{rounds}{_told(score)}, about {time_left} left"
        if not self._update(news=one_line(news)) and time.monotonic() - self._printed >= 10.0:
            self._printed = time.monotonic()
            self.say(f"trial {number} {news}")

    def trial_done(
        self, number: str, label: str, status: str, rounds_done: int, score: float
    ) -> None:
        """Show that a trial ended."""
        self._done += 1
        self._update(self._done)
        self.say(
            f"trial {number} {status} after {rounds_done} rounds{_told(score)}: {label} "
            f"({self._done}/{self._total})"
        )

    def ended(self, trials: int) -> None:
        """Show how many trials have ended, with those that were stopped or taken over between two batches."""
        self._done = trials
        self._update(trials)

    def standing(self, line: str) -> None:
        """Show how the sweep stands: below the bar, or in a log now and then."""
        if self._bar is not None:
            self._bar.below = one_line(line)
        elif time.monotonic() - self._stood >= _STANDING_SECONDS:
            self._stood = time.monotonic()
            self.say(line)

    def values(self, result: Any) -> None:
        """Say that the report follows; the table is the caller's."""
        self.say("the trials have ended; writing the report")


def _told(score: float) -> str:
    return "" if math.isnan(score) else f", score {score:.4f}"  # not every round is evaluated


def shown(progress: Progress | bool | None, display: type[Progress]) -> Progress:
    """Return the display of a run or sweep.

    Parameters
    ----------
    progress : Progress, bool or None
        The caller's own; False for none, True for ours; None for ours if somebody looks on, which is
        on a terminal and in a notebook.
    display : type
        Ours.
    """
    if progress is None:
        progress = console.is_jupyter or sys.stdout.isatty()
    if isinstance(progress, bool):
        return display() if progress else Progress()
    return progress
