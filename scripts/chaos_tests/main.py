"""Kill federations at random moments, resume them, and compare with those nobody killed.

The kills of a case follow from --seed and the case's number, which every line names: `scripts/chaos
--seed S --case N` runs it again (processes are never scheduled alike twice, so what hangs on
milliseconds may need several attempts).
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from catalogue import Federation, catalogue
from killing import SIGNALS, Case, Outcome, Place
from modes import MODES


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    groups = sorted({f.group for f in catalogue()})
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=20, help="end after so many (default 20)")
    parser.add_argument("--hours", type=float, help="or after so long")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KIND",
        help=f"groups ({', '.join(groups)}) or parts of names of federations",
    )
    parser.add_argument(
        "--mode",
        choices=("kills", "signals", "disk", "clock", "two"),
        default="kills",
        help="signals: processes are not killed but asked to end by SIGINT, SIGTERM or SIGHUP; disk: "
        "everything lies on a small file system, which is full now and then (needs root); clock: "
        "every session has another time; two: other commands look at the run, or want to go on "
        "with it too, while it runs",
    )
    parser.add_argument(
        "--victims", nargs="+", default=[], help="only these die, where a federation has them"
    )
    parser.add_argument("--case", type=int, help="only this case, again; its folder is kept")
    parser.add_argument(
        "--cold", action="store_true", help="a new interpreter for every command, as a person does"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("build/chaos"), help="references, cases, log"
    )
    parser.add_argument("--list", action="store_true", help="show the federations")
    parser.add_argument(
        "--table", action="store_true", help="only show the table of all cases logged in the folder"
    )
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Federation]:
    """Return the federations to run."""
    groups = {f.group for f in catalogue()}
    found = [
        f
        for f in catalogue()
        if not options.only
        or any(f.group == part if part in groups else part in f.name for part in options.only)
    ]
    if options.victims:
        found = [
            Federation(
                **{
                    **vars(f),
                    "victims": {v: w for v, w in f.victims.items() if v in options.victims},
                }
            )
            for f in found
        ]
        found = [f for f in found if f.victims]
    if options.mode == "signals":
        found = [Federation(**{**vars(f), "victims": dict.fromkeys(SIGNALS, 1.0)}) for f in found]
    return found


def order(federations: list[Federation], seed: int, index: int) -> Federation:
    """Return the federation of a case: all of them, shuffled anew for each pass."""
    lap, position = divmod(index, len(federations))
    return random.Random(f"{seed}/lap/{lap}").sample(federations, len(federations))[position]


def run(options: argparse.Namespace) -> bool:
    """Run cases until there were enough kills; True if nothing differed."""
    federations = chosen(options)
    if not federations:
        sys.exit("no federation has such a name")
    place, good, kills, index = Place(options.folder, options.cold), True, 0, options.case or 0
    end = time.monotonic() + options.hours * 3600 if options.hours else None
    before = None
    try:
        while True:
            federation = order(federations, options.seed, index)
            if before is not None and before.place == "nodes" and federation.place != "nodes":
                place.leave_nodes()
            before = federation
            outcome = MODES.get(options.mode, Case)(place, federation, options.seed, index).run()
            hits = sum(bool(k.hit) for k in outcome.kills)
            kills += hits
            good &= not outcome.differences
            log(options.folder, outcome)
            print(
                f"[{kills}] seed {options.seed} case {index}: {federation.name}, {hits} kills "
                f"({', '.join(k.victim for k in outcome.kills if k.hit)}), {outcome.sessions} "
                f"sessions, "
                f"{outcome.seconds:.0f} s: {'DIFFERENT' if outcome.differences else 'the same'}",
                flush=True,
            )
            if outcome.differences:
                for kill in outcome.kills:
                    print(f"    {kill}")
                for line in outcome.differences[:12]:
                    print(f"  ! {line}")
                print(
                    f"    kept in {options.folder / 'cases' / f'{options.seed}-{index}'}",
                    flush=True,
                )
            index += 1
            if (
                options.case is not None
                or (kills >= options.kills and end is None)
                or (end is not None and time.monotonic() > end)
            ):
                return good
    finally:
        place.close()


def log(folder: Path, outcome: Outcome) -> None:
    """Add a line to the log."""
    with (folder / "log.jsonl").open("a") as file:
        kills = [{**vars(k)} for k in outcome.kills]
        file.write(json.dumps({**vars(outcome), "kills": kills}) + "\n")


def table(folder: Path) -> None:
    """Print all logged cases by federation and victim."""
    rows: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    seeds: set[int] = set()
    path = folder / "log.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        case: dict[str, Any] = json.loads(line)
        seeds.add(case["seed"])
        row = rows[case["federation"]]
        row["cases"] += 1
        row["different"] += bool(case["differences"])
        for kill in case["kills"]:
            row["asked" if kill["victim"] in SIGNALS else kill["victim"]] += bool(kill["hit"])
    victims = ["driver", "head", "client", "server", "trial", "node", "tracking", "asked"]
    print(f"{'federation':28}" + "".join(f"{v:>9}" for v in (*victims, "cases", "different")))
    total: dict[str, int] = defaultdict(int)
    for name in sorted(rows):
        print(
            f"{name:28}"
            + "".join(f"{rows[name][v] or '-':>9}" for v in (*victims, "cases", "different"))
        )
        for key, value in rows[name].items():
            total[key] += value
    print(f"{'all':28}" + "".join(f"{total[v]:>9}" for v in (*victims, "cases", "different")))
    print(f"{sum(total[v] for v in victims)} kills, seeds {sorted(seeds)}")


def main() -> None:
    """Do what the command line asks for."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments()
    if options.list:
        for federation in chosen(options):
            print(f"{federation.group:10} {federation.name:28} {', '.join(federation.victims)}")
        return
    if options.table:
        table(options.folder)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    good = run(options)
    table(options.folder)
    sys.exit(not good)


if __name__ == "__main__":
    main()
