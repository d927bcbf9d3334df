# SPDX-License-Identifier: Apache-2.0
"""XIDs, which are errors reported by the GPU driver, from the kernel log.

Only what the kernel itself writes at the beginning of a record counts. Text that root writes into
/dev/kmsg has another facility, and a process's name, which users choose, comes later in the line.
"""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.counters.pci import pci_address
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock

KMSG = Path("/dev/kmsg")
# The most records in one read; the rest is for the next.
RECORDS_MAX = 20_000
READ_S = 0.1

_RECORD_BYTES = 16 << 10  # a read with less room than the record needs fails
_HEADER = re.compile(rb"([0-9]{1,10}),([0-9]{1,20}),([0-9]{1,20}),[^;\n]*;([^\n]*)")
_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9A-Fa-f:.]{7,16})[^)]*\): ([0-9]{1,5}),")
_KERNEL = 0  # facility


@dataclass(frozen=True, slots=True)
class Xid:
    """An error of the GPU at this PCI address."""

    sequence: int  # of its record in the kernel log
    boot_us: int  # by the kernel's clock
    pci: str
    number: int


@dataclass(frozen=True, slots=True)
class NewXids:
    """What is new since the last read."""

    xids: tuple[Xid, ...]
    lost: int  # records that were overwritten before they were read


def parse_record(data: bytes) -> tuple[int, Xid | None]:
    """Return a record's sequence number (-1: it is invalid), and its XID if it has one."""
    header = _HEADER.match(data)
    if header is None:
        return -1, None
    priority, sequence, boot_us = (int(part) for part in header.groups()[:3])
    match = _XID.match(header[4])
    if match is None or priority >> 3 != _KERNEL:
        return sequence, None
    pci = pci_address(match[1].decode("ascii"))
    return sequence, Xid(sequence, boot_us, pci, int(match[2])) if pci else None


class KernelLog:
    """The kernel log from its oldest record on; `trouble` says why it cannot be read."""

    def __init__(self, path: Path = KMSG, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.trouble = ""
        self._next: int | None = None  # sequence number
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as err:
            self.trouble = f"{path}: {err.strerror}"

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> NewXids:
        """Return new records that can be read without waiting, within READ_S seconds."""
        xids: list[Xid] = []
        lost = 0
        deadline = self._clock.monotonic_s() + READ_S
        for _ in range(RECORDS_MAX):
            if self._fd < 0 or self._clock.monotonic_s() > deadline:
                break
            try:
                data = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as err:
                if err.errno == errno.EPIPE:  # overwritten; the next read continues after them
                    continue
                self.trouble = f"the kernel log: {err.strerror}"
                self.close()
                break
            if not data:
                break
            sequence, xid = parse_record(data)
            if sequence < 0:
                continue
            if self._next is not None and sequence > self._next:
                lost += sequence - self._next
            self._next = sequence + 1
            xids += [xid] if xid else []
        return NewXids(tuple(xids), lost)
