# SPDX-License-Identifier: Apache-2.0
"""The reader of pickles: data of all protocols, and nothing that could run."""

import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.errors import RefusedError
from nccl_inspector.flight import pickled_data
from nccl_inspector.flight.pickled_data import read_pickle

VALUE: dict[str | int, Any] = {
    "none": None, "flags": [True, False], "numbers": [0, 255, 65535, -1, 2**31, -(2**62), 2**63],
    "floats": [0.5, -1e300], "text": "\u00e9\u4e2d", "empty": [[], {}, ""], 7: "a number as key",
    "deep": {"a": [{"b": [1, 2]}]}, "long": "x" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_data_are_read_in_every_protocol(protocol: int) -> None:
    assert read_pickle(pickle.dumps(VALUE, protocol)) == VALUE


def test_a_tuple_becomes_a_list_as_in_json() -> None:
    assert read_pickle(pickle.dumps({"a": (1, (2,), (), (3, 4, 5, 6))})) == {
        "a": [1, [2], [], [3, 4, 5, 6]]
    }


def test_a_value_that_is_written_once_is_one_object() -> None:
    frame = {"name": "step"}
    first, second = read_pickle(pickle.dumps([frame, frame], 2))
    assert first is second


class Runs:
    """What a pickle of it does: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_code_is_refused_and_nothing_runs(tmp_path: Path, protocol: int) -> None:
    planted = tmp_path / "planted"
    data = pickle.dumps({"version": "2.10", "entries": [Runs(planted)]}, protocol)
    with pytest.raises(RefusedError, match="GLOBAL could run code; it was not executed"):
        read_pickle(data)
    assert not planted.exists()
    pickle.loads(data)  # noqa: S301 - it would have run
    assert planted.exists()


class Persistent(pickle.Pickler):
    """Refers to what is outside of the file."""

    def persistent_id(self, obj: Any) -> Any:
        return "outside" if obj == "x" else None


@pytest.mark.parametrize("protocol", [0, 4])
def test_a_persistent_id_is_refused(protocol: int) -> None:
    stream = io.BytesIO()
    Persistent(stream, protocol).dump(["x"])
    with pytest.raises(RefusedError, match="PERSID could run code"):
        read_pickle(stream.getvalue())


# Every opcode that makes Python's unpickler import, call or build something.
EXECUTING = (
    b"cos\nsystem\n", b"\x93", b"]]R", b"]}b", b"(ios\nsystem\n", b"(o", b"])\x81", b"])}\x92",
    b"Px\n", b"]Q", b"\x82\x01", b"\x83\x01\0", b"\x84\x01\0\0\0",
)  # fmt: skip


@pytest.mark.parametrize("code", EXECUTING)
def test_each_opcode_that_executes_is_refused(code: bytes) -> None:
    with pytest.raises(RefusedError, match="it was not executed"):
        read_pickle(b"\x80\x04" + code + b".")


@pytest.mark.parametrize(
    "data",
    [
        b"", b".", b"\x80\x02", b"\x80\x06].", b"]]." , b"(.", b"e.", b"N(.", b"a.", b"]a.", b"u.",
        b"}K\x01s.", b"}(K\x01u.", b"}]Ns.", b"}\x88Ns.", b"NNs.", b"h\x05.", b"g5\n.", b"gx\n.",
        b"K", b"J\0\0", b"G\0", b"X\xff\xff\xff\x7fabc.", b"\x8d" + b"\xff" * 8 + b".",
        b"\x8a\xff" + b"\xff" * 255 + b".", b"\x8b\xff\xff\xff\x7f.", b"I" + b"9" * 4000 + b"\n.",
        b"Ix\n.", b"Fx\n.", b"V" + b"x" * 20000 + b"\n.", b"V\\ud8\n.", b"S'x'\n.", b"\x8f.",
        b"C\x01x.", b"2.", b"0.", b"1.", b"\x97.", b"\xff.",
    ],
)  # fmt: skip
def test_a_pickle_that_is_cut_or_wrong_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError):
        read_pickle(data)


def test_every_shorter_piece_of_a_pickle_is_refused() -> None:
    data = pickle.dumps(VALUE, 2)
    for end in range(len(data)):
        with pytest.raises(RefusedError):
            read_pickle(data[:end])


def test_a_place_in_the_memo_costs_no_more_for_a_large_number() -> None:
    far = b"r" + struct.pack("<I", 0xFFFFFFFF)
    assert read_pickle(b"]" + far + b"p99999999999999999999\n.") == []


@pytest.mark.long
def test_deep_nesting_is_no_recursion() -> None:
    deep = 200_000
    assert read_pickle(b"]" * deep + b"a" * (deep - 1) + b".")
    with pytest.raises(RefusedError, match="a key"):
        read_pickle(b"}" + b")" + b"\x85" * deep + b"Ns.")  # a tuple that would be hashed


def test_a_bomb_of_references_stays_small() -> None:
    """A hundred lists, each ten times the one before it: 10^100 values if they were copied."""
    bomb = b"]q\0" + b"".join(b"](" + b"h%c" % at * 10 + b"eq%c" % (at + 1) for at in range(100))
    with pytest.raises(RefusedError, match="left over"):
        read_pickle(bomb + b".")
    assert len(read_pickle(bomb.replace(b"]q\0", b"(]q\0", 1) + b"l.")) == 101


def test_more_values_than_any_dump_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled_data, "_STACK_MAX", 1000)
    assert len(read_pickle(b"(" + b"]" * 900 + b"l.")) == 900
    with pytest.raises(RefusedError, match="too many values"):
        read_pickle(b"(" + b"]" * 1100 + b"l.")
    monkeypatch.setattr(pickled_data, "OBJECTS_MAX", 500)
    with pytest.raises(RefusedError, match="too many values"):
        read_pickle(b"(" + b"]" * 900 + b"l.")
