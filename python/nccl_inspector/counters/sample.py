# SPDX-License-Identifier: Apache-2.0
"""What one source said at one time, and its compact JSON."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

INFINIBAND, GPU, PRESSURE = "infiniband", "gpu", "pressure"
SOURCES = (INFINIBAND, GPU, PRESSURE)


@dataclass(frozen=True, slots=True)
class Device:
    """A port, GPU, NVLink or the node: readings in the units of counters.tsv.

    `name`: mlx5_0/1 (a port), GPU0, GPU0/17 (its link), empty (the node).
    """

    kind: str
    name: str
    counters: Mapping[str, int]
    levels: Mapping[str, int]  # what goes up and down; the unit ends the name
    facts: Mapping[str, str]  # what is a word and may change, as a link's state


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading. Without devices `absent` says why there are none: nothing is wrong then."""

    source: str
    time_s: float  # Unix, when the reading began
    boot_s: float  # the same on a clock that nobody sets
    devices: tuple[Device, ...]
    absent: str = ""
    problems: tuple[str, ...] = ()  # what could not be read, in words
    took_s: float = 0.0


def boot_clock_s() -> float:
    """Return the seconds since boot, suspended ones too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def encode(sample: Sample) -> bytes:
    """Return the bytes for `decode`."""
    rows = [
        [one.kind, one.name, dict(one.counters), dict(one.levels), dict(one.facts)]
        for one in sample.devices
    ]
    values = [
        sample.source, sample.time_s, sample.boot_s, rows, sample.absent,
        list(sample.problems), sample.took_s,
    ]  # fmt: skip
    return json.dumps(values, separators=(",", ":")).encode("ascii")


def decode(data: bytes) -> Sample:
    """Return what `encode` was given: it is our own child's.

    Raises:
        ValueError: the child died while it wrote.
    """
    source, time_s, boot_s, rows, absent, problems, took_s = json.loads(data)
    devices = tuple(Device(*row) for row in rows)
    return Sample(source, time_s, boot_s, devices, absent, tuple(problems), took_s)
