# SPDX-License-Identifier: Apache-2.0
"""A line's head is understood whatever launcher, level or other process is in it."""

import pytest

from nccl_inspector.nccl_log.lines import Head, parse_head, whole_lines
from nccl_inspector.nccl_log.reader import LogReader
from nccl_inspector.nccl_log.record import Level, Record

TEN = 1795601472.0  # 2026-11-25 10:11:12


def read(text: bytes | str) -> LogReader:
    reader = LogReader()
    reader.read("job.out", [text.encode() if isinstance(text, str) else text], 2026)
    return reader


@pytest.mark.parametrize(
    ("head", "host", "label", "time_s", "site"),
    [
        ("n1:4711:4750 [3] ", "n1", None, None, ""),
        ("gpu-04.a:4711:4750 [0] ", "gpu-04.a", None, None, ""),
        ("[2026-11-25 10:11:12] n1:4711:4750 [3] ", "n1", None, TEN, ""),
        ("[2026-11-25 10:11:12.250] n1:4711:4750 [3] ", "n1", None, TEN + 0.25, ""),
        ("12: n1:4711:4750 [3] ", "n1", 12, None, ""),
        (" 7: [2026-11-25 10:11:12] n1:4711:4750 [3] a/b.cc:7 ", "n1", 7, TEN, "a/b.cc:7"),
        ("[rank3]:n1:4711:4750 [3] ", "n1", 3, None, ""),
        ("[default1]:n1:4711:4750 [3] init.cc:12 (initRank) ", "n1", None, None, "init.cc:12"),
        ("n1:4711:4750 ", "n1", None, None, ""),
    ],
)
def test_host_task_time_and_site_come_from_the_head(
    head: str, host: str, label: int | None, time_s: float | None, site: str
) -> None:
    found = parse_head(head.encode())
    assert (found.host, found.pid) == (host, 4711)
    assert (found.label, found.time_s, found.site) == (label, time_s, site)


@pytest.mark.parametrize("head", ["", "text ", "a:b:c [0] ", ":1:2 ", "n1:1 [0] ", "[[[]]] "])
def test_a_head_without_a_process_names_none(head: str) -> None:
    assert parse_head(head.encode()).pid is None


@pytest.mark.parametrize("level", ["WARN", "ATTN", "ERROR"])
def test_each_loud_level_is_a_record_of_that_level(level: str) -> None:
    reader = read(f"n1:1:2 [0] a.cc:3 (f) NCCL {level} nobody knows this\n")
    (hits,) = reader.log.hits.values()
    assert hits.quotes[0].record == Record(
        Level(level), b"nobody knows this", host="n1", pid=1, site="a.cc:3"
    )


def test_lines_that_two_processes_wrote_into_each_other_are_told_apart() -> None:
    log = read(
        "n1:1:1 [0] NCCL INFO cudaDrin2:2:2 [0] NCCL INFO Using network IB\n"
        "n2:2:2 [0] NCCL INFO Using nen1:1:1 [0] a.cc:1 NCCL WARN Too many open files\n"
    ).log
    by_pid = {one.pid: one for one in log.processes if one.host in ("n1", "n2")}
    assert set(by_pid) == {1, 2}
    assert list(log.hits) == ["too-many-files"]


def test_the_version_is_that_of_each_process_and_else_of_the_job() -> None:
    log = read(
        "NCCL version 2.27.7+cuda12.9\n"
        "n1:1:1 [0] NCCL INFO Using network IB\n"
        "n2:2:2 [0] NCCL INFO NCCL version 2.30.7+cuda13.0\n"
    ).log
    assert [one.numbers for one in log.processes] == [(2, 27, 7), (2, 30, 7)]


def test_pytorchs_last_error_is_the_warning_that_nobody_asked_nccl_for() -> None:
    blocks = [
        b"[rank3]: torch.distributed.DistBackendError: NCCL error in: x.hpp:3, unhandled system "
        b"error\n[rank3]: Last error:\n",
        b"[rank3]: Call to socket failed: Too many open files\n",
    ]
    for chunks in (blocks, [b"".join(blocks)]):
        reader = LogReader()
        reader.read("job.out", chunks, 2026)
        assert set(reader.log.hits) == {"nccl-exception", "too-many-files"}
        assert reader.log.hits["too-many-files"].quotes[0].record.rank == 3


def test_a_line_of_nccls_greatest_length_counts_as_cut() -> None:
    """Up to 2.28.9 NCCL cuts lines at 1023 bytes, so a list may go on."""
    line = "n1:1:1 [0] NCCL INFO NET/IB : Using " + " ".join(
        f"[{at}]mlx5_{at}:1/IB" for at in range(90)
    )
    assert read(line[:1022] + "\n").log.processes[0].hcas_cut
    assert not read(line[:900] + "\n").log.processes[0].hcas_cut


def test_lines_stay_whole_whatever_the_chunks_are() -> None:
    text = b"".join(b"line %d\n" % at for at in range(2000)) + b"the end"
    for size in (1, 7, 4096):
        chunks = (text[at : at + size] for at in range(0, len(text), size))
        blocks = list(whole_lines(chunks))
        assert b"".join(blocks) == text
        assert all(block.endswith(b"\n") for block in blocks[:-1])


def test_the_place_of_a_line_is_its_file_and_number() -> None:
    text = "".join(f"line {at}\n" for at in range(1, 400_000)) + "n1:1:1 [0] NCCL WARN x\n"
    reader = LogReader()
    data = text.encode()
    reader.read("a.log", (data[at : at + 65536] for at in range(0, len(data), 65536)))
    (hits,) = reader.log.hits.values()
    assert (hits.rule.id, hits.quotes[0].place) == ("warning", "a.log:400000")


def test_a_head_says_nothing_of_what_it_does_not_have() -> None:
    head = b"[2026-13-45 99:99:99] "
    assert parse_head(head + b"n1:1:1 [0] ") == Head(
        None, "n1", 1, start=len(head), thread=b"n1:1:1 [0]"
    )
    (process,) = read("NCCL INFO no head").log.processes
    assert (process.host, process.pid, process.number) == ("", None, None)
