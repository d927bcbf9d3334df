# SPDX-License-Identifier: Apache-2.0
"""Files of dumps: which are read, and that a hostile one costs and runs nothing."""

import json
import os
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.flight.files import Found, read_dumps
from nccl_inspector.system.limited import Limits
from tests.support.command_line import run
from tests.support.flight_dumps import copy_case, dump, entry, write
from tests.support.processes import nothing_left

GOOD = dump([entry(0, 1)], {"0": [0, 1, 2, 3]})


def read(folder: Path, limits: Limits | None = None) -> Found:
    return read_dumps([folder], limits=limits)


def reasons(found: Found) -> list[str]:
    return [one.reason for one in found.refused]


@pytest.mark.parametrize(
    "name",
    ["comm_lib_trace_rank_3", "nccl_trace_rank_3", "rank_3", "comm_lib_trace_rank_3.json", "3",
     "dump3.pickle", "host12_rank_3"],
)  # fmt: skip
def test_the_rank_is_at_the_end_of_the_name(tmp_path: Path, name: str) -> None:
    is_json = name.endswith(".json")
    (tmp_path / name).write_bytes(json.dumps(GOOD).encode() if is_json else pickle.dumps(GOOD))
    assert [*read(tmp_path).evidence.dumps] == [3]


@pytest.mark.parametrize(
    "names",
    [
        ("nccl_trace_rank_n{host}_{rank}",),
        ("nccl_trace_rank_{rank}.n{host}",),
        ("trace.n{host}.{rank}.pickle",),
        ("trace_{rank}.node{host}",),
        ("attempt_1_rank_{rank}_20261127T100000",),
        ("rank{rank}-2026-11-27_10-00-0{rank}",),
        ("fr_1795600000_{rank}",),
        ("{rank}_1795600000",),
        ("nccl_trace_rank_{rank}", "comm_lib_trace_rank_{rank}"),
    ],
)
def test_host_and_time_in_a_name_are_no_rank(tmp_path: Path, names: tuple[str, ...]) -> None:
    value = dump([entry(0, 1)], {"0": [0, 1, 2, 3]})
    for rank in range(4):
        for name in names:
            path = tmp_path / name.format(rank=rank, host=1 + rank // 2)
            path.write_bytes(pickle.dumps(value))
    found = read(tmp_path)
    assert sorted(found.evidence.dumps) == [0, 1, 2, 3]
    assert found.refused == ()


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("trace_4.n1", "trace_5.n1", "trace_6.n2"), "its name says rank 1, and so does"),
        (("t_0_77", "t_1_88", "t_9_99"), "its name says rank 77, and the job has 4 ranks"),
    ],
)
def test_names_that_do_not_say_the_rank_accuse_nobody(
    tmp_path: Path, names: tuple[str, ...], reason: str
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(pickle.dumps(dump([entry(0, 1)], {"0": [0, 1, 2, 3]})))
    found = read(tmp_path)
    assert reasons(found)[0].startswith(reason)
    assert found.evidence.missing == ()


def test_other_files_of_a_directory_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, {0: GOOD})
    (tmp_path / "notes.txt").write_text("x")
    os.mkfifo(tmp_path / "rank_0.pipe")
    found = read(tmp_path)
    assert ([*found.evidence.dumps], found.refused) == ([0], ())


def test_a_named_file_without_a_rank_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps(GOOD))
    (refusal,) = read_dumps([path]).refused
    assert (refusal.path, refusal.reason) == (
        path, "its name does not end in the number of a rank"
    )  # fmt: skip


def test_a_directory_without_dumps_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InspectorError, match="no dump of a flight recorder"):
        read(tmp_path)


def test_the_newest_of_several_dumps_of_a_rank_is_read(tmp_path: Path) -> None:
    write(tmp_path, {0: dump([entry(0, 1), entry(1, 2)])})
    old = tmp_path / "nccl_trace_rank_0"
    old.write_bytes(pickle.dumps(GOOD))
    os.utime(old, (1, 1))
    found = read(tmp_path)
    assert len(found.evidence.dumps[0].dump.records) == 2


def test_a_dump_of_an_earlier_run_is_left_out_and_its_rank_is_missing(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(range(2), dump([entry(0, 1)], {"0": [0, 1]})))
    os.utime(tmp_path / "comm_lib_trace_rank_1", (1, 1))
    found = read(tmp_path)
    assert found.evidence.missing == (1,)
    assert "older than the newest dump, so it may be of another run" in reasons(found)[0]


def test_a_fifo_and_a_directory_are_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, {0: GOOD})
    os.mkfifo(tmp_path / "rank_1")
    (tmp_path / "rank_2").mkdir()
    begin_s = time.monotonic()
    assert reasons(read(tmp_path)) == ["it is no regular file"] * 2
    assert time.monotonic() - begin_s < 10


def test_a_dangling_link_and_a_device_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {0: GOOD})
    (tmp_path / "rank_1").symlink_to(tmp_path / "nowhere")
    (tmp_path / "rank_2").symlink_to("/dev/zero")
    assert reasons(read(tmp_path)) == ["No such file or directory", "it is no regular file"]


