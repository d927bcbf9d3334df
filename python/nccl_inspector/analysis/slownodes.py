# SPDX-License-Identifier: Apache-2.0
"""Nodes on which jobs were slow again and again: suspects, with evidence, and never more.

How a node fared in a job is the log of the job's bandwidth beside that of other jobs with the
same kinds of operation, and of the node's communicators beside their like in the job. One slow
node slows all that it works with, but those work with others most of the time: the median over
jobs tells them apart. Who is never seen without the worst one cannot be told apart from it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, exp, hypot, log, sqrt
from statistics import median

from nccl_inspector.analysis.kinds import KindKey
from nccl_inspector.analysis.lateness import MAD_TO_SIGMA

JOBS_MIN = 5  # of a node, and of a kind to be compared by
DEPTH_MAX, Z_MAX = -0.03, -5.0
NAMED_MIN, NAMED_CHANCE_MAX = 3, 1e-6  # over all nodes: of ten thousand one in a hundred runs
SUSPECTS_MAX, WORST_SHOWN = 16, 3
_MEDIAN_ERROR = 1.2533  # of a median, in sigma / sqrt(n)
_SIGMA_MIN = 0.002


@dataclass(frozen=True, slots=True)
class JobSeen:
    """One job: its nodes with their scores within it, those named, bandwidth and time of kinds."""

    job_id: int
    local: Mapping[str, float]
    named: frozenset[str]
    kinds: tuple[tuple[KindKey, float, float], ...]  # key, GB/s, ns


@dataclass(frozen=True, slots=True)
class NodeScore:
    """A node over the jobs that were looked at."""

    node: str
    jobs: int  # in which it was
    compared: int  # of them, those with others to compare with
    named: int  # of them, those in which a warning was about it
    depth: float | None  # median bandwidth beside others', a fraction: -0.15
    z: float | None
    suspect: bool
    reasons: tuple[str, ...]  # why: slow, named
    worst: tuple[int, ...]  # ids of the jobs in which it fared worst
    with_it: tuple[str, ...]  # nodes that cannot be told apart from it


def _job_scores(jobs: Sequence[JobSeen]) -> dict[int, float]:
    """Return by position how a job fared beside others with the same kinds, by log of bandwidth."""
    rates: dict[KindKey, list[float]] = defaultdict(list)
    for job in jobs:
        for key, gbs, _ in job.kinds:
            rates[key].append(gbs)
    middles = {key: median(found) for key, found in rates.items() if len(found) >= JOBS_MIN}
    scores = {}
    for at, job in enumerate(jobs):
        known = [(log(gbs / middles[key]), ns) for key, gbs, ns in job.kinds if key in middles]
        if total := sum(ns for _, ns in known):
            scores[at] = sum(value * ns for value, ns in known) / total
    return scores


def _node_jobs(jobs: Sequence[JobSeen]) -> dict[str, dict[int, float]]:
    """Return for each node how it fared in its jobs, by position."""
    whole = _job_scores(jobs)
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for at, job in enumerate(jobs):
        for node, local in job.local.items():
            if at in whole or local:
                found[node][at] = whole.get(at, 0.0) + local
    return found


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return max(MAD_TO_SIGMA * median(abs(value - middle) for value in values), _SIGMA_MIN)


def _z_scores(fared: Mapping[str, Mapping[int, float]]) -> dict[str, tuple[float, float]]:
    """Return depth (log) and z of each node with enough jobs, beside the others."""
    medians = {
        node: median(found.values()) for node, found in fared.items() if len(found) >= JOBS_MIN
    }
    if len(medians) < 2:
        return {}
    centre = median(medians.values())
    of_nodes = _spread(list(medians.values()))
    of_jobs = _spread([value for node in medians for value in fared[node].values()])
    scores = {}
    for node, middle in medians.items():
        error = _MEDIAN_ERROR * of_jobs / sqrt(len(fared[node]))
        scores[node] = middle - centre, (middle - centre) / hypot(error, of_nodes)
    return scores


def _is_slow(score: tuple[float, float]) -> bool:
    return exp(score[0]) - 1 <= DEPTH_MAX and score[1] <= Z_MAX


def _slow(fared: dict[str, dict[int, float]]) -> dict[str, tuple[str, ...]]:
    """Return the slow nodes, the worst first, each with those that are never seen without it.

    What the worst one explains is taken away before the next is looked for.
    """
    left = {node: dict(found) for node, found in fared.items()}
    slow: dict[str, tuple[str, ...]] = {}
    while len(slow) < SUSPECTS_MAX:
        scores = {node: score for node, score in _z_scores(left).items() if _is_slow(score)}
        if not scores:
            break
        worst = min(scores, key=lambda node: (scores[node][1], node))
        its = set(left.pop(worst))
        alike = sorted(node for node in scores if node != worst and set(left[node]) <= its)
        slow[worst] = tuple(alike)
        left = {
            node: {at: value for at, value in found.items() if at not in its}
            for node, found in left.items()
        }
    return slow


def _chance(named: int, jobs: int, rate: float) -> float:
    """Return how likely so many jobs, or more, name a node that is like all others."""
    return sum(comb(jobs, k) * rate**k * (1 - rate) ** (jobs - k) for k in range(named, jobs + 1))


def _counts(jobs: Sequence[JobSeen]) -> tuple[Counter[str], Counter[str]]:
    """Return in how many jobs each node was, and in how many of them a warning was about it."""
    seen = Counter(node for job in jobs for node in job.local)
    return seen, Counter(node for job in jobs for node in job.named if node in job.local)


def _often_named(seen: Counter[str], named: Counter[str]) -> set[str]:
    """Return the nodes that warnings are about more often than chance can make."""
    total, times = seen.total(), named.total()
    found = set()
    for node, count in named.items():
        others = total - seen[node]
        if count >= NAMED_MIN and others:
            # One of the others at least: none at all would make any name certain.
            rate = max(times - count, 1) / others
            if rate < 1 and _chance(count, seen[node], rate) < NAMED_CHANCE_MAX:
                found.add(node)
    return found


def _worst(ids: Sequence[int], fared: Mapping[int, float]) -> tuple[int, ...]:
    return tuple(ids[at] for at in sorted(fared, key=lambda at: (fared[at], at))[:WORST_SHOWN])


def score_nodes(jobs: Sequence[JobSeen]) -> list[NodeScore]:
    """Return all nodes of these jobs: suspects first, the worst first."""
    fared, ids = _node_jobs(jobs), [job.job_id for job in jobs]
    scores, slow = _z_scores(fared), _slow(fared)
    seen, named = _counts(jobs)
    often = _often_named(seen, named)
    found = []
    for node in seen:
        depth, z = scores.get(node, (None, None))
        reasons = (*(["slow"] if node in slow else []), *(["named"] if node in often else []))
        its = fared.get(node, {})
        found.append(
            NodeScore(
                node, seen[node], len(its), named[node], None if depth is None else exp(depth) - 1,
                z, bool(reasons), reasons, _worst(ids, its), slow.get(node, ()),
            )
        )  # fmt: skip
    order = {node: at for at, node in enumerate(slow)}
    return sorted(
        found,
        key=lambda one: (
            not one.suspect, order.get(one.node, len(order)), -one.named,
            one.z if one.z is not None else 0.0, one.node,
        ),
    )  # fmt: skip
