"""What bad plug-ins registered before they failed is taken back, so that no other test meets it."""

import sys
from collections.abc import Iterator

import pytest

from flray import registry


@pytest.fixture(autouse=True)
def _registered_is_taken_back() -> Iterator[None]:
    kept = {
        kind: (entries.added(), dict(entries._entries), set(entries._builtin))
        for kind, entries in registry.ALL.items()
    }
    yield
    for kind, (_, entries, builtin) in kept.items():
        registry.ALL[kind]._entries, registry.ALL[kind]._builtin = entries, builtin
    for name in [name for name in sys.modules if name.startswith("flray_plugin_")]:
        del sys.modules[name]
