import gc
import logging
from pathlib import Path

import pytest

import flray
from flray.startup import gc_disabled
from tests.helpers import python, small


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
    flray.run({"experiment": small(algorithm="fedbn")})
    assert any("no batch norm" in message for message in caplog.messages)


def test_a_module_that_was_imported_can_be_called_as_the_function() -> None:
    code = "import flray, flray.run, flray.tune; print(callable(flray.run), callable(flray.tune))"
    assert python(code).stdout.split() == ["True", "True"]


def test_a_read_only_array_becomes_a_tensor_without_a_copy_and_without_a_warning() -> None:
    """An array of Ray's object store; torch warns once per process, and pytest keeps warnings to itself."""
    code = (
        "import numpy; from flray.devices import transfers; array = numpy.arange(3)\n"
        "array.flags.writeable = False; tensor = transfers.from_numpy(array)\n"
        "print(tensor.sum().item(), tensor.data_ptr() == array.ctypes.data)"
    )
    done = python(code)
    assert (done.stdout, done.stderr) == ("3 True\n", "")
