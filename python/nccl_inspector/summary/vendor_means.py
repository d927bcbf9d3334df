# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's plugin wrote of a job on one node: what is kept for its report, and its JSON.

A dump of one GPU has two means for each kind of operation: of the bandwidth and of the time since
the dump before. Of these means the least, the sum and the greatest are kept. Sizes are classes
between two powers of two: the plugin's own are linear, and there would be a kind for nearly each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from nccl_inspector.model.kind_labels import SIZE_CLASS_MAX, WHOLE_MAX, LabelledComm, LabelledKind
from nccl_inspector.system.checked_json import Checks

GPUS_MAX = 64
ROWS_MAX = 2400  # of all GPUs: as many as are published
GBS_MAX = 1e6  # a hundred times what there is; of sizes that wrapped around it writes 7e17
TIME_US_MAX = 1e12
LEFT_OUT = "too_many_kinds"
_COUNT_MAX = (1 << 53) - 1
# What the sum of as many floats may be off.
_ROUNDING = 1e-6
CHECKS = Checks("bad_vendor_means")


@dataclass(frozen=True, slots=True)
class Spread:
    """Means of one kind on one GPU; the mean of them is sum / count."""

    count: int = 0
    low: float = 0.0
    sum: float = 0.0
    high: float = 0.0

    def with_mean(self, value: float) -> Self:
        """Return it with one more; 0 is none, for the plugin leaves it out of its own means."""
        if not value:
            return self
        low = min(self.low, value) if self.count else value
        return type(self)(self.count + 1, low, self.sum + value, max(self.high, value))

    @property
    def mean(self) -> float | None:
        """The mean of the means; None: there is none."""
        return self.sum / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class MeansRow:
    """One kind of operation on one GPU; `dumps` are those that it was in."""

    gpu: str  # as the file's name says
    kind: LabelledKind
    dumps: int
    gbs: Spread
    time_us: Spread


@dataclass(frozen=True, slots=True)
class Dumps:
    """The dumps of one GPU: how many the agent saw, the first and the last of them when (Unix)."""

    gpu: str
    count: int
    first_s: int
    last_s: int


@dataclass(frozen=True, slots=True)
class VendorMeans:
    """All of it; `refused`: dumps, or kinds in them, that were not taken, by reason."""

    dumps: tuple[Dumps, ...] = ()
    rows: tuple[MeansRow, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def busiest(means: VendorMeans, most: int) -> VendorMeans:
    """Return at most so many kinds, those of most dumps; `refused` tells how many are left out."""
    left = len(means.rows) - most
    if left <= 0:
        return means
    rows = sorted(means.rows, key=lambda row: -row.dumps)[:most]
    refused = {**means.refused, LEFT_OUT: means.refused.get(LEFT_OUT, 0) + left}
    return replace(means, rows=tuple(rows), refused=refused)


def means_to_json(means: VendorMeans) -> Any:
    """Return what `means_from_json` takes."""
    named = dict.fromkeys(row.kind.comm for row in means.rows)
    comms = {comm: place for place, comm in enumerate(named)}
    return {
        "dumps": [[one.gpu, one.count, one.first_s, one.last_s] for one in means.dumps],
        "comms": [[comm.name, comm.nranks, comm.nnodes] for comm in comms],
        "rows": [
            [
                row.gpu,
                comms[row.kind.comm],
                row.kind.func,
                row.kind.size_class,
                row.kind.algo_proto,
                row.dumps,
                *([one.count, one.low, one.sum, one.high] for one in (row.gbs, row.time_us)),
            ]
            for row in means.rows
        ],
        "refused": dict(means.refused),
        "problems": list(means.problems),
    }


def _count(value: Any) -> int:
    return CHECKS.integer(value, _COUNT_MAX)


def _spread(value: Any, most: float) -> Spread:
    count, low, total, high = CHECKS.rows(value, 4)
    known = _count(count)
    low, high = CHECKS.figure(low, most), CHECKS.figure(high, most)
    total = CHECKS.figure(total, most * max(known, 1) * (1 + _ROUNDING))
    if low > high or not low * (1 - _ROUNDING) * known <= total <= high * (1 + _ROUNDING) * known:
        raise CHECKS.refused("a mean that is none")
    return Spread(known, low, total, high)


def _dumps(value: Any) -> Dumps:
    gpu, count, first_s, last_s = CHECKS.rows(value, 4)
    return Dumps(CHECKS.text(gpu), _count(count), CHECKS.time(first_s), CHECKS.time(last_s))


def _comm(value: Any) -> LabelledComm:
    name, nranks, nnodes = CHECKS.rows(value, 3)
    sizes = (CHECKS.integer(one, WHOLE_MAX) for one in (nranks, nnodes))
    return LabelledComm("", CHECKS.text(name), *sizes)


def _row(value: Any, comms: list[LabelledComm]) -> MeansRow:
    gpu, place, func, size_class, algo_proto, dumps, gbs, time_us = CHECKS.rows(value, 8)
    if CHECKS.integer(place, len(comms)) == len(comms):
        raise CHECKS.refused("no such communicator")
    kind = LabelledKind(
        comms[place],
        CHECKS.text(func),
        CHECKS.integer(size_class, SIZE_CLASS_MAX),
        CHECKS.text(algo_proto),
    )
    spreads = _spread(gbs, GBS_MAX), _spread(time_us, TIME_US_MAX)
    return MeansRow(CHECKS.text(gpu), kind, _count(dumps), *spreads)


def means_from_json(value: Any) -> VendorMeans:
    """Return what was kept, every value looked at.

    Raises:
        RefusedError: it is not what `means_to_json` gives; the reason is `bad_vendor_means`.
    """
    words = CHECKS.table(value)
    missing = {"dumps", "comms", "rows", "refused", "problems"} - words.keys()
    if missing:
        raise CHECKS.refused(f"no {min(missing)}")
    comms = [_comm(one) for one in CHECKS.rows(words["comms"])]
    rows = tuple(_row(one, comms) for one in CHECKS.rows(words["rows"]))
    if len({(row.gpu, row.kind) for row in rows}) < len(rows):
        raise CHECKS.refused("a kind twice")
    return VendorMeans(
        dumps=tuple(_dumps(one) for one in CHECKS.rows(words["dumps"])),
        rows=rows,
        refused={name: _count(one) for name, one in CHECKS.table(words["refused"]).items()},
        problems=tuple(CHECKS.text(one) for one in CHECKS.rows(words["problems"])),
    )
