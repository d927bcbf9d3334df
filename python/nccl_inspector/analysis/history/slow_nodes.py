# SPDX-License-Identifier: Apache-2.0
"""Nodes on which jobs were slow again and again: suspects with evidence, never more than that.

A node's score in a job has two parts: the log of the job's bandwidth compared with that of the same
user's other jobs with the same kinds of operation, and that of the node's communicators compared
with their like in the job. One slow node slows all nodes that it works with, but those work with
others most of the time: the median tells them apart. A node that is never seen without the worst
one cannot be told apart from it.

All these data come from processes of users, so users are counted and not jobs. A node's score with
a user is the median over the user's jobs, and its whole score is the median over its users. The
jobs of one user can neither accuse a node nor change how another user's jobs are rated.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from statistics import median, median_high

from nccl_inspector.analysis.chance import binomial_tail
from nccl_inspector.analysis.kinds import KindKey
from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA

JOBS_MIN = 5  # for a node to be judged, and for a kind to be compared
USERS_MIN = 2  # for a node to be judged
KIND_USERS_MIN = 5  # to compare a user who has too few jobs of a kind with other users
DEPTH_MAX, Z_MAX = -0.03, -5.0
# The chance is for one node: of 10,000 nodes, chance names one in one run of a hundred.
NAMED_MIN, NAMED_CHANCE_MAX = 3, 1e-6
SUSPECTS_MAX, WORST_SHOWN = 16, 3
_MEDIAN_ERROR = 1.2533  # standard error of a median, in sigma / sqrt(n)
_SIGMA_MIN = 0.002


@dataclass(frozen=True, slots=True)
class ScoredJob:
    """One job: scores of its nodes within it, nodes with warnings, its kinds of operation."""

    job_id: int
    local: Mapping[str, float]
    named: frozenset[str]
    kinds: tuple[tuple[KindKey, float, float], ...]  # key, GB/s, ns
    owner: str = ""  # who ran it


@dataclass(frozen=True, slots=True)
class NodeScore:
    """A node's score over all jobs that were looked at."""

    node: str
    jobs: int  # that ran on it
    compared: int  # of these, those that could be compared with others
    named: int  # of these, those with a warning about the node
    depth: float | None  # median bandwidth compared with others, as a fraction: -0.15
    z: float | None
    suspect: bool
    reasons: tuple[str, ...]  # why: slow, named
    worst: tuple[int, ...]  # ids of the jobs with its lowest scores
    with_it: tuple[str, ...]  # nodes that cannot be told apart from it
    users: int = 0  # users who ran these jobs
    named_by: int = 0  # users whose jobs had a warning about the node


