"""Build the reference as HTML pages with Sphinx: ``build.py FOLDER``. Every warning is shown, and is an error."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from jinja2.sandbox import SandboxedEnvironment
from numpydoc import docscrape_sphinx
from pages import write_pages
from sphinx.cmd.build import main as sphinx

SETTINGS = {
    "project": "flray",
    "author": "the flray authors",
    "extensions": "sphinx.ext.autodoc,numpydoc",
    "default_role": "py:obj",  # so that `names` in docstrings are links where they name something of flray
    "autodoc_member_order": "bysource",
    "autodoc_typehints_format": "short",
    "numpydoc_show_class_members": "0",
    "numpydoc_class_members_toctree": "0",
    "suppress_warnings": "ref.python",  # a name in an annotation that two classes have: Params, Local
    "html_theme": "alabaster",
    "html_copy_source": "0",
    "html_show_sphinx": "0",
}


class OneEnvironment(SandboxedEnvironment):
    """numpydoc asks for a new one at every docstring, and would compile its template anew each time."""

    _one: OneEnvironment | None = None

    def __new__(cls, **options: Any) -> OneEnvironment:
        """Return the one there is."""
        if cls._one is None:
            cls._one = super().__new__(cls)
            SandboxedEnvironment.__init__(cls._one, **options)
        return cls._one

    def __init__(self, **options: Any) -> None:
        """Do nothing: it was made when first asked for."""


def main(target: Path) -> int:
    """Write the pages' sources into a temporary folder and build them; return the exit code."""
    docscrape_sphinx.SandboxedEnvironment = OneEnvironment
    with tempfile.TemporaryDirectory() as text:
        source = Path(text)
        write_pages(source)
        settings = [f"-D{name}={value}" for name, value in SETTINGS.items()]
        return int(
            sphinx(
                [
                    "-C",
                    "-q",
                    "-W",
                    "--keep-going",
                    "-b",
                    "html",
                    "-d",
                    str(source / "doctrees"),
                    *settings,
                    str(source),
                    str(target),
                ]
            )
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: build.py FOLDER")
    code = main(Path(sys.argv[1]))
    print(f"{sys.argv[1]}/index.html" if code == 0 else "the reference has warnings, see above")
    sys.exit(code)
