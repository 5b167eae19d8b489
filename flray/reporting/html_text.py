"""Texts of users and files as HTML shows them."""

from __future__ import annotations

import html

from flray.errors import one_line


def escape(text: str, quote: bool = True) -> str:
    """Return a text as one line that HTML shows as it is.

    Parameters
    ----------
    text : str
        Anything.
    quote : bool
        Whether it may stand in an attribute.
    """
    return html.escape(one_line(text), quote)
