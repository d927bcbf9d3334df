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

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.chance import binomial_tail
from nccl_inspector.analysis.history.node_score import NodeScore
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

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ScoredJob:
    """One job: its kinds of operation, and who ran it."""

    job_id: int
    kinds: tuple[tuple[KindKey, float, float], ...]  # key, GB/s, ns
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Seats:
    """Nodes in jobs as columns, by positions in lists of nodes and of jobs: one row for each.

    A large site's last jobs have more than a million of them.
    """

    node: Ints
    job: Ints
    value: Floats  # the node's score in the job
    named: Flags  # a warning of the job is about the node

    def where(self, chosen: Flags | Ints) -> "Seats":
        """Return some of the rows, in the order in which they are chosen."""
        return Seats(self.node[chosen], self.job[chosen], self.value[chosen], self.named[chosen])


@dataclass(frozen=True, slots=True)
class ScoredJobs:
    """Jobs with their nodes; the scores in `seats` are those within each job."""

    jobs: Sequence[ScoredJob]
    nodes: Sequence[str]
    seats: Seats


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


def _fared(seats: Seats, jobs: Sequence[ScoredJob]) -> Seats:
    """Return the score of each node in each of its jobs, where anything is known of it."""
    whole = np.full(len(jobs), np.nan)
    for at, score in _job_scores(jobs).items():
        whole[at] = score
    of_job = whole[seats.job]
    known = ~np.isnan(of_job) | (seats.value != 0)
    value = np.nan_to_num(of_job, nan=0.0) + seats.value
    return Seats(seats.node, seats.job, value, seats.named).where(known)


def _spread(values: Floats) -> float:
    middle = np.median(values)
    return max(MAD_TO_SIGMA * float(np.median(np.abs(values - middle))), _SIGMA_MIN)


def _bounds(*keys: Ints) -> Ints:
    """Return where each run of equal keys begins, and the number of rows behind the last."""
    rows = len(keys[0])
    if not rows:
        return np.zeros(1, np.int64)  # no run
    fresh = np.zeros(rows - 1, np.bool_)
    for key in keys:
        fresh |= key[1:] != key[:-1]
    return np.concatenate(([0], np.flatnonzero(fresh) + 1, [rows]))


