"""Hostile pickles: nothing is run, nothing is altered, and one line says which file it was."""

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray.data.sources.archives import read_pickled_arrays
from flray.errors import FlrayError
from tests.messages import refused

NUMERIC = np._core.numeric  # type: ignore[attr-defined]


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def unread(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pkl").write_bytes(content)
    refused(read_pickled_arrays, tmp_path / "x.pkl")


@pytest.mark.parametrize(
    "reference",
    [
        "os\nsystem",
        "builtins\ngetattr",
        "numpy\nfromfile",
        "numpy._core.multiarray\nfrombuffer",
        "_codecs\ndecode",
        "numpy\nndarray.tofile",
    ],
)
def test_references_are_refused_before_they_are_called(reference: str, tmp_path: Path) -> None:
    """With every opcode that can call something: REDUCE, INST, OBJ, NEWOBJ, and the protocol-4 reference."""
    module, name = reference.split("\n")
    call = f"c{reference}\n".encode()
    argument = text(f"touch {tmp_path}/pwned")
    for content in (
        call + b"(" + argument + b"tR.",
        b"(" + argument + f"i{reference}\n.".encode(),
        b"(" + call + argument + b"o.",
        b"\x80\x02" + call + b"(" + argument + b"t\x81.",
        b"\x80\x04" + text(module) + text(name) + b"\x93(" + argument + b"tR.",
        call + b".",
    ):
        unread(tmp_path, content)
    assert not (tmp_path / "pwned").exists()


def test_what_is_allowed_cannot_be_given_attributes(tmp_path: Path) -> None:
    """BUILD with a state or with slots would set attributes of a function for the whole process."""
    function = NUMERIC._frombuffer
    before = (function.__defaults__, dict(function.__dict__))
    for reference in (
        "numpy._core.numeric\n_frombuffer",
        "_codecs\nencode",
        "numpy\ndtype",
        "numpy._core.multiarray\nscalar",
    ):
        for name in ("__defaults__", "anything"):
            head = b"\x80\x02" + f"c{reference}\n".encode()
            unread(tmp_path, head + b"}" + text(name) + b"K\x01sb.")
            unread(tmp_path, head + b"N}" + text(name) + b"K\x01s\x86b.")
    assert before == (function.__defaults__, dict(function.__dict__))


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


OWN: list[Any] = []
OWN.append(OWN)
RECORD = np.zeros(2, dtype=[("a", np.int64), ("b", object)])
HUGE = b"\x8a\x08" + struct.pack("<q", 2**60)
NO_DATA = (
    *(b"", b"not a pickle", b"\x80\x09.", b"P1\n."),
    *(pickle.dumps(other, protocol=2) for other in (Path("x"), {"data": {1, 2}})),
    # a reference alone, and within a list and a dictionary
    b"cnumpy\nndarray\n.",
    b"(cnumpy\nndarray\nl.",
    b"(K\x01cnumpy._core.numeric\n_frombuffer\nd.",
    *(pickle.dumps(other) for other in (OWN, nested(50), RECORD)),
    pickle.dumps({"x": (np.array(["a", b"b"], dtype=object),)}),
    b"\x80\x02cnumpy\nndarray\n(" + HUGE + b"\x85tR.",  # more memory than there is
)


def test_what_is_no_data_ends_in_one_line(tmp_path: Path) -> None:
    for content in NO_DATA:
        unread(tmp_path, content)


def test_any_cut_or_flipped_byte_gives_data_or_one_line(tmp_path: Path) -> None:
    content = {"data": np.arange(6, dtype=np.uint8), "labels": [1, 2], "n": np.float64(2)}
    whole = pickle.dumps(content, protocol=2)
    path = tmp_path / "x.pkl"
    generator = np.random.default_rng(0)
    outcomes = set()
    for place in range(len(whole)):
        for changed in (
            whole[:place],
            whole[:place] + bytes([generator.integers(256)]) + whole[place + 1 :],
        ):
            path.write_bytes(changed)
            try:
                read_pickled_arrays(path)
                outcomes.add("data")
            except FlrayError as error:
                assert str(path) in str(error)
                outcomes.add("refused")
    assert outcomes == {"data", "refused"}


def test_plain_values_come_back(tmp_path: Path) -> None:
    values = [np.float32(1.5), None, True, 2.5, "t", b"b"]
    content = {"a": values, 3: (np.array(["x", "yz"]), np.zeros((0, 2)))}
    for protocol in range(6):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
        found = read_pickled_arrays(tmp_path / "x.pkl")
        assert found["a"] == values
        assert found[3][0].tolist() == ["x", "yz"] and found[3][1].shape == (0, 2)
    (tmp_path / "x.pkl").unlink()
    refused(read_pickled_arrays, tmp_path / "x.pkl")