class Runs:
    """What a pickle of it does: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def changed(**fields: Any) -> Callable[[Path], Any]:
    """Return what makes a dump whose one entry has these fields."""

    def make(_: Path) -> dict[str, Any]:
        value = dump([entry(0, 1)])
        value["entries"][0].update(fields)
        return value

    return make


def with_ranks(ranks: Any) -> Callable[[Path], Any]:
    return lambda _: GOOD | {"pg_config": {"0": {"name": "0", "desc": "", "ranks": ranks}}}


def deep(_: Path) -> bytes:
    return b'{"version": "2.10", "entries": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def long_list(_: Path) -> bytes:
    """Nine million times the same value, in 18 MB."""
    return b"\x80\x02}(X\x07\0\0\0entriesq\0](K\x01q\1" + b"h\1" * 9_000_000 + b"eu."


def growing_number(_: Path) -> bytes:
    return b'{"version": "2.10", "entries": [' + b"9" * 1_000_000 + b"]}"


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "class": lambda planted: GOOD | {"comm_lib_version": Runs(planted)},
    "key of a class": lambda planted: {"version": "2.10", "entries": [{"a": Runs(planted)}]},
    "code in ranks": with_ranks("__import__('os').mkdir('{planted}')"),
    "code in quotes in ranks": with_ranks("\"__import__('os').mkdir('{planted}')\""),
    "an expression in ranks": with_ranks("[0]*1000000000"),
    "a rank beyond all": with_ranks("[9999999]"),
    "a rank twice": with_ranks("[1, 1]"),
    "deep": deep,
    "long list": long_list,
    "growing number": growing_number,
    "huge tensor": changed(input_sizes=[[2**62] * 60]),
    "sizes of text": changed(input_sizes=[["x"]]),
    "endless name": changed(profiling_name="nccl:" + "x" * 5000),
    "endless path": changed(frames=[{"name": "f", "filename": "x" * 5000, "line": 1}]),
    "state": changed(state="sleeping"),
    "negative number": changed(collective_seq_id=-7),
    "no number": changed(record_id=0.5),
    "flag": changed(retired="yes"),
    "group": changed(process_group=["0"]),
    "entries": lambda _: GOOD | {"entries": {"0": 1}},
    "an entry": lambda _: GOOD | {"entries": [7]},
    "another file": lambda _: b"#!/bin/sh\nexit 0\n",
    "a list": lambda _: [1, 2, 3],
    "nothing": lambda _: b"",
    "not a number": lambda _: json.dumps(GOOD).replace("600000", "NaN").encode(),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_dump_is_refused_and_nothing_in_it_runs(tmp_path: Path, kind: str) -> None:
    planted = tmp_path / "planted"
    (tmp_path / "fr").mkdir()
    folder = write(tmp_path / "fr", dict.fromkeys(range(3), GOOD))
    path = folder / "comm_lib_trace_rank_1"
    value, status = HOSTILE[kind](planted), path.stat()
    data = value if isinstance(value, bytes) else pickle.dumps(value, 2)
    path.write_bytes(data.replace(b"{planted}", str(planted).encode()))
    os.utime(path, ns=(status.st_mtime_ns,) * 2)
    found = read(folder)
    assert [*found.evidence.dumps] == [0, 2]
    assert len(found.refused) == 1
    assert found.evidence.unreadable == {1}
    assert not planted.exists()


def test_control_characters_are_shown_as_question_marks(tmp_path: Path) -> None:
    evil = "\x1b[2J\r\n\u202eevil"
    fields: dict[str, Any] = {
        "profiling_name": f"nccl:all_reduce{evil}", "state": "started", "desc": evil,
        "frames": [{"name": evil, "filename": f"/x{evil}.py", "line": 1}],
    }  # fmt: skip
    write(tmp_path, {rank: dump([entry(0, 1, **fields)], {"0": [0, 1]}) for rank in range(2)})
    for option in ((), ("--json",)):
        done = run("flight", *option, str(tmp_path))
        assert done.returncode == 2, done.stderr
        assert "evil" in done.stdout
        assert not set(done.stdout) & set("\x1b\r\u202e")


def test_a_file_larger_than_any_dump_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, {0: GOOD})
    path = tmp_path / "rank_1"
    path.touch()
    os.truncate(path, 1 << 40)
    os.utime(path, ns=((tmp_path / "comm_lib_trace_rank_0").stat().st_mtime_ns,) * 2)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert reasons(read(tmp_path)) == ["it has more than 64 MiB"]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 5


def read_afresh(folder: Path, limits: str) -> str:
    """What is refused, told by a process of its own: this one may have much free memory already."""
    code = (
        "from pathlib import Path; from nccl_inspector.flight.files import read_dumps;"
        "from nccl_inspector.system.limited import Limits;"
        f"found = read_dumps([Path({str(folder)!r})], limits={limits});"
        "print([one.reason for one in found.refused])"
    )
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip


def test_a_dump_that_needs_too_much_memory_or_time_is_refused(tmp_path: Path) -> None:
    # No file within the caps needs a second of CPU time on every machine; test_limited.py has that.
    (tmp_path / "rank_0").write_bytes(b"(" + b"X\1\0\0\0a" * 4_000_000 + b"l.")
    said = read_afresh(tmp_path, "Limits(memory_bytes=32 << 20)")
    assert said == "['it needs too much memory']\n"
    assert reasons(read(tmp_path, Limits(wall_s=0.1))) == ["reading it took too long"]


def test_no_child_is_left_behind(tmp_path: Path) -> None:
    copy_case("healthy", tmp_path)
    with nothing_left():
        read(tmp_path)
