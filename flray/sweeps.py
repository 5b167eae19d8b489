"""Run or resume a sweep and write its report: what ``flray tune`` does, for Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.results.sweep import SweepResult
from flray.runs.progress import SweepProgress
from flray.tuning import sweep


def tune(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    address: str | None = None,
    progress: SweepProgress | None = None,
    smoke: bool = False,
    **replaced: Any,
) -> SweepResult:
    """Run a sweep and write its report.

    Parameters
    ----------
    source : path or mapping
        A YAML file with ``experiment``, ``space`` and ``sweep``, or its content.
    overrides : iterable of str
        ``key=value``, as on the command line.
    address : str, optional
        A running Ray cluster; without it Ray is started on this machine.
    progress : SweepProgress, optional
        Shows the progress; nothing is shown without.
    smoke : bool
        Only prove that everything runs; see `flray.config.suites.smoke`.
    **replaced
        Parts of the experiment to replace, for example ``rounds=5``.

    Raises
    ------
    FlrayError
        If a setting or a data file is wrong; then nothing has been created.
    InterruptedRunError
        If the user stopped it; the message says how to go on.
    """
    return sweep.tune(
        source,
        overrides,
        address=address,
        progress=progress,
        smoke=smoke,
        write_report=write_report,
        **replaced,
    )


def resume(
    folder: Path,
    *,
    address: str | None = None,
    progress: SweepProgress | None = None,
    plugins: Sequence[str] = (),
    other_cpu: bool = False,
) -> SweepResult:
    """Continue an interrupted sweep, or return the result of a finished one; failed trials run again.

    Parameters
    ----------
    folder : Path
        The sweep's folder.
    address : str, optional
        As in `tune`.
    progress : SweepProgress, optional
        As in `tune`.
    plugins : sequence of str
        Your own files in place of those that the settings name; see
        `flray.runs.resume_checks.load_config`.
    other_cpu : bool
        As in `flray.runs.runner.resume`.

    Raises
    ------
    FlrayError
        If the sweep's files are damaged, its CPU or settings have changed, or another process runs
        it.
    InterruptedRunError
        If the user stopped it again.
    """
    return sweep.resume(
        folder,
        address=address,
        progress=progress,
        plugins=plugins,
        other_cpu=other_cpu,
        write_report=write_report,
    )


def write_report(folder: Path, output: Path) -> Sequence[Path]:
    """Write a sweep's report into a folder and return its files."""
    from flray.reporting.build import make  # start-up: scikit-learn and matplotlib, at the end only

    made = make(folder, output)
    return [*made.files, *made.figures]
