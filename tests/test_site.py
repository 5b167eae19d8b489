"""The site: it builds without a warning, and every text, notebook, setting, component and public name is in it."""

import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest

import flray
from flray import functional, registry
from flray.config import spaces, suites

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "scripts" / "site" / "build.py"


def build(target: Path) -> Path:
    command = [sys.executable, str(BUILD), str(target), "basic"]  # a theme that costs no time
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def names_in(built: Path) -> dict[str, Counter[str]]:
    """Return what Sphinx's own index of the pages holds, by kind."""
    packed = (built / "objects.inv").read_bytes().split(b"\n", 4)[4]
    names: dict[str, Counter[str]] = {}
    for line in zlib.decompress(packed).decode().splitlines():
        name, kind = line.rsplit(" ", 4)[:2]
        names.setdefault(kind, Counter())[name] += 1
    return names


def modules() -> set[str]:
    root = Path(flray.__file__).parent
    dotted = (
        ".".join(("flray", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
        if path.stem == "__init__" or not path.stem.startswith("_")
    )  # which only calls the command line
    return {name.removesuffix(".__init__") for name in dotted}


@pytest.mark.slow
def test_the_site_has_all_modules_functions_components_settings_and_texts(tmp_path: Path) -> None:
    built = build(tmp_path / "html")
    names = names_in(built)
    public = names["py:function"] | names["py:class"]
    assert set(names["py:module"]) == modules()
    assert {f"flray.functional.{name}" for name in functional.__all__} <= set(public)
    for kind, entries in registry.ALL.items():
        pages = built / "reference" / kind
        for name in set(entries.names()) - set(entries.added()):  # without those of other tests
            item = entries.get(name)
            assert f"{entries.kind}-{name}" in names["std:label"]
            assert not pages.is_dir() or (pages / f"{name}.html").is_file()
            # some are made by a function, such as the sets of folders
            made = "<locals>" in item.__qualname__
            assert made or f"{item.__module__}.{item.__qualname__}" in public
    settings = (built / "reference" / "settings.html").read_text()
    shown = "local.lr_decay", "faults.round_timeout", "shift.long_tail"
    assert all(f"experiment.{path}" in settings for path in shown) and "sweep.seeds" in settings
    commands = (built / "reference" / "commands.html").read_text()
    assert "flray data show" in commands and "--smoke" in commands

    texts = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    wanted = {str(path.relative_to(ROOT).with_suffix("")) for path in texts}
    wanted |= {f"reference/suites/{name}" for name in suites.files(spaces.folder() / "papers")}
    assert [path for path in sorted(wanted) if not (built / f"{path}.html").is_file()] == []
