# SPDX-License-Identifier: Apache-2.0
"""XIDs from the kernel log, into which others write too."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.agent.counters.xid import KernelLog, NewXids, Xid, parse_record

TEXT = "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus"


def record(text: str = TEXT, sequence: int = 7, priority: int = 4, us: int = 5_000_000) -> bytes:
    return f"{priority},{sequence},{us},-;{text}\n SUBSYSTEM=pci\n".encode("utf-8", "replace")


@pytest.fixture
def log() -> Iterator[tuple[KernelLog, socket.socket]]:
    """A kernel log that is fed by hand: one datagram is one record, as one read of the real one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    one = KernelLog(Path("/dev/null"))
    os.dup2(ours.fileno(), one._fd)
    yield one, theirs
    one.close()
    ours.close()
    theirs.close()


def test_an_xid_has_its_gpu_number_and_time() -> None:
    assert parse_record(record()) == (7, Xid(7, 5_000_000, "0000:65:00", 79))


def test_an_instance_of_a_gpu_is_that_gpus() -> None:
    text = "NVRM: Xid (PCI:0000:65:00 GPU-I:05): 13, Graphics SM Warp Exception"
    assert parse_record(record(text)) == (7, Xid(7, 5_000_000, "0000:65:00", 13))


@pytest.mark.parametrize(
    "text",
    [
        f"python[812]: segfault at 0 ip 0 {TEXT}",
        f"python: {TEXT}",
        f" {TEXT}",
        "NVRM: Xid (PCI:0000:65:00): ",
        "NVRM: Xid (PCI:0000:65:00): 999999999999,",
        "NVRM: Xid (PCI:../../etc): 79, x",
        "NVRM: Xid (PCI:0000:65:00: 79, x",
        "NVRM: GPU at PCI:0000:65:00: GPU-1a2b",
        "",
        "\x1b[2J\xff\0",
    ],
)
def test_what_only_looks_like_an_xid_is_none(text: str) -> None:
    assert parse_record(record(text)) == (7, None)


@pytest.mark.parametrize("facility", [1, 3, 23])
def test_what_a_program_writes_into_the_log_is_no_word_of_the_kernels(facility: int) -> None:
    assert parse_record(record(priority=facility << 3 | 4)) == (7, None)


def test_a_second_line_of_a_record_is_not_looked_at() -> None:
    assert parse_record(record("usb 1-1: new device\n" + TEXT)) == (7, None)


@pytest.mark.parametrize("data", [b"", b";", b"4,x,5,-;a", b"\0" * 9000, b"4,5", b"-4,1,1,-;x"])
def test_what_is_no_record_is_passed_over(data: bytes) -> None:
    assert parse_record(data) == (-1, None)


def test_records_that_were_overwritten_are_counted(log: tuple[KernelLog, socket.socket]) -> None:
    one, feed = log
    for sequence in (100, 101, 105):
        feed.send(record(sequence=sequence))
    heard = one.read()
    assert [xid.sequence for xid in heard.xids] == [100, 101, 105]
    assert heard.lost == 3
    assert one.read() == NewXids((), 0)
    feed.send(record(sequence=106))
    assert one.read().lost == 0


def test_a_flood_is_read_in_parts(
    log: tuple[KernelLog, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.agent.counters.xid.RECORDS_MAX", 3)
    one, feed = log
    for sequence in range(5):
        feed.send(record(sequence=sequence))
    assert len(one.read().xids) == 3
    assert len(one.read().xids) == 2


def test_without_a_kernel_log_it_is_said(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    assert log.read() == NewXids((), 0)
    assert log.trouble.endswith("none: No such file or directory")
    folder = KernelLog(tmp_path)
    folder.read()
    assert folder.trouble == "the kernel log: Is a directory"


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel log is closed to us")
def test_the_real_log_is_read_without_waiting() -> None:
    log = KernelLog()
    if log.trouble:
        pytest.skip(log.trouble)
    heard = log.read()
    assert log.trouble == ""
    assert heard.lost >= 0
    log.close()
