# SPDX-License-Identifier: Apache-2.0
"""The table of counters: what is read, how wide it is, and in which unit."""

from dataclasses import dataclass
from functools import cache

from nccl_inspector.system.tsv import read_tsv

# For each unit of the table: the unit used in reports, and how many of it make one.
UNITS = {
    "events": ("events", 1),
    "packets": ("packets", 1),
    "words": ("bytes", 4),
    "KiB": ("bytes", 1024),
    "bytes": ("bytes", 1),
    "ticks": ("ticks", 1),
    "ns": ("ns", 1),
    "us": ("ns", 1000),
}


@dataclass(frozen=True, slots=True)
class CounterSpec:
    """One line of counters.tsv; `field` is NVML's field number, None if NVML does not have it."""

    kind: str
    name: str
    bits: int
    sticks: bool  # it stays at its highest value; else it wraps
    unit: str  # of the reading
    field: int | None
    told: bool  # any rise is worth a line of the report
    dated: bool  # it is kept when it rose; else only by how much in all

    @property
    def said_unit(self) -> str:
        """The unit of `said`, used in reports."""
        return UNITS[self.unit][0]

    def said(self, amount: int) -> int:
        """Return an amount in the unit used in reports."""
        return amount * UNITS[self.unit][1]


@cache
def load_counters() -> dict[tuple[str, str], CounterSpec]:
    """Return all counters by kind and name, in the order of the table."""
    found = {}
    for kind, name, bits, full, unit, field, told, dated in read_tsv("counters/counters.tsv"):
        number = None if field == "-" else int(field)
        found[kind, name] = CounterSpec(
            kind, name, int(bits), full == "sticks", unit, number, told == "yes", dated == "yes"
        )
    return found


def names_of(kind: str) -> tuple[str, ...]:
    """Return the names of the counters of one kind."""
    return tuple(name for of, name in load_counters() if of == kind)
