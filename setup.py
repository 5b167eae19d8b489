"""What pyproject.toml cannot say: a wheel carries search_spaces/, and its page has links that lead somewhere."""

import os
import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithSpaces(build_py):
    """Copy the spaces and suites beside the modules; an editable installation reads the checkout's."""

    def run(self) -> None:
        """Build the modules, then copy."""
        super().run()
        if not self.editable_mode:
            for path in Path("search_spaces").rglob("*.yaml"):
                target = Path(self.build_lib, "flray", path)
                self.mkpath(str(target.parent))
                self.copy_file(str(path), str(target))


def absolute(text: str, repository: str, ref: str) -> str:
    """Return a page of this folder with links and pictures that work elsewhere.

    Parameters
    ----------
    text : str
        Markdown; paths in it are relative to this folder.
    repository : str
        Its address, such as https://github.com/OWNER/NAME.
    ref : str
        Branch or tag that the links lead to.
    """
    text = re.sub(r"\]\((?!https?://|#|mailto:)", f"]({repository}/blob/{ref}/", text)
    return re.sub(r'<img src="(?!https?://)', f'<img src="{repository}/raw/{ref}/', text)


if __name__ == "__main__":
    page, urls = Path("README.md").read_text(encoding="utf-8"), {}
    # Set by the release workflow: a checkout does not know its address.
    if repository := os.environ.get("FLRAY_REPOSITORY", "").rstrip("/"):
        page = absolute(page, repository, os.environ.get("FLRAY_REF", "main"))
        urls = {
            "Source": repository,
            "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        }
    setup(
        cmdclass={"build_py": BuildWithSpaces},
        long_description=page,
        long_description_content_type="text/markdown",
        project_urls=urls,
    )
