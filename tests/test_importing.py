from __future__ import annotations

import gc

import pytest

from flray.startup import gc_disabled


def test_garbage_is_looked_for_again_afterwards_and_not_among_what_was_made() -> None:
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), gc_disabled("no_such_module"):
            assert not gc.isenabled()
            with gc_disabled("no_such_module_either"):
                pass
            assert not gc.isenabled()  # the outer one goes on
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_what_was_imported_before_changes_nothing() -> None:
    frozen = gc.get_freeze_count()
    with gc_disabled("gc", "pytest"):
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
