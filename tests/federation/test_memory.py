"""What a process says of its own memory."""

from __future__ import annotations

import subprocess
import sys

from flray.federation.memory import resident_bytes

SIZE = 200 * 2**20


def test_the_peak_is_kept_after_memory_is_given_back() -> None:
    program = (
        "from flray.federation.memory import peak_bytes, resident_bytes\n"
        f"held = bytearray(b'1') * {SIZE}\n"
        "del held\n"
        "print(peak_bytes(), resident_bytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    peak, resident = map(int, done.stdout.split())
    assert peak > resident + SIZE // 2


def test_the_peak_is_the_process_s_own_and_not_its_parent_s() -> None:
    held = bytearray(b"1") * (3 * SIZE)
    program = "from flray.federation.memory import peak_bytes; print(peak_bytes())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert len(held) == 3 * SIZE
    assert int(done.stdout) < resident_bytes() - SIZE
