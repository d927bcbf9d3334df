# SPDX-License-Identifier: Apache-2.0
"""Earlier probes in a file that its owner keeps: what to expect of the next one of the same kind.

The file has one line of JSON for each probe. It may be cut, hostile or huge like any other file.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.probe.bounded_file import read_lines
from nccl_inspector.probe.result import Kind, ProbeResult, from_json, to_json
from nccl_inspector.system.checked_json import Checks, dump

# With these a matrix of 500 nodes fits, and thousands of probes without one.
LINE_BYTES_MAX = 32 << 20
FILE_BYTES_MAX = 256 << 20
_PAST_MAX = 100  # the latest ones count


@dataclass(frozen=True, slots=True)
class Expectation:
    """A bus bandwidth to expect, and where it is from."""

    gbs: float
    source: str
    probes: int = 0


def read_results(path: Path) -> list[ProbeResult]:
    """Return the probes of a file.

    Raises:
        InspectorError: it cannot be read, or a line is not a probe; the text says which line.
    """
    found = []
    for at, line in read_lines(path, FILE_BYTES_MAX, LINE_BYTES_MAX):
        checks = Checks(f"{path}:{at}")
        if line.strip():
            try:
                found.append(from_json(checks, checks.load(line)))
            except RefusedError as err:
                raise InspectorError(str(err)) from None
    return found


def expectation_of(past: Sequence[ProbeResult], kind: Kind, path: Path) -> Expectation | None:
    """Return the median of the best figures of the latest probes of a kind, or None without any."""
    best = [one.best.bus_gbs for one in past if one.kind == kind and one.best][-_PAST_MAX:]
    if not best or not (middle := median(best)):
        return None
    return Expectation(middle, str(path), len(best))


def save_result(path: Path, result: ProbeResult) -> None:
    """Append a probe to a file, which is created if it does not exist.

    Raises:
        InspectorError: it cannot be written, or is no regular file.
    """
    line = dump(to_json(result)) + b"\n"
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o644)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise InspectorError(f"{path}: not a regular file")
            # Behind a line that was cut, ours would be lost with it.
            cut = status.st_size and os.pread(fd, 1, status.st_size - 1) != b"\n"
            data = (b"\n" if cut else b"") + line
            if os.write(fd, data) != len(data):
                raise InspectorError(f"{path}: the disk is full, and the last line is cut")
        finally:
            os.close(fd)
    except OSError as err:
        raise InspectorError(f"{path}: {err.strerror}") from err