def _middles_of(values: Floats, bounds: Ints) -> Floats:
    """Return the median of each run; the values of a run are sorted."""
    begin, end = bounds[:-1], bounds[1:]
    middles: Floats = (values[(begin + end - 1) // 2] + values[(begin + end) // 2]) / 2
    return middles


def _by_voter(fared: Seats, voters: Ints) -> Seats:
    """Return the rows in the order that _z_scores() needs: by node, voter and value."""
    order = np.lexsort((fared.value, voters[fared.job], fared.node))
    return fared.where(order)


def _z_scores(fared: Seats, voters: Ints) -> dict[int, tuple[float, float]]:
    """Return depth (log) and z of each node with enough jobs and voters, compared with the others.

    A node's score with a voter is the median over the voter's jobs there. Of two voters, the one
    with the node's better score decides. `fared` is in the order of _by_voter().
    """
    runs = _bounds(fared.node, voters[fared.job])
    votes, node = _middles_of(fared.value, runs), fared.node[runs[:-1]]
    of_node = _bounds(node)
    counts = np.diff(of_node)
    enough = (counts >= USERS_MIN) & (np.diff(runs[of_node]) >= JOBS_MIN)
    judged = np.flatnonzero(enough)
    if len(judged) < 2:
        return {}
    order = np.lexsort((votes, node))  # within each node; the nodes stay where they are
    best = votes[order][of_node[judged] + counts[judged] // 2]
    centre, of_nodes = float(np.median(best)), _spread(best)
    of_votes = _spread(votes[np.repeat(enough, counts)])
    error = _MEDIAN_ERROR * of_votes / np.sqrt(counts[judged])
    z = (best - centre) / np.hypot(error, of_nodes)
    found = zip((best - centre).tolist(), z.tolist(), strict=True)
    return dict(zip(node[of_node[judged]].tolist(), found, strict=True))


def _is_slow(score: tuple[float, float]) -> bool:
    return exp(score[0]) - 1 <= DEPTH_MAX and score[1] <= Z_MAX


def _slow(fared: Seats, voters: Ints, nodes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the slow nodes, the worst first, each with those that are never seen without it.

    Jobs of the worst node are left out before the next node is searched for.
    """
    left = fared
    slow: dict[str, tuple[str, ...]] = {}
    while len(slow) < SUSPECTS_MAX:
        scores = {node: score for node, score in _z_scores(left, voters).items() if _is_slow(score)}
        if not scores:
            break
        worst = min(scores, key=lambda node: (scores[node][1], nodes[node]))
        its = np.zeros(len(voters), np.bool_)
        its[left.job[left.node == worst]] = True
        left = left.where(~its[left.job])
        elsewhere = np.bincount(left.node, minlength=len(nodes))
        slow[nodes[worst]] = tuple(
            sorted(nodes[node] for node in scores if node != worst and not elsewhere[node])
        )
    return slow


def _votes(seats: Seats, voters: Ints, nodes: int) -> Ints:
    """Return how many voters have each node in their rows."""
    size = max(len(voters), 1)
    pairs = np.sort(seats.node * size + voters[seats.job])
    return np.bincount(pairs[_bounds(pairs)[:-1]] // size, minlength=nodes)


def _often_named(seen: Ints, named: Ints) -> set[int]:
    """Return the nodes that have more warnings than chance can explain."""
    total, times = int(seen.sum()), int(named.sum())
    found = set()
    for node in np.flatnonzero(named >= NAMED_MIN).tolist():
        count, others = int(named[node]), total - int(seen[node])
        if others:
            # At least one warning about others: with none, any warning would look certain.
            rate = max(times - count, 1) / others
            if rate < 1 and binomial_tail(count, int(seen[node]), rate) < NAMED_CHANCE_MAX:
                found.add(node)
    return found


def _worst(fared: Seats, ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the jobs with the lowest scores of each node."""
    order = np.lexsort((fared.job, fared.value, fared.node))
    bounds = _bounds(fared.node[order])
    return {
        int(fared.node[order[begin]]): tuple(
            ids[at] for at in fared.job[order[begin : min(end, begin + WORST_SHOWN)]].tolist()
        )
        for begin, end in pairwise(bounds.tolist())
    }


def _codes_of(words: Iterable[str]) -> Ints:
    """Return a number for each word, the same for the same."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(word, len(codes)) for word in words], np.int64)


def score_nodes(scored: ScoredJobs, *, each_job: bool = False) -> list[NodeScore]:
    """Return all nodes of these jobs; suspects come first, the worst of them first.

    `each_job`: count each job as a user of its own, for the jobs of a single user.
    """
    jobs, nodes, seats = scored.jobs, scored.nodes, scored.seats
    each, owners = np.arange(len(jobs)), _codes_of(job.owner for job in jobs)
    voters = each if each_job else owners
    of_named = seats.where(seats.named)
    fared = _by_voter(_fared(seats, jobs), voters)
    scores, slow = _z_scores(fared, voters), _slow(fared, voters, nodes)

    def count(rows: Seats, who: Ints) -> Ints:
        return _votes(rows, who, len(nodes))

    often = _often_named(count(seats, voters), count(of_named, voters))
    users, named_by = count(seats, owners).tolist(), count(of_named, owners).tolist()
    seen, named = count(seats, each).tolist(), count(of_named, each).tolist()
    compared = np.bincount(fared.node, minlength=len(nodes)).tolist()
    worst = _worst(fared, [job.job_id for job in jobs])
    found = []
    for at, node in enumerate(nodes):
        depth, z = scores.get(at, (None, None))
        reasons = (*(["slow"] if node in slow else []), *(["named"] if at in often else []))
        found.append(
            NodeScore(
                node, seen[at], compared[at], named[at], None if depth is None else exp(depth) - 1,
                z, bool(reasons), reasons, worst.get(at, ()), slow.get(node, ()), users[at],
                named_by[at],
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
