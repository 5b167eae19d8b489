"""Build the site with Sphinx: ``build.py FOLDER [THEME]``. Every warning is shown, and is an error.

Its sources are README.md, docs/ and the other texts of the top folder as they lie in the repository,
so that their links work here and there, and the generated pages under ``reference/``.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from jinja2.sandbox import SandboxedEnvironment
from numpydoc import docscrape_sphinx
from sphinx.cmd.build import main as sphinx

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the rows of a test are on the methods' pages

from pages import write_pages  # noqa: E402

from flray import registry  # noqa: E402

TEXTS = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
GUIDE = {
    "Start": ("start", "sweeps", "how-sure", "models"),
    "What can be compared": ("data", "metrics", "methods", "papers"),
    "While it runs": ("faults", "tracking", "cluster", "gpus", "hardware"),
    "Beyond": (
        "extending",
        "losses-and-tasks",
        "troubleshooting",
        "benchmarks",
        "limits",
        "comparison",
        "switching",
    ),
}
"""The pages under docs/guide in the order in which the site lists them."""
NOTEBOOKS = ("start", "sweep", "own_method")
SETTINGS = {
    "project": "flray",
    "author": "the flray authors",
    "extensions": ["sphinx.ext.autodoc", "numpydoc", "myst_nb"],
    "default_role": "py:obj",  # so that `names` in docstrings are links where they name something of flray
    "autodoc_member_order": "bysource",
    "autodoc_typehints_format": "short",
    "numpydoc_show_class_members": False,
    "numpydoc_class_members_toctree": False,
    "myst_heading_anchors": 3,
    "myst_enable_extensions": ["html_image"],  # README's pictures have widths
    "nb_execution_mode": "off",  # a test runs the notebooks
    "suppress_warnings": ["ref.python"],  # a name in an annotation that two classes have
    "html_title": "flray",
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
}


_environments: list[SandboxedEnvironment] = []


def one_environment(**options: Any) -> SandboxedEnvironment:
    """Return the same one always: numpydoc asks at every docstring, and would compile its template anew each time."""
    if not _environments:
        _environments.append(SandboxedEnvironment(**options))
    return _environments[0]


def write_sources(folder: Path) -> None:
    """Write all sources of the site into an empty folder."""
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in TEXTS:
        shutil.copy(ROOT / name, folder / name)
    _link_names(folder / "docs" / "guide" / "data.md", "datasets")
    generated = write_pages(folder / "reference")
    results = sorted(path.stem for path in (ROOT / "docs" / "results").glob("*.md"))
    contents = {
        **{part: [f"docs/guide/{name}" for name in names] for part, names in GUIDE.items()},
        "Results": [f"docs/results/{name}" for name in results],
        "Notebooks": [f"docs/notebooks/{name}" for name in NOTEBOOKS],
        "Reference": [f"reference/{name}" for name in generated],
        "The project": ["docs/architecture", *(name.removesuffix(".md") for name in TEXTS)],
    }
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    for part, pages in contents.items():
        lines = ("```{toctree}", ":hidden:", f":caption: {part}", "", *pages, "```", "")
        front += "\n" + "\n".join(lines) if pages else ""
    (folder / "index.md").write_text(front, encoding="utf-8")


def _link_names(page: Path, kind: str) -> None:
    """Make links to the generated pages of the names in a page's tables."""
    names = registry.ALL[kind].names()

    def linked(found: re.Match[str]) -> str:
        name = found.group(1)
        return f"[`{name}`](/reference/{kind}/{name}.rst)" if name in names else found.group()

    rows = page.read_text(encoding="utf-8").splitlines()
    rows = [re.sub(r"`([\w.-]+)`", linked, row) if row.startswith("|") else row for row in rows]
    page.write_text("\n".join(rows) + "\n", encoding="utf-8")


def main(target: Path, theme: str = "furo") -> int:
    """Write the sources into a temporary folder and build them; return the exit code."""
    docscrape_sphinx.SandboxedEnvironment = one_environment
    with tempfile.TemporaryDirectory() as text:
        source = Path(text)
        write_sources(source)
        settings = {**SETTINGS, "html_theme": theme}
        conf = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
        (source / "conf.py").write_text(conf, encoding="utf-8")
        options = ["-q", "-W", "--keep-going", "-b", "html", "-d", f"{source}/doctrees"]
        return int(sphinx([*options, str(source), str(target)]))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: build.py FOLDER [THEME]")
    code = main(Path(sys.argv[1]), *sys.argv[2:])
    print(f"{sys.argv[1]}/index.html" if code == 0 else "the site has warnings, see above")
    sys.exit(code)
