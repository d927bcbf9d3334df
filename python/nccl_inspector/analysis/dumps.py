# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's plugin wrote about a job, over all its nodes and GPUs."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_inspector.model.kind_labels import LabelledComm, LabelledKind
from nccl_inspector.model.wording import number
from nccl_inspector.summary.codec import NodeSummary
from nccl_inspector.summary.vendor_means import MeansRow, Spread


@dataclass(frozen=True, slots=True)
class DumpedKind:
    """One kind of operation; a GPU's mean is the mean of all its dumps."""

    kind: LabelledKind
    gpus: int
    dumps: int  # of all these GPUs together
    time_us: Spread
    gbs: Spread
    least_us: float | None  # the lowest of the GPUs' means; None: no dump had a time
    best_gbs: float | None


@dataclass(frozen=True, slots=True)
class Dumped:
    """All dumps of a job; times are Unix seconds."""

    dumps: int
    gpus: int
    first_s: int
    last_s: int
    kinds: tuple[DumpedKind, ...]
    members: Mapping[LabelledComm, tuple[tuple[str, str], ...]]  # node and GPU
    refused: Mapping[str, int]  # dumps, or kinds in them, by reason
    problems: tuple[str, ...]

    @property
    def words(self) -> str:
        """The number of dumps and of GPUs, as text."""
        return f"{number(self.dumps, 'dump')} of {number(self.gpus, 'GPU')}"


def _merge(spreads: Sequence[Spread]) -> Spread:
    known = [one for one in spreads if one.count]
    return Spread(
        sum(one.count for one in known),
        min((one.low for one in known), default=0.0),
        sum(one.sum for one in known),
        max((one.high for one in known), default=0.0),
    )


def _kind(kind: LabelledKind, rows: Sequence[MeansRow]) -> DumpedKind:
    times, rates = [row.time_us for row in rows], [row.gbs for row in rows]
    return DumpedKind(
        kind,
        gpus=len(rows),
        dumps=sum(row.dumps for row in rows),
        time_us=_merge(times),
        gbs=_merge(rates),
        least_us=min((one.mean for one in times if one.mean is not None), default=None),
        best_gbs=max((one.mean for one in rates if one.mean is not None), default=None),
    )


def find_dumps(summaries: Sequence[NodeSummary]) -> Dumped | None:
    """Return the dumps of the job; None if no node has any."""
    found = [(one.head.node, one.vendor) for one in summaries if one.vendor]
    if not found:
        return None
    rows: dict[LabelledKind, list[MeansRow]] = defaultdict(list)
    members: dict[LabelledComm, dict[tuple[str, str], None]] = defaultdict(dict)
    refused: Counter[str] = Counter()
    for node, vendor in found:
        refused.update(vendor.refused)
        for row in vendor.rows:
            rows[row.kind].append(row)
            members[row.kind.comm][node, row.gpu] = None
    dumps = [one for _, vendor in found for one in vendor.dumps]
    return Dumped(
        dumps=sum(one.count for one in dumps),
        gpus=len(dumps),
        first_s=min((one.first_s for one in dumps), default=0),
        last_s=max((one.last_s for one in dumps), default=0),
        kinds=tuple(_kind(kind, its) for kind, its in rows.items()),
        members={comm: tuple(its) for comm, its in members.items()},
        refused=dict(refused),
        problems=tuple(f"{node}: {one}" for node, vendor in found for one in vendor.problems),
    )
