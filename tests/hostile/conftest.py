"""What bad plug-ins registered before they failed is taken back, so that no other test meets it."""

import sys
from collections.abc import Iterator

import pytest

from flray import registry


@pytest.fixture(autouse=True)
def _registered_is_taken_back() -> Iterator[None]:
    for kind in registry.ALL.values():
        kind.load()  # whose built-in components would be taken back with them
    kept = [(kind, dict(kind._entries), set(kind._builtin)) for kind in registry.ALL.values()]
    yield
    for kind, entries, builtin in kept:
        kind._entries, kind._builtin = entries, builtin
    for name in [name for name in sys.modules if name.startswith("flray_plugin_")]:
        del sys.modules[name]
