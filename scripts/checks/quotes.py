"""Look for every quote that the tests keep, in the papers' full texts and in checkouts of released code.

    python scripts/checks/quotes.py TEXTS --code OWNER/NAME=DIR [--code ...]

TEXTS is a folder with a text file per paper, by its name (fed-co2.txt is tests/papers/texts/fedco2.txt). DIR is a
checkout or a bare repository; a quote's commit is read from it. Exit code 1 if anything was looked for and not found.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

KEPT = Path(__file__).parents[2] / "tests" / "papers" / "texts"


def released(folder: str, commit: str, place: str, lines: list[str]) -> bool:
    """Return whether these lines are the file's, from the line that the place names."""
    path, _, first = place.rpartition(":")
    command = ["git", "-C", folder, "show", f"{commit}:{path}"]
    shown = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    found = shown.stdout.split("\n")[int(first) - 1 :]
    return [line.strip() for line in found[: len(lines)]] == lines


def main() -> int:
    """Print each place whose quote is not found, and how many are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--code", action="append", default=[], metavar="OWNER/NAME=DIR")
    arguments = parser.parse_args()
    checkouts = dict(one.partition("=")[::2] for one in arguments.code)
    full = {re.sub(r"\W", "", file.stem): file for file in arguments.texts.glob("*.txt")}
    lost = 0
    for kept in sorted(KEPT.glob("*.txt")):
        head, *parts = re.split(r"^\[(.+)\]$", kept.read_text(encoding="utf-8"), flags=re.M)
        names = dict(re.findall(r"(\S+) = (\S+ @\S+)", head))
        file = full.get(kept.stem) or parser.error(f"{arguments.texts}: no text of {kept.stem}")
        text = " ".join(file.read_text(encoding="utf-8").split())
        found = skipped = 0
        for place, part in zip(parts[::2], parts[1::2], strict=True):
            lines = part.strip().split("\n")
            name, _, line = place.partition(" ")
            repository, _, commit = names.get(name, "").partition(" @")
            if repository and repository not in checkouts:
                skipped += 1
                continue
            there = all(" ".join(line.split()) in text for line in lines)
            if repository:
                there = released(checkouts[repository], commit, line, lines)
            found, lost = found + there, lost + (not there)
            if not there:
                print(f"{kept.name}: [{place}] is not there")
        print(f"{kept.name}: {found} of {len(parts) // 2} found, {skipped} without a checkout")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
