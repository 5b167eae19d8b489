"""Sources of facts: quotes from texts that are kept beside them, a sentence or a line of code each.

A source is a place and a quote, `section 4.1: batch size of 256`, or several of them with ` // ` between; ` ... ` in a
quote leaves words out. Each number of a fact stands in a quote, as a figure, in per cent or as a word, or is computed
from numbers that do, by a rule that the source names: `743 = int(7438 * 0.1)`. Two more have no place: `ours: ...` says
what paper and code leave open, or where a suite departs from them; `known: ...` gives what no text has, the size of a
public data set or what a picture shows, and stands beside a quote.
"""

import functools
import re
from pathlib import Path

from tests.papers.protocols import Row

TEXTS = Path(__file__).parents[1] / "texts"
WORDS = "zero one two three four five six seven eight nine ten"
NUMBERS = {word: float(number) for number, word in enumerate(WORDS.split())}
SHARES = {"half": 0.5, "each": 1.0, "every": 1.0, "all": 1.0}
NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e\^?\{?-\d+)?)\s*(%?)")
RULE = re.compile(r"([\d.]+) = ([a-z\d.+*/()\s-]+)")


@functools.cache
def texts(paper: str) -> dict[str, str]:
    """Return what is kept of a paper, by place; lines of one place follow each other."""
    places: dict[str, str] = {}
    _, *parts = re.split(r"^\[(.+)\]$", (TEXTS / f"{paper}.txt").read_text("utf-8"), flags=re.M)
    for place, text in zip(parts[::2], parts[1::2], strict=True):
        places[place] = " ".join([*places.get(place, "").split(), *text.split()])
    return places


def numbers(text: str) -> set[float]:
    """Return the numbers of a text; converted formulas write one several times, 646464 for 64."""
    found = {
        float(re.sub(r"[\^{]", "", number)) / (100 if sign and percent else 1)
        for number, percent in NUMBER.findall(text)
        for sign in (False, True)
    }
    found |= {float(part[1]) for part in re.finditer(r"(?<![\d.])(\d+?)\1{2,}(?!\.?\d)", text)}
    words = set(re.findall("[a-z]+", text.lower()))
    return found | {number for word, number in (NUMBERS | SHARES).items() if word in words}


def stands(quote: str, text: str) -> bool:
    """Return whether the parts of a quote stand in a text, in order, and cut no word or number."""
    parts = []
    for part in quote.split(" ... "):
        before = r"(?<![\w.])" if part[:1].isdigit() else r"(?<!\w)" if part[:1].isalpha() else ""
        after = r"(?!\w|\.\d)" if part[-1:].isalnum() else ""
        parts.append(before + re.escape(" ".join(part.split())) + after)
    return len(quote) > 3 and re.search(".*?".join(parts), text) is not None


def values(value: object) -> set[float]:
    """Return the numbers in a value, and those in names of networks and data."""
    if isinstance(value, str):
        return numbers(re.sub("[a-z]{2,}", " ", value))
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return {number for part in parts for number in values(part)}
    return (
        {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()
    )


def faults(paper: str, value: object, source: str) -> list[str]:
    """Return what is wrong with a fact's source."""
    found, said, rules, quoted = [], "", [], False
    for part in source.split(" // "):
        place, _, quote = part.partition(": ")
        if RULE.fullmatch(part):
            rules.append(part)
        elif place in ("ours", "known"):
            said += f" {quote}"
            if len(quote.split()) < 3:
                found.append(f"{part!r} does not say what is left open")
        elif not quote:
            found.append(f"no quote: {part!r}")
        elif not stands(quote, texts(paper).get(place, "")):
            found.append(f"{place!r} has no {quote!r}")
        else:
            quoted, said = True, f"{said} {quote}"
    if not found and not quoted and (rules or not source.startswith("ours: ")):
        found.append(f"no quote: {source!r}")
    if found:
        return found
    known = numbers(said)
    for rule in rules:
        number, how = RULE.fullmatch(rule).groups()  # type: ignore[union-attr]
        names = {"__builtins__": {}, "int": int, "sum": sum, "range": range}
        computed = eval(how, names)  # written in these files, and of the signs of RULE alone
        if round(computed, len(number.partition(".")[2])) != float(number):
            found.append(f"{rule!r} is {computed}")
        elif lacking := values(how) - known:
            found.append(f"{rule!r} has {sorted(lacking)}, which is not quoted")
        known.add(float(number))
    if quoted and (lacking := values(value) - known):
        found.append(f"{sorted(lacking)} of {value!r} is not quoted: {source!r}")
    return found


def wrong(paper: str, row: Row) -> list[str]:
    """Return what is wrong with the sources of a row, by field; a method's name is no number."""
    found = []
    for field, (value, source) in row.items():
        options = {**value, "name": ""} if field == "method" and isinstance(value, dict) else value
        found += [f"{field}: {fault}" for fault in faults(paper, options, source)]
    return found
