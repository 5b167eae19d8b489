"""Arrays of Ray's object store become tensors in silence."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import numpy, sys
from flray.devices import transfers
array = numpy.arange(3)
array.flags.writeable = False
tensor = transfers.from_numpy(array)
print(tensor.sum().item(), tensor.data_ptr() == array.ctypes.data)
"""


def test_a_read_only_array_becomes_a_tensor_without_a_copy_and_without_a_warning() -> None:
    # torch warns once per process, and pytest keeps warnings to itself.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("3 True\n", "")
