# SPDX-License-Identifier: Apache-2.0
"""Find what is behind a slow transport: the node or pair whose paths are slow while others are not.

Each source votes for itself: communicators that share some nodes, Sends and Recvs, the network
proxy. If every path goes over every node, as with rings over all of them, no culprit can be found.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import median

from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA
from nccl_inspector.analysis.transport.timed_paths import Path
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    HIGH,
    LOW,
    MEDIUM,
    WARNING,
    Entity,
    Evidence,
    Finding,
)

SCORE_MIN = 1.15  # the least ratio of the times on the suspect's paths to those elsewhere
# With fewer paths elsewhere their spread is not known, so the ratio must be larger.
OUTSIDE_MIN, SCORE_OF_FEW_MIN = 4, 1.3
Z_MIN = 3.0  # each ratio is of medians of many operations; in a ring, slowness spreads
SHARE_MIN = 0.8  # share of slow paths that it must be in, and share of its paths that must be slow
NODES_OF_PAIRS_MAX = 16  # longer paths are not searched for pairs
NODE, PAIR, UNDETERMINED = "node", "pair", "undetermined"


@dataclass(frozen=True, slots=True)
class Suspect:
    """Nodes and what one source says about them; `score`: median ratio there / elsewhere."""

    nodes: frozenset[str]
    score: float
    inside: int  # number of paths over these nodes
    outside: int


@dataclass(frozen=True, slots=True)
class SlowPlace:
    """Who is behind it; `others` are nodes on the same paths that it may be as well."""

    kind: str  # NODE, PAIR or UNDETERMINED
    nodes: tuple[str, ...]
    others: tuple[str, ...]
    confidence: str
    suspects: Mapping[str, Suspect]  # by source: communicators, sends, network


def _weigh(nodes: frozenset[str], paths: Sequence[Path]) -> Suspect | None:
    """Return how slow the paths over all of these nodes are; None: they do not explain it."""
    inside = [path.ratio for path in paths if nodes <= path.nodes]
    outside = [path.ratio for path in paths if not nodes <= path.nodes]
    if not inside or not outside:
        return None
    there, elsewhere = median(inside), median(outside)
    if there < (SCORE_MIN if len(outside) >= OUTSIDE_MIN else SCORE_OF_FEW_MIN) * elsewhere:
        return None
    if there - elsewhere <= Z_MIN * MAD_TO_SIGMA * median(abs(one - elsewhere) for one in outside):
        return None
    limit = sqrt(there * elsewhere)
    slow_inside = sum(ratio > limit for ratio in inside)
    slow = slow_inside + sum(ratio > limit for ratio in outside)
    if slow_inside < SHARE_MIN * slow or slow_inside < SHARE_MIN * len(inside):
        return None
    return Suspect(nodes, there / elsewhere, len(inside), len(outside))


def _best(suspects: Iterable[Suspect | None]) -> list[Suspect]:
    """Return the suspects with the highest score; several if they share it."""
    found = [one for one in suspects if one]
    top = max((one.score for one in found), default=0.0)
    return [one for one in found if one.score == top]


def _often(slow: Sequence[Path], size: int, all_slow: int) -> list[frozenset[str]]:
    """Return the sets of `size` nodes that are in enough slow paths to be blamed.

    A large job has a thousand nodes and ten thousand paths, but few sets are in so many slow ones.
    """
    counts = Counter(some for path in slow for some in combinations(sorted(path.nodes), size))
    least = SHARE_MIN / 2 * all_slow  # half: what counts as slow depends on who is blamed
    return [frozenset(some) for some, count in sorted(counts.items()) if count >= least]


def _vote(paths: Sequence[Path]) -> list[Suspect]:
    """Return who is behind slow paths: one suspect, or several that cannot be told apart.

    Paths within a node say nothing about the network, so they count only if there are no others.
    """
    paths = [path for path in paths if len(path.nodes) > 1] or paths
    best = _vote_of(paths, SCORE_MIN)
    # In a ring, the slowness of one pair spreads to its other paths, which are then less slow.
    worst = max((path.ratio for path in paths), default=0.0)
    return best or _vote_of(paths, sqrt(worst))


def _vote_of(paths: Sequence[Path], least: float) -> list[Suspect]:
    """Return who is behind the paths with a ratio of at least `least`."""
    slow = [path for path in paths if path.ratio >= max(least, SCORE_MIN)]
    best = _best(_weigh(nodes, paths) for nodes in _often(slow, 1, len(slow)))
    of_two = [path for path in slow if len(path.nodes) == 2]
    few = of_two if best else [path for path in slow if len(path.nodes) <= NODES_OF_PAIRS_MAX]
    of_pairs = _best(_weigh(pair, paths) for pair in _often(few, 2, len(slow)))
    # A node with only one path is no more likely than the pair of that path.
    narrow = best and all(any(one.nodes < pair.nodes for one in best) and
                          pair.inside == best[0].inside for pair in of_pairs)  # fmt: skip
    return of_pairs if of_pairs and (not best or narrow) else best


def _agree(one: Suspect, other: Suspect) -> bool:
    return one.nodes <= other.nodes or other.nodes <= one.nodes


def find_culprit(
    sources: Mapping[str, Sequence[Path]], known_slow: bool = False
) -> SlowPlace | None:
    """Return who is behind slow paths; None: nothing is slow.

    `sources`: the paths of one transport class by source, the most direct source first.
    `known_slow`: the class is slow compared with a reference outside of the job, or with an earlier
    time, so there must be a culprit, known or not.
    """
    votes = {source: _vote(paths) for source, paths in sources.items() if paths}
    voted = {source: found for source, found in votes.items() if found}
    if not voted:
        return SlowPlace(UNDETERMINED, (), (), LOW, {}) if known_slow else None
    chosen = next((found for found in voted.values() if len(found) == 1), None)
    suspects = {source: found[0] for source, found in voted.items()}
    if chosen is None:
        first = next(iter(voted.values()))
        nodes = sorted(frozenset[str]().union(*(one.nodes for one in first)))
        return SlowPlace(UNDETERMINED, (), tuple(nodes), LOW, suspects)
    (who,) = chosen
    agreeing = [one for one in suspects.values() if _agree(one, who)]
    confidence = HIGH if len(agreeing) > 1 else MEDIUM
    if len(agreeing) < len(suspects):
        confidence = LOW
    kind = NODE if len(who.nodes) == 1 else PAIR
    return SlowPlace(kind, tuple(sorted(who.nodes)), (), confidence, suspects)


def describe_culprit(culprit: SlowPlace, transport: str) -> Finding:
    """Return the finding; `transport` is the class of the paths (model/card.py)."""
    evidence = tuple(
        Evidence("boxes", f"time over these nodes beside others, by {source}", one.score, "x",
                 1.0, one.inside)
        for source, one in culprit.suspects.items()
    )  # fmt: skip
    figures = "; ".join(
        f"{one.score:.2f} times as long on {one.inside} of its paths as on {one.outside} others"
        f" ({source})"
        for source, one in culprit.suspects.items()
    )
    if culprit.kind == UNDETERMINED:
        who = (
            f"one of {', '.join(culprit.others)}, which are always on the same paths"
            if culprit.others
            else "who is behind it cannot be told: every path goes over the same nodes"
        )
        detail = f"{who}. {figures}".rstrip(" .") + "."
        title = f"{transport} transport slow, entity not determinable"
        entities = tuple(Entity(NODE, name) for name in culprit.others)
        return Finding(
            rules.SLOW_NETWORK.id, WARNING, LOW, title, detail, None, entities, evidence,
            ("a job over some of these nodes alone would tell which one it is",),
        )  # fmt: skip
    name = " - ".join(culprit.nodes)
    what = "node" if culprit.kind == NODE else "path between"
    return Finding(
        rules.SLOW_NETWORK.id, WARNING, culprit.confidence,
        f"{what} {name}: {transport} transport slow", f"{figures}.", None,
        (Entity(culprit.kind, name),), evidence,
        (f"check ports, cables and switch of {' and '.join(culprit.nodes)}",),
    )  # fmt: skip
