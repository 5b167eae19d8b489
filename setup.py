"""What pyproject.toml cannot say: a wheel carries search_spaces/ as flray/search_spaces/."""

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


setup(cmdclass={"build_py": BuildWithSpaces})
