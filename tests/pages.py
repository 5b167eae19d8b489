"""README and the pages under docs/ as tests read them: their blocks of code, with what is not run and why."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->$")
_NAMED = re.compile(r"# ([\w.-]+\.(?:py|yaml))$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, language, lines, and why it is not run (empty if it is)."""

    page: Path
    language: str
    lines: tuple[str, ...]
    not_run: str

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    @property
    def file(self) -> str | None:
        """The name of the file that it is, in its first line."""
        named = _NAMED.match(self.lines[0]) if self.lines else None
        return named and named.group(1)

    @property
    def commands(self) -> list[list[str]]:
        joined = self.text.replace("\\\n", " ").splitlines()
        return [words for line in joined if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    inside: list[str] | None = None
    language = reason = before = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if inside is not None:
            if line == "```":
                found.append(Block(page, language, tuple(inside), reason))
                inside = None
            else:
                inside.append(line)
        elif line.startswith("```"):
            note = _NOT_RUN.match(before)
            inside, language, reason = [], line[3:], note.group(1) if note else ""
        if line:
            before = line
    assert inside is None, f"{page}: a block is not closed"
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
FILES = {block.file: block.text for block in BLOCKS if block.file}
