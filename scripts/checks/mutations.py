"""Change one operator or constant at a time and say which changes the tests notice.

    pip install pytest-cov
    nice python scripts/checks/mutations.py TREE --packages algorithms functional federation tuning --number 60

TREE is a checkout of any version; it is copied, never changed. Which tests run a line is measured once per checkout
(kept in ``--coverage``); a mutated line then meets at most ``--most`` of them, those that run least else first. Only
tests without the mark ``slow`` take part: a survivor may still be caught by one that starts Ray or a process.
"""

import argparse
import ast
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAIRS: tuple[tuple[Any, Any], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    *((ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div)),
)
OTHER = {**dict(PAIRS), **{b: a for a, b in PAIRS}}
"""Each operator's other one."""
TESTS = {
    "algorithms": ["tests/algorithms", "tests/functional"],
    "functional": ["tests/functional", "tests/algorithms"],
    "federation": ["tests/federation", "tests/end_to_end"],
    "tuning": ["tests/tuning"],
}


@dataclass(frozen=True)
class Mutation:
    """One change: ``before`` becomes ``after`` at a place of a file."""

    file: str
    line: int
    start: int
    end_line: int
    end: int
    before: str
    after: str


def mutate(node: ast.expr) -> ast.expr | None:
    """Return a changed copy of an expression, or None if it is not of a kind that is changed."""
    try:
        copy = ast.parse(ast.unparse(node), mode="eval").body
    except SyntaxError:  # slices and starred expressions cannot stand alone
        return None
    if isinstance(copy, ast.Compare) and type(copy.ops[0]) in OTHER:
        copy.ops[0] = OTHER[type(copy.ops[0])]()
    elif isinstance(copy, ast.BinOp) and type(copy.op) in OTHER:
        copy.op = OTHER[type(copy.op)]()
    elif isinstance(copy, ast.BoolOp):
        copy.op = ast.Or() if isinstance(copy.op, ast.And) else ast.And()
    elif isinstance(copy, ast.UnaryOp) and isinstance(copy.op, ast.Not | ast.USub):
        return copy.operand
    elif isinstance(copy, ast.Constant) and isinstance(copy.value, int | float):
        value = copy.value
        copy.value = not value if isinstance(value, bool) else value + 1
    else:
        return None
    return copy


def expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions inside functions; annotations, defaults, decorators and f-strings are left out."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            todo: list[ast.AST] = list(function.body)
            while todo:
                node = todo.pop()
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.JoinedStr | ast.Raise):
                    continue
                if isinstance(node, ast.expr):
                    yield node
                if isinstance(node, ast.AnnAssign):
                    todo += [node.value] if node.value else []
                else:
                    todo += ast.iter_child_nodes(node)


def mutations(tree: Path, package: str) -> list[Mutation]:
    """Return every mutation of a package that can be written down, in the order of the text."""
    found = set()
    for path in sorted((tree / "flray" / package).rglob("*.py")):
        text = path.read_text()
        for node in expressions(ast.parse(text)):
            changed = mutate(node)
            before = ast.get_source_segment(text, node)
            if changed is None or before is None or not text.isascii():
                continue
            place = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
            after = f"({ast.unparse(changed)})"
            found.add(Mutation(str(path.relative_to(tree)), *place, before, after))
    return sorted(found, key=lambda item: (item.file, item.line, item.start, item.end))


def measure(tree: Path, data: Path, folders: list[str]) -> None:
    """Run the quick tests once and note which of them ran which line."""
    chosen = [folder for folder in folders if (tree / folder).exists()]
    quick = ["-m", "not slow", "-p", "no:cacheprovider", "--cov=flray", "--cov-context=test"]
    environment = os.environ | {"PYTHONPATH": str(tree), "COVERAGE_FILE": str(data)}
    command = [sys.executable, "-m", "pytest", "-q", *quick, "--cov-report=", *chosen]
    subprocess.run(command, cwd=tree, env=environment, check=False)


def numbers_of(bits: bytes) -> set[int]:
    """Return the line numbers that coverage's database keeps as one bit each."""
    return {8 * i + bit for i, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1}


def tests_of_line(data: Path, file: str, lines: range) -> list[str]:
    """Return the tests that ran one of the lines, those first that run fewest lines of all files."""
    with sqlite3.connect(data) as database:
        rows = database.execute(
            "select context.context, numbits from line_bits join file on file.id = file_id"
            " join context on context.id = context_id where file.path like ?",
            (f"%/{file}",),
        ).fetchall()
        sizes = database.execute(
            "select context, sum(length(numbits)) from line_bits"
            " join context on context.id = context_id group by context"
        )
        size = dict(sizes.fetchall())
    names = {name for name, bits in rows if name and numbers_of(bits) & set(lines)}
    return sorted(
        {name.split("|")[0] for name in names}, key=lambda name: (size.get(name, 0), name)
    )


def write(path: Path, mutation: Mutation) -> None:
    """Put a mutation into a file."""
    lines = path.read_text().splitlines(keepends=True)
    head = "".join(lines[: mutation.line - 1]) + lines[mutation.line - 1][: mutation.start]
    tail = lines[mutation.end_line - 1][mutation.end :] + "".join(lines[mutation.end_line :])
    path.write_text(head + mutation.after + tail)


def is_caught(tree: Path, mutation: Mutation, tests: list[str], limit: float) -> bool:
    """Say whether a test fails, or nothing ends within ``limit`` seconds, with the mutation in place."""
    path = tree / mutation.file
    original = path.read_text()
    write(path, mutation)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=limit, check=False
        )
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(original)


def main() -> int:
    """Sample, mutate, test and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--packages", nargs="+", default=list(TESTS))
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=25, help="tests per mutation")
    parser.add_argument("--limit", type=float, default=300, help="seconds per mutation")
    parser.add_argument("--copy", type=Path, required=True, help="folder for the changed copy")
    parser.add_argument("--coverage", type=Path, required=True, help="file of what ran which line")
    options = parser.parse_args()
    left_out = {str(options.tree / name) for name in (".git", ".venv", "runs", "sweeps")}
    shutil.copytree(
        options.tree,
        options.copy,
        ignore=lambda folder, names: [name for name in names if f"{folder}/{name}" in left_out],
        dirs_exist_ok=True,
    )
    copy, data = options.copy.resolve(), options.coverage.resolve()
    if not data.exists():
        measure(copy, data, sorted({f for name in options.packages for f in TESTS[name]}))
    caught = total = 0
    for package in options.packages:
        pool = mutations(copy, package)
        draw = random.Random(f"{options.seed} {package}")
        share = options.number // len(options.packages)
        for mutation in draw.sample(pool, share):
            lines = range(mutation.line, mutation.end_line + 1)
            tests = tests_of_line(data, mutation.file, lines)[: options.most]
            noticed = bool(tests) and is_caught(copy, mutation, tests, options.limit)
            caught, total = caught + noticed, total + 1
            said = "caught  " if noticed else "SURVIVED" if tests else "NOT RUN "
            print(
                f"{said} {mutation.file}:{mutation.line} {mutation.before!r} -> {mutation.after!r}"
                f" ({len(tests)} tests)",
                flush=True,
            )
    print(f"{caught} of {total} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
