# SPDX-License-Identifier: Apache-2.0
"""JSON lines are read without loss, one by one."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.capture.line_records import parse_record
from nccl_inspector.capture.lines import LINE_BYTES_MAX, read_lines
from nccl_inspector.capture.members import KINDS, columns
from nccl_inspector.capture.restore import needs_context, restored
from nccl_inspector.errors import RefusedError
from tests.support.json_lines import coll, header, marker, ours, p2p, text, traces, whole

VENDOR = [
    whole(0, coll_perf=coll()),
    whole(0, p2p_perf=p2p()),
    whole(0, coll_perf=coll() | traces("coll")),
    whole(0, p2p_perf=p2p() | traces("p2p")),
    whole(0, "v4.2", coll_perf=coll(coll_algo="RING", coll_proto="LL")),
    marker(0, 5, form="v4.1"),
]


def _encode(line: Any) -> bytes:
    return json.dumps(line).encode()


NO_NODES = {"header": header() | {"nnodes": -3}}


@pytest.mark.parametrize("line", [*VENDOR, ours(0, 1, 20_000, 10**15)])
def test_every_member_of_a_line_is_read_and_known(line: Any) -> None:
    record = parse_record(_encode(line))
    part = f"{record.kind}_perf" if record.kind in KINDS else record.kind
    found = {"header": record.header, "metadata": record.metadata, part: record.values}
    assert found == line
    assert record.unknown == ()


def test_a_member_of_another_release_is_named() -> None:
    line = whole(0, coll_perf=coll(coll_colour="red"))
    line["metadata"]["weather"] = "fine"
    assert set(parse_record(_encode(line)).unknown) == {"metadata.weather", "coll_perf.coll_colour"}


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("not_a_record", b"training step 17: loss 0.3"),
        ("not_a_record", b"17"),
        ("not_a_record", b"[" * 100_000),
        ("not_a_record", text([VENDOR[0]])[:90]),
        ("incomplete", _encode({"header": {}, "metadata": {}, "coll_perf": {}})),
        ("incomplete", _encode({"coll_perf": coll()})),
        ("incomplete", _encode(whole(0, coll_perf=coll(coll_sn="7")))),
        ("incomplete", _encode(whole(0, coll_perf=coll(coll_sn=True)))),
        ("incomplete", _encode(whole(0, coll_perf=coll(event_trace_ts=[])))),
        ("implausible", _encode(whole(9, coll_perf=coll()))),
        ("implausible", _encode(whole(0, coll_perf=coll(time_us=-1)))),
        ("implausible", _encode(whole(0, coll_perf=coll()) | NO_NODES)),
        # What NVIDIA's Inspector 2.30 makes of uint8 data.
        ("implausible", _encode(whole(0, coll_perf=coll(coll_msg_size_bytes=2**64 - 8)))),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_a_reason(reason: str, line: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_record(line)
    assert caught.value.reason == reason


def test_lines_without_a_header_get_that_of_the_marker_before_them() -> None:
    bare = [{"coll_perf": coll(1)}, {"p2p_perf": p2p(2)}]
    lines = text([marker(2, 1, 1, "v4.4"), *bare, marker(3, 1, form="v4.4"), bare[0]]).splitlines()
    refused: Counter[str] = Counter()
    assert needs_context(lines)
    found = [parse_record(line) for line in restored(lines, refused)]
    assert [(one.kind, one.header["rank"]) for one in found] == [
        ("dump_stats", 2), ("coll", 2), ("p2p", 2), ("dump_stats", 3), ("coll", 3),
    ]  # fmt: skip
    assert +refused == {}


def test_a_line_that_no_marker_announced_is_no_rank_s() -> None:
    lines = text([{"coll_perf": coll(1)}, marker(2, 2), {"coll_perf": coll(2)}]).splitlines()
    lines += text([marker(2, 0), {"coll_perf": coll(3)}]).splitlines()
    refused: Counter[str] = Counter()
    assert len(list(restored(lines, refused))) == 3
    assert +refused == {"no_context": 2, "lines_missing": 1}


def test_lines_with_a_header_need_no_marker() -> None:
    assert not needs_context(text(VENDOR).splitlines())


def _read(path: Path, gzipped: bool = False) -> tuple[list[bytes], dict[str, int]]:
    refused: Counter[str] = Counter()
    with path.open("rb") as file:
        return list(read_lines(file.fileno(), gzipped, refused)), dict(refused)


def test_a_line_of_any_length_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n" + b"x" * (3 << 20) + b"\ntwo\n" + b"y" * (LINE_BYTES_MAX + 1))
    assert _read(path) == ([b"one", b"two"], {"line_too_long": 2})


def test_a_gzip_that_would_fill_a_disk_is_read_so_far(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    bomb = b"".join([gzip.compress((b"x" * 1023 + b"\n") * 8192)] * 64)
    path.write_bytes(gzip.compress(b"one\n") + bomb)
    with path.open("rb") as file:
        refused: Counter[str] = Counter()
        size = sum(len(line) + 1 for line in read_lines(file.fileno(), True, refused))
    assert refused == {"gzip_too_large": 1}
    assert size < 300 * path.stat().st_size + (64 << 20) < 64 * (8 << 20)


def test_a_torn_gzip_is_read_up_to_where_it_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    members = gzip.compress(b"one\n") + gzip.compress(b"two\n")
    path.write_bytes(members + gzip.compress(b"three\n" * 1000)[:-9])
    assert _read(path, True)[0][:3] == [b"one", b"two", b"three"]
    path.write_bytes(members + b"garbage")
    assert _read(path, True) == ([b"one", b"two"], {"gzip_broken": 1})


def test_no_two_columns_have_one_name() -> None:
    names = [name for name, _, _ in columns()]
    assert len(set(names)) == len(names)
