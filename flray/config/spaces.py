"""The files that come with flray: spaces of methods, the quickstart and the papers' suites, by name in any folder."""

import contextlib
from pathlib import Path

from flray.errors import FlrayError, nearest

FOLDER = "search_spaces"
_PACKAGE = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """Return the folder of the files: in a checkout, or in an installed package.

    Raises
    ------
    FlrayError
        If neither has one.
    """
    places = (_PACKAGE.parent / FOLDER, _PACKAGE / FOLDER)
    for place in places:
        if (place / "quickstart.yaml").is_file():
            return place
    raise FlrayError(
        f"the files that come with flray are not in {' or '.join(map(str, places))}; "
        "install flray again, or run in a checkout"
    )


def names() -> dict[str, Path]:
    """Return the files by name: ``quickstart``, ``fedskc``, ``fedskc/table5``."""
    root = folder()
    found = [*root.glob("*.yaml"), *(root / "papers").glob("*/*.yaml")]
    return {
        path.relative_to(root).with_suffix("").as_posix().removeprefix("papers/"): path
        for path in sorted(found)
        if not path.name.startswith("_")
    }


def locate(source: str | Path) -> Path:
    """Return the file that a path or a name means; what lies in the folder at hand wins.

    Parameters
    ----------
    source : str or Path
        A path, or a name of `names`, with or without ``search_spaces/``, ``papers/`` before it and
        ``.yaml`` behind it.

    Raises
    ------
    FlrayError
        If there is neither such a file nor such a name. Of a path with a suffix, reading it says so.
    """
    path = Path(source)
    with contextlib.suppress(OSError, ValueError):  # a name that no file can have
        if not path.is_file() and not path.is_absolute():
            known = names()
            text = path.as_posix().removesuffix(".yaml")
            name = text.removeprefix(f"{FOLDER}/").removeprefix("papers/")
            if name in known:
                return known[name]
            if not path.suffix and not path.exists():
                raise FlrayError(
                    f"{source}: no such file, and flray comes with none of that "
                    f"name{nearest(name, known)} (flray list papers names the suites)"
                )
    return path
