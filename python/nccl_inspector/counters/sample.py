# SPDX-License-Identifier: Apache-2.0
"""One reading of one source, and its compact JSON form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

INFINIBAND, GPU, PRESSURE = "infiniband", "gpu", "pressure"
SOURCES = (INFINIBAND, GPU, PRESSURE)


@dataclass(frozen=True, slots=True)
class Device:
    """A port, GPU, NVLink or the node, with readings in the units of counters.tsv.

    `name`: mlx5_0/1 (a port), GPU0, GPU0/17 (one of its links), empty (the node).
    """

    kind: str
    name: str
    counters: Mapping[str, int]
    levels: Mapping[str, int]  # quantities that go up and down; their names end in the unit
    facts: Mapping[str, str]  # texts that may change, such as a link's state


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading; without devices, `absent` says why, and that is not an error."""

    source: str
    time_s: float  # Unix time at the start of the reading
    boot_s: float  # the same time on a clock that nobody can set
    devices: tuple[Device, ...]
    absent: str = ""
    problems: tuple[str, ...] = ()  # what could not be read, as text
    took_s: float = 0.0


def encode(sample: Sample) -> bytes:
    """Return the bytes that `decode` reads."""
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
    """Return the sample that `encode` was given; `data` comes from our own child.

    Raises:
        ValueError: the child died while it wrote.
    """
    source, time_s, boot_s, rows, absent, problems, took_s = json.loads(data)
    devices = tuple(Device(*row) for row in rows)
    return Sample(source, time_s, boot_s, devices, absent, tuple(problems), took_s)
