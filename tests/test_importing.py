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
    with gc_disabled("gc", "pytest"):  # imported before: nothing changes
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
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


def test_what_a_run_says_reaches_the_library_s_logger(
    tmp_cwd: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flray")
    settings = {"resources": {"executor": "inline"}, "tracking": {"uri": None}, "rounds": 1}
    named = {"data": "digits-sklearn", "model": "linear", "algorithm": "fedbn"}
    flray.run({"experiment": {**named, **settings}})
    assert any("no batch norm" in message for message in caplog.messages)


def test_a_module_that_was_imported_can_be_called_as_the_function() -> None:
    code = "import flray, flray.run, flray.tune; print(callable(flray.run), callable(flray.tune))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["True", "True"]


def test_a_read_only_array_becomes_a_tensor_without_a_copy_and_without_a_warning() -> None:
    """An array of Ray's object store; torch warns once per process, and pytest keeps warnings to itself."""
    code = (
        "import numpy; from flray.devices import transfers; array = numpy.arange(3)\n"
        "array.flags.writeable = False; tensor = transfers.from_numpy(array)\n"
        "print(tensor.sum().item(), tensor.data_ptr() == array.ctypes.data)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("3 True\n", "")
