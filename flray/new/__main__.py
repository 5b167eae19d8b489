"""The command ``python -m flray.new``; the templates lie beside it."""

import argparse
import keyword
import re
import sys
from pathlib import Path
from string import Template

from flray import registry
from flray.errors import FlrayError

TEMPLATES = Path(__file__).parent
ROOT = TEMPLATES.parents[1]
ADDED = "### Added\n\n"


def new_method(name: str) -> list[Path]:
    """Write a method that runs, its test and its line in CHANGELOG.md; return the new files.

    Parameters
    ----------
    name : str
        As a YAML file will name it.

    Raises
    ------
    FlrayError
        If the name cannot be one or is taken, or if this is not a checkout; nothing is written.
    """
    log = ROOT / "CHANGELOG.md"
    files = {
        ROOT / "flray" / "algorithms" / f"{name}.py": "method.py.txt",
        ROOT / "tests" / "algorithms" / f"test_{name}.py": "test.py.txt",
    }
    if not re.fullmatch("[a-z][a-z0-9]{1,30}", name) or keyword.iskeyword(name):
        raise FlrayError(
            f"{name!r}: a method's name is a small letter, then small letters or digits, and no word of Python"
        )
    if not log.is_file() or not all(path.parent.is_dir() for path in files):
        raise FlrayError(f"{ROOT}: not a checkout of flray, which has CHANGELOG.md and tests/")
    if taken := [str(path) for path in files if path.exists()]:
        raise FlrayError(f"{name}: it exists already ({', '.join(taken)}); choose another name")
    if name in registry.algorithms.names():
        raise FlrayError(f"{name}: there is a method of this name; choose another")
    for path, template in files.items():
        text = Template((TEMPLATES / template).read_text(encoding="utf-8"))
        with path.open("x", encoding="utf-8") as file:
            file.write(text.substitute(name=name, title=name.capitalize()))
    entries = log.read_text(encoding="utf-8")
    line = f"- The method `{name}`: say what it does in a sentence, with authors, venue and year.\n"
    log.write_text(entries.replace(ADDED, ADDED + line, 1), encoding="utf-8")
    return [*files, log]


def main(arguments: list[str]) -> int:
    """Do what the command line says."""
    about = str(new_method.__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m flray.new", description=about)
    parser.add_argument("what", choices=["method"])
    parser.add_argument("name", metavar="NAME")
    try:
        print(*new_method(parser.parse_args(arguments).name), sep="\n")
    except FlrayError as error:
        print(f"flray: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
