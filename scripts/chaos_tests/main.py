"""Kill federations at random moments, resume them, and compare with those nobody killed.

The kills of a case follow from --seed and the case's number, which every line names: `scripts/chaos
--seed S --case N` runs it again (processes are never scheduled alike twice, so what hangs on
milliseconds may need several attempts).
"""

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from catalogue import Federation, catalogue
from killing import SIGNALS, Case
from modes import MODES
from place import Place

VICTIMS = ("driver", "head", "client", "server", "trial", "node", "tracking", "asked")
HELP_OF_MODE = """signals: processes are not killed but asked to end by SIGINT, SIGTERM or SIGHUP; disk:
everything lies on a small file system, which is full now and then (needs root); clock: every session has another
time; two: other commands look at the run, or want to go on with it too, while it runs"""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    groups = ", ".join(sorted({f.group for f in catalogue()}))
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seed", type=int, default=0)
    add("--kills", type=int, default=20, help="end after so many (default 20)")
    add("--hours", type=float, help="or after so long")
    help_only = f"groups ({groups}) or parts of names of federations"
    add("--only", nargs="+", default=[], metavar="KIND", help=help_only)
    add("--mode", choices=("kills", "signals", *MODES), default="kills", help=HELP_OF_MODE)
    add("--victims", nargs="+", default=[], help="only these die, where a federation has them")
    add("--case", type=int, help="only this case, again; its folder is kept")
    add("--cold", action="store_true", help="a new interpreter for every command, as a person does")
    add("--folder", type=Path, default=Path("build/chaos"), help="references, cases, log")
    add("--list", action="store_true", help="show the federations")
    help_table = "only show the table of all cases logged in the folder"
    add("--table", action="store_true", help=help_table)
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Federation]:
    """Return the federations to run."""
    groups = {f.group for f in catalogue()}
    found = []
    for one in catalogue():
        named = any(one.group == k if k in groups else k in one.name for k in options.only)
        victims = {v: w for v, w in one.victims.items() if v in (options.victims or one.victims)}
        if victims and (named or not options.only):
            if options.mode == "signals":
                victims = dict.fromkeys(SIGNALS, 1.0)
            found.append(replace(one, victims=victims))
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
    try:
        while True:
            federation = order(federations, options.seed, index)
            if federation.place != "nodes":
                place.leave_nodes()
            outcome = MODES.get(options.mode, Case)(place, federation, options.seed, index).run()
            victims = [k.victim for k in outcome.kills if k.hit]
            kills += len(victims)
            good &= not outcome.differences
            with (options.folder / "log.jsonl").open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
            print(
                f"[{kills}] seed {options.seed} case {index}: {federation.name}, {len(victims)} kills "
                f"({', '.join(victims)}), {outcome.sessions} sessions, {outcome.seconds:.0f} s: "
                f"{'DIFFERENT' if outcome.differences else 'the same'}",
                flush=True,
            )
            if outcome.differences:
                print(*(f"    {kill}" for kill in outcome.kills), sep="\n")
                print(*(f"  ! {line}" for line in outcome.differences[:12]), sep="\n")
                folder = options.folder / "cases" / f"{options.seed}-{index}"
                print(f"    kept in {folder}", flush=True)
            index += 1
            enough = kills >= options.kills if end is None else time.monotonic() > end
            if enough or options.case is not None:
                return good
    finally:
        place.close()


def table(folder: Path) -> None:
    """Print all logged cases by federation and victim."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
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
    columns, total = (*VICTIMS, "cases", "different"), sum(rows.values(), Counter[str]())
    print(f"{'federation':28}" + "".join(f"{name:>9}" for name in columns))
    for name in sorted(rows):
        print(f"{name:28}" + "".join(f"{rows[name][column] or '-':>9}" for column in columns))
    print(f"{'all':28}" + "".join(f"{total[column]:>9}" for column in columns))
    print(f"{sum(total[victim] for victim in VICTIMS)} kills, seeds {sorted(seeds)}")


def main() -> None:
    """Do what the command line asks for."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments()
    if options.list:
        for federation in chosen(options):
            print(f"{federation.group:10} {federation.name:28} {', '.join(federation.victims)}")
        return
    good = options.table or run(options)
    table(options.folder)
    sys.exit(not good)


if __name__ == "__main__":
    main()
