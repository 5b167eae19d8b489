"""Run small configurations of every kind and print the digest of what each learnt, to compare two versions of flray.

    scripts/digests --json before.json          # with one version
    scripts/digests --compare before.json       # with another: says what differs; exit code 1 if anything does

Only what stays from version to version is used: the command line, `flray.run`, settings, and the files of a run or a
sweep. By configuration: `learnt`, the SHA-256 of everything learnt, one for each trial of a sweep; `values`, a digest
of all that was measured, names included; `settings`, a digest of the settings with their defaults and of the data.
Compare what one machine computed, for the last bits depend on the CPU. All of it takes a few minutes. FILE is relative
to the repository.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from digest_cases import Case, cases

import flray

VARIES = ("time/", "memory/", "system/", "train/seconds")
"""Metrics that tell of the machine and not of the run: seconds and bytes of memory are never the same twice."""
MEASURED = "seconds"
"""A column of results.csv, likewise."""
NAME, FILE = "digests", "digests.yaml"
KILLED_AFTER = 2
"""The round whose checkpoint has a run killed."""
SHOWN = 5
FLRAY = (sys.executable, "-m", "flray")
QUIET: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
QUIET["stdin"] = subprocess.DEVNULL
Facts = dict[str, Any]


class BrokenCaseError(Exception):
    """A case that did not end as it should."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/digests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    parser.add_argument("--json", **file, help="write everything that was found here")
    parser.add_argument("--compare", **file, help="what --json wrote, to compare with")
    named = "only configurations with one of these in the name"
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""], help=named)
    parser.add_argument("--no-ray", action="store_true", help="only what one process runs")
    options = parser.parse_args()
    before = json.loads(options.compare.read_text()) if options.compare else None
    named_so = [case for case in cases() if any(text in case.name for text in options.only)]
    chosen = [case for case in named_so if not (options.no_ray and case.ray)]
    began = time.monotonic()
    found = run(chosen)
    say(f"{len(chosen)} configurations in {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, sort_keys=True))
    lines = [f"{name}: {case['error']}" for name, case in found["cases"].items() if "error" in case]
    lines += unlike(chosen, found["cases"])
    if before is not None:
        lines += compare(found, before, whole=len(chosen) == len(cases()))
    for line in lines:
        say(line)
    if before is not None and not lines:
        say(f"none differs from {options.compare}")
    return 1 if lines else 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(chosen: list[Case]) -> Facts:
    """Return what every case came to, by name, and on what machine."""
    made: dict[str, Facts] = {}
    noted: Facts = {}
    with tempfile.TemporaryDirectory(prefix="flray-digests-") as base:
        try:
            for number, case in enumerate(chosen, start=1):
                began = time.monotonic()
                place = Path(base) / f"{number:03d}"
                place.mkdir()
                try:
                    with contextlib.chdir(place):
                        run = place / _played(case)
                    made[case.name] = facts(run)
                    noted = noted or json.loads(next(run.rglob("run.json")).read_text())
                # One that fails keeps none of the others from being compared.
                except Exception as error:
                    made[case.name] = {"error": f"{type(error).__name__}: {error}"}
                came = made[case.name]
                seconds = came["seconds"] = round(time.monotonic() - began, 1)
                said = came.get("error") or " ".join(one[:12] for one in came["learnt"].values())
                say(f"[{number}/{len(chosen)}] {case.name}: {said} ({seconds} s)")
        finally:
            ray.shutdown()
    return {"versions": noted.get("versions"), "cpu": noted.get("cpu"), "cases": made}


def _played(case: Case) -> Path:
    """Run a case in the current folder and return its own folder."""
    content = {**case.content, "experiment": {**case.content["experiment"], "name": NAME}}
    if case.way == "python":
        if case.ray and not ray.is_initialized():  # one for all; its actors wait most of the time
            quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
            ray.init(address="local", num_cpus=4, **quiet)
        return flray.run(content).folder
    Path(FILE).write_text(json.dumps(content))  # which is YAML
    folder = Path("runs") / NAME / "001"
    if case.way == "killed":
        _kill(folder)
        _command("resume", NAME)
    else:
        _command("tune" if case.sweep else "run", FILE)
    return folder


def _command(*arguments: str) -> None:
    done = subprocess.run([*FLRAY, *arguments], **QUIET)
    if done.returncode:
        last = " | ".join(done.stdout.strip().splitlines()[-3:])
        raise BrokenCaseError(f"flray {' '.join(arguments)} ended with {done.returncode}: {last}")


def _kill(folder: Path) -> None:
    """Begin a run and kill its process once it has a checkpoint."""
    checkpoint = folder / "checkpoint" / f"round-{KILLED_AFTER:06d}.json"
    with subprocess.Popen([*FLRAY, "run", FILE], **QUIET) as process:
        try:
            while not checkpoint.exists():
                if process.poll() is not None:
                    said = process.communicate()[0][-300:]
                    raise BrokenCaseError(f"the run ended before it was killed: {said}")
                time.sleep(0.005)
        finally:
            process.kill()
    status = json.loads((folder / "run.json").read_text())["status"]
    if status != "running":
        raise BrokenCaseError(f"it was to be killed while it runs, and is {status}")


def facts(folder: Path) -> Facts:
    """Return what a finished run or sweep is."""
    if (folder / "sweep.json").exists():
        whole = json.loads((folder / "sweep.json").read_text())
        values: Facts = {name: list(rows(folder / name)) for name in ("results.csv", "summary.csv")}
        learnt = {row["trial"]: row["sha256"] or row["status"] for row in values["results.csv"]}
        settings = {"sweep": whole["settings"]}
        for file in sorted(folder.glob("trials/*/run.json")):
            identity, name = json.loads(file.read_text()), file.parent.name
            settings[name] = {key: identity[key] for key in ("setting", "seed")}
            values[name] = _rounds(file.parent)
    else:
        whole = json.loads((folder / "run.json").read_text())
        learnt = {"": whole["sha256"]}
        settings = {key: whole[key] for key in ("settings", "data", "partition", "origins")}
        values = {"": _rounds(folder)}
    if whole["status"] != "finished":
        raise BrokenCaseError(f"it is {whole['status']}")
    digests = {"values": _digest(values), "settings": _digest(settings)}
    return {"learnt": learnt, **digests, "measured": values, "set": settings}


def _rounds(folder: Path) -> Facts:
    """Return by round what a journal holds and no clock measured; of a round recorded twice the last one counts."""
    rounds: Facts = {}
    for line in (folder / "journal.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["type"] == "round":
            metrics = event["metrics"].items()
            kept = {name: value for name, value in metrics if not name.startswith(VARIES)}
            rounds[str(event["round"])] = kept
    return rounds


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a table without what a clock measured."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield {name: value for name, value in row.items() if name != MEASURED}


def _digest(tree: Facts) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def unlike(chosen: list[Case], found: dict[str, Facts]) -> list[str]:
    """Return a line for each case that is not what it has to be like: the same run, run in another way."""
    lines = []
    for case in chosen:
        ours, theirs = found[case.name], found.get(case.like or "", {"error": ""})
        if "error" not in ours and "error" not in theirs:
            both = ({key: one[key] for key in ("learnt", "measured")} for one in (ours, theirs))
            told = f"{case.name} should be as {case.like}"
            lines += [f"{told}: {line}" for line in _differing(*both)]
    return lines


def compare(found: Facts, before: Facts, whole: bool) -> list[str]:
    """Return a line for each difference from what a file holds; what only the file has counts if all were run."""
    for key in ("versions", "cpu"):
        if found[key] != before[key]:
            say(f"NOTE: the file is of other {key}, whose last bits may be others: {before[key]}")
    lines = []
    for name, case in found["cases"].items():
        theirs = before["cases"].get(name)
        if theirs is None:
            say(f"NOTE: {name} is not in the file")
        elif "error" in theirs and "error" not in case:
            say(f"NOTE: {name} failed in the file: {theirs['error']}")
        elif "error" not in case:
            for key in ("learnt", "measured", "set"):
                differing = _differing({key: case[key]}, {key: theirs[key]})
                lines += [f"{name} differs: {line}" for line in differing]
    gone = before["cases"].keys() - found["cases"].keys() if whole else ()
    return lines + [f"{name}: in the file, and not here" for name in gone]


def _differing(ours: Any, theirs: Any) -> list[str]:
    """Return lines for the first leaves in which two trees differ, and one for how many more there are."""
    lines = list(leaves(ours, theirs))
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], *([f"and {more} more"] if more > 0 else [])]


def leaves(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each leaf in which two trees differ."""
    if isinstance(ours, list) and isinstance(theirs, list):
        ours, theirs = (dict(enumerate(part)) for part in (ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            place = f"{where}/{key}".strip("/")
            if key in ours and key in theirs:
                yield from leaves(ours[key], theirs[key], place)
            else:
                yield f"{place}: {'new' if key in ours else 'gone'}"
    elif ours != theirs:
        yield f"{where}: {ours}, and was {theirs}"


if __name__ == "__main__":
    sys.exit(main())
