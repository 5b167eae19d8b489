from __future__ import annotations

import gc
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import flray
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


def test_what_a_run_says_reaches_the_library_s_logger(
    tmp_cwd: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flray")
    flray.run(
        {
            "experiment": {
                "data": "digits-sklearn",
                "partition": "domains",
                "model": "linear",
                "algorithm": "fedbn",
                "rounds": 1,
                "resources": {"executor": "inline"},
                "tracking": {"uri": None},
            }
        }
    )
    assert any("no batch norm" in message for message in caplog.messages)


def test_a_module_that_was_imported_can_be_called_as_the_function() -> None:
    code = (
        "import flray, flray.run, flray.tune; print(callable(flray.run), callable(flray.tune), "
        "flray.__version__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split()[:2] == ["True", "True"]
