# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's plugin wrote about a job on one node: the part kept for the report, and its JSON.

A dump of one GPU has two means for each kind of operation: of the bandwidth, and of the time since
the last dump. Of these means the lowest, the sum and the highest are kept. Sizes are put into
classes between two powers of two. The plugin's own classes are linear, so that nearly every size
would be a kind of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from nccl_inspector.model.kind_labels import SIZE_CLASS_MAX, WHOLE_MAX, LabelledComm, LabelledKind
from nccl_inspector.system.checked_json import Checks

GPUS_MAX = 64
ROWS_MAX = 2400  # for all GPUs: as many as are published
GBS_MAX = 1e6  # a hundred times what exists; for sizes that overflowed, it writes 7e17
TIME_US_MAX = 1e12
LEFT_OUT = "too_many_kinds"
COUNT_MAX = (1 << 53) - 1
# The largest relative error of a sum of floats.
_ROUNDING = 1e-6
CHECKS = Checks("bad_vendor_means")


@dataclass(frozen=True, slots=True)
class Spread:
    """The means of one kind on one GPU; their own mean is sum / count."""

    count: int = 0
    low: float = 0.0
    sum: float = 0.0
    high: float = 0.0

    def with_mean(self, value: float) -> Self:
        """Return it with one more mean; 0 is ignored, as in the plugin's own means."""
        if not value:
            return self
        low = min(self.low, value) if self.count else value
        return type(self)(self.count + 1, low, self.sum + value, max(self.high, value))

    @property
    def mean(self) -> float | None:
        """The mean of the means; None: there are none."""
        return self.sum / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class MeansRow:
    """One kind of operation on one GPU; `dumps` is the number of dumps that had it."""

    gpu: str  # from the name of the file
    kind: LabelledKind
    dumps: int
    gbs: Spread
    time_us: Spread


@dataclass(frozen=True, slots=True)
class Dumps:
    """The dumps of one GPU: how many the agent saw, and the Unix times of the first and last."""

    gpu: str
    count: int
    first_s: int
    last_s: int


@dataclass(frozen=True, slots=True)
class VendorMeans:
    """All means of a node; `refused` counts refused dumps, or kinds in them, by reason."""

    dumps: tuple[Dumps, ...] = ()
    rows: tuple[MeansRow, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def busiest(means: VendorMeans, most: int) -> VendorMeans:
    """Return at most `most` kinds, those with the most dumps; `refused` counts those left out."""
    left = len(means.rows) - most
    if left <= 0:
        return means
    rows = sorted(means.rows, key=lambda row: -row.dumps)[:most]
    refused = {**means.refused, LEFT_OUT: means.refused.get(LEFT_OUT, 0) + left}
    return replace(means, rows=tuple(rows), refused=refused)


def means_to_json(means: VendorMeans) -> Any:
    """Return the JSON value that `means_from_json` reads."""
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
    return CHECKS.integer(value, COUNT_MAX)


def _spread(value: Any, most: float) -> Spread:
    count, low, total, high = CHECKS.rows(value, 4)
    known = _count(count)
    low, high = CHECKS.figure(low, most), CHECKS.figure(high, most)
    total = CHECKS.figure(total, most * max(known, 1) * (1 + _ROUNDING))
    if low > high or not low * (1 - _ROUNDING) * known <= total <= high * (1 + _ROUNDING) * known:
        raise CHECKS.refused("invalid mean")
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
    """Return the means; every value is checked.

    Raises:
        RefusedError: it is not a value of `means_to_json`; the reason is `bad_vendor_means`.
    """
    words = CHECKS.table(value)
    missing = {"dumps", "comms", "rows", "refused", "problems"} - words.keys()
    if missing:
        raise CHECKS.refused(f"no {min(missing)}")
    comms = [_comm(one) for one in CHECKS.rows(words["comms"])]
    rows = tuple(_row(one, comms) for one in CHECKS.rows(words["rows"]))
    if len({(row.gpu, row.kind) for row in rows}) < len(rows):
        raise CHECKS.refused("a kind of operation comes twice")
    return VendorMeans(
        dumps=tuple(_dumps(one) for one in CHECKS.rows(words["dumps"])),
        rows=rows,
        refused={name: _count(one) for name, one in CHECKS.table(words["refused"]).items()},
        problems=tuple(CHECKS.text(one) for one in CHECKS.rows(words["problems"])),
    )