def _middles(jobs: Sequence[ScoredJob]) -> dict[tuple[str, KindKey], float]:
    """Return the bandwidth to expect, by user and kind: the user's own median.

    A user with too few jobs of a kind is compared with the median of all users' medians, if there
    are enough other users.
    """
    rates: dict[KindKey, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for job in jobs:
        for key, gbs, _ in job.kinds:
            rates[key][job.owner].append(gbs)
    middles = {}
    for key, of_users in rates.items():
        medians = {owner: median(found) for owner, found in of_users.items()}
        for owner, found in of_users.items():
            if len(found) >= JOBS_MIN:
                middles[owner, key] = medians[owner]
            elif len(medians) > KIND_USERS_MIN:
                middles[owner, key] = median(medians.values())
    return middles


def _job_scores(jobs: Sequence[ScoredJob]) -> dict[int, float]:
    """Return each job's score by position: log of bandwidth compared with the user's other jobs."""
    middles = _middles(jobs)
    scores = {}
    for at, job in enumerate(jobs):
        known = [
            (log(gbs / middles[job.owner, key]), ns)
            for key, gbs, ns in job.kinds
            if (job.owner, key) in middles
        ]
        if total := sum(ns for _, ns in known):
            scores[at] = sum(value * ns for value, ns in known) / total
    return scores


def _node_jobs(jobs: Sequence[ScoredJob]) -> dict[str, dict[int, float]]:
    """Return for each node its score in each of its jobs, by position."""
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


def _by_voter(found: Mapping[int, float], voters: Sequence[str]) -> list[float]:
    """Return the node's score with each voter: the median over the voter's jobs there."""
    values: dict[str, list[float]] = defaultdict(list)
    for at, value in found.items():
        values[voters[at]].append(value)
    return [median(mine) for mine in values.values()]


def _z_scores(
    fared: Mapping[str, Mapping[int, float]], voters: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Return depth (log) and z of each node with enough jobs and voters, compared with the others.

    Of two voters, the one with the node's better score decides.
    """
    votes = {
        node: values
        for node, found in fared.items()
        if len(found) >= JOBS_MIN and len(values := _by_voter(found, voters)) >= USERS_MIN
    }
    if len(votes) < 2:
        return {}
    medians = {node: median_high(values) for node, values in votes.items()}
    centre = median(medians.values())
    of_nodes = _spread(list(medians.values()))
    of_votes = _spread([value for values in votes.values() for value in values])
    scores = {}
    for node, middle in medians.items():
        error = _MEDIAN_ERROR * of_votes / sqrt(len(votes[node]))
        scores[node] = middle - centre, (middle - centre) / hypot(error, of_nodes)
    return scores


def _is_slow(score: tuple[float, float]) -> bool:
    return exp(score[0]) - 1 <= DEPTH_MAX and score[1] <= Z_MAX


def _slow(fared: dict[str, dict[int, float]], voters: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the slow nodes, the worst first, each with those that are never seen without it.

    Jobs of the worst node are left out before the next node is searched for.
    """
    left = {node: dict(found) for node, found in fared.items()}
    slow: dict[str, tuple[str, ...]] = {}
    while len(slow) < SUSPECTS_MAX:
        scores = {node: score for node, score in _z_scores(left, voters).items() if _is_slow(score)}
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


def _votes(jobs: Sequence[ScoredJob], voters: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """Return how many voters each node had, and how many of them had a warning about it."""
    pairs = {(node, voters[at]) for at, job in enumerate(jobs) for node in job.local}
    named = {
        (node, voters[at]) for at, job in enumerate(jobs) for node in job.named if node in job.local
    }
    return Counter(node for node, _ in pairs), Counter(node for node, _ in named)


def _often_named(seen: Counter[str], named: Counter[str]) -> set[str]:
    """Return the nodes that have more warnings than chance can explain."""
    total, times = seen.total(), named.total()
    found = set()
    for node, count in named.items():
        others = total - seen[node]
        if count >= NAMED_MIN and others:
            # At least one warning about others: with none, any warning would look certain.
            rate = max(times - count, 1) / others
            if rate < 1 and binomial_tail(count, seen[node], rate) < NAMED_CHANCE_MAX:
                found.add(node)
    return found


def _worst(ids: Sequence[int], fared: Mapping[int, float]) -> tuple[int, ...]:
    return tuple(ids[at] for at in sorted(fared, key=lambda at: (fared[at], at))[:WORST_SHOWN])


def score_nodes(jobs: Sequence[ScoredJob], *, each_job: bool = False) -> list[NodeScore]:
    """Return all nodes of these jobs; suspects come first, the worst of them first.

    `each_job`: count each job as a user of its own, for the jobs of a single user.
    """
    owners = [job.owner for job in jobs]
    voters = list(map(str, range(len(jobs)))) if each_job else owners
    fared, ids = _node_jobs(jobs), [job.job_id for job in jobs]
    scores, slow = _z_scores(fared, voters), _slow(fared, voters)
    often = _often_named(*_votes(jobs, voters))
    users, named_by = _votes(jobs, owners)
    seen, named = _votes(jobs, list(map(str, range(len(jobs)))))
    found = []
    for node in seen:
        depth, z = scores.get(node, (None, None))
        reasons = (*(["slow"] if node in slow else []), *(["named"] if node in often else []))
        its = fared.get(node, {})
        found.append(
            NodeScore(
                node, seen[node], len(its), named[node], None if depth is None else exp(depth) - 1,
                z, bool(reasons), reasons, _worst(ids, its), slow.get(node, ()), users[node],
                named_by[node],
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
