# SPDX-License-Identifier: Apache-2.0
"""Compare this job's bandwidth with that of earlier similar jobs.

Only jobs of the same user can change a verdict. Everything that is compared comes from processes of
a job's user, so the jobs of others are only information: the median of their users' medians, from
at least OTHERS_MIN users, so that no single user can move it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import pi, sqrt
from statistics import median

from nccl_inspector.analysis.kinds import KindKey, KindRow
from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA
from nccl_inspector.model.card import Baseline, BaselineMetric, OthersMetric

JOBS_MAX, JOBS_MIN = 20, 5
OTHERS_MIN = 5  # other users
DELTA_MAX, Z_MAX = -0.10, -3.0
# Jobs that happen to agree exactly would make any difference significant.
_SIGMA_SHARE_MIN = 0.01
# What may differ, the most harmless first; function and size must be equal.
_LET_GO = "nccl", "algo", "nic", "gpu", "nnodes", "nranks", "transport"
_LET_GO_MAX = 2  # at the same time: jobs that differ in more are not similar


@dataclass(frozen=True, slots=True)
class PastKind:
    """One kind of operation of one earlier job."""

    key: KindKey
    job_id: int
    bus_gbs: float
    time_ns: float
    owner: str = ""  # who ran the job


@dataclass(frozen=True, slots=True)
class Others:
    """A kind of this job compared with that of other users' jobs."""

    kind: KindRow
    users: int
    jobs: int
    median_gbs: float  # of the users' medians


@dataclass(frozen=True, slots=True)
class Compared:
    """A kind and its like; `delta` is relative to the median, `differs` as in Baseline."""

    kind: KindRow
    jobs: int
    differs: tuple[str, ...]
    median_gbs: float
    mad_gbs: float
    delta: float
    z: float

    @property
    def is_low(self) -> bool:
        """Whether it is clearly slower; never if something differs, because that may be why."""
        return not self.differs and self.delta < DELTA_MAX and self.z < Z_MAX


def _by_job(past: Iterable[PastKind]) -> list[PastKind]:
    """Return one entry for each of the latest jobs; a requeued job counts once."""
    return list({one.job_id: one for one in past}.values())[:JOBS_MAX]


def _alike(past: Sequence[PastKind], key: KindKey, differs: Sequence[str]) -> list[PastKind]:
    fields = [name for name in _LET_GO if name not in differs]
    return _by_job(
        one for one in past if all(getattr(one.key, name) == getattr(key, name) for name in fields)
    )


def find_similar(key: KindKey, past: Sequence[PastKind]) -> tuple[list[PastKind], tuple[str, ...]]:
    """Return the latest similar jobs, and the fields that had to differ; none if there are too few.

    `past` has the same function and size, the latest first.
    """
    for count in range(_LET_GO_MAX + 1):
        for differs in combinations(_LET_GO, count):
            found = _alike(past, key, differs)
            if len(found) >= JOBS_MIN:
                return found, differs
    return [], ()


def few_values_factor(count: int) -> float:
    """Return the factor by which the spread of `count` values is widened.

    The MAD of few values is too small on average, and their median has an error of its own.
    """
    return count / (count - 0.8) * sqrt(1 + pi / (2 * count))


def compare_kind(kind: KindRow, past: Sequence[PastKind]) -> Compared | None:
    """Return a kind of this job compared with similar jobs; None if there are too few."""
    found, differs = find_similar(kind.key, past)
    if not found or not kind.bus_gbs:
        return None
    values = [one.bus_gbs for one in found]
    middle = median(values)
    mad = median(abs(value - middle) for value in values)
    sigma = max(MAD_TO_SIGMA * mad * few_values_factor(len(values)), _SIGMA_SHARE_MIN * middle)
    return Compared(
        kind, len(found), differs, middle, mad,
        kind.bus_gbs / middle - 1, (kind.bus_gbs - middle) / sigma,
    )  # fmt: skip


def compare_kinds(
    kinds: Sequence[KindRow], past: Mapping[KindKey, Sequence[PastKind]]
) -> list[Compared]:
    """Return all kinds of a job that can be compared, the busiest first."""
    compared = (compare_kind(kind, past.get(kind.key, ())) for kind in kinds)
    return [one for one in compared if one is not None]


def beside_others(kind: KindRow, past: Sequence[PastKind]) -> Others | None:
    """Return a kind of this job compared with other users' jobs; None if too few ran its like.

    `past` has the same key; each user's jobs are in order, the latest first.
    """
    of_users: dict[str, list[PastKind]] = defaultdict(list)
    for one in past:
        of_users[one.owner].append(one)
    if len(of_users) < OTHERS_MIN or not kind.bus_gbs:
        return None
    rates = [[one.bus_gbs for one in _by_job(found)] for found in of_users.values()]
    return Others(kind, len(rates), sum(map(len, rates)), median(map(median, rates)))


def _name(key: KindKey) -> str:
    return f"{key.transport} {key.func} 2^{key.size_class} B, {key.nranks} ranks, bus bandwidth"


def make_baseline(compared: Sequence[Compared], others: Sequence[Others] = ()) -> Baseline | None:
    """Return the card's baseline; None if nothing could be compared."""
    if not compared and not others:
        return None
    return Baseline(
        jobs=max((one.jobs for one in compared), default=0),
        differs=tuple(dict.fromkeys(name for one in compared for name in one.differs)),
        metrics=tuple(
            BaselineMetric(
                _name(one.kind.key), one.kind.bus_gbs or 0.0, "GB/s", one.median_gbs, one.mad_gbs,
                one.z,
            )
            for one in compared
        ),
        others_jobs=max((one.jobs for one in others), default=0),
        others_users=max((one.users for one in others), default=0),
        others=tuple(
            OthersMetric(
                _name(one.kind.key), one.kind.bus_gbs or 0.0, "GB/s", one.median_gbs, one.users,
                one.jobs,
            )
            for one in others
        ),
    )  # fmt: skip
