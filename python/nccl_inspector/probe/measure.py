# SPDX-License-Identifier: Apache-2.0
"""Measure with ranks that are connected to a hub: each size of a collective, and pairs of nodes."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.bandwidth import bus_gbs
from nccl_inspector.probe.errors import MemoryLackError, ProbeError
from nccl_inspector.probe.hub import Hub, Rank
from nccl_inspector.probe.plan import WARMUPS, least_s, repeats, rounds
from nccl_inspector.probe.result import Cell, Row
from nccl_inspector.probe.wire import CHECKS, SECONDS_MAX, Message
from nccl_inspector.probe.words import size_words

_PAIR_S = 0.5  # of timings for each direction of a pair
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of the sizes; `wrong_ranks` received other data than were sent."""

    rows: tuple[Row, ...]
    wrong_ranks: tuple[int, ...]
    notes: tuple[str, ...]


def _longest(answers: Iterable[Message]) -> float:
    """Return the time of the slowest rank: an operation has ended when it has ended everywhere."""
    try:
        longest = max(CHECKS.figure(one.get("seconds"), SECONDS_MAX) for one in answers)
    except RefusedError as err:
        raise ProbeError(f"a rank's time is refused: {err}") from err
    return max(longest, 1e-9)


def connect(hub: Hub, seconds: float) -> None:
    """Connect all ranks with each other.

    Raises:
        ProbeError: a rank could not.
    """
    offers = [rank.offer for rank in hub.ranks]
    hub.ask_each(
        {
            at: {"do": "join", "first": offers[0], "following": offers[(at + 1) % len(offers)]}
            for at in range(len(offers))
        },
        seconds,
    )


def measure_sizes(
    hub: Hub, collective: str, sizes: Sequence[int], total_s: float, answer_s: float, say: Say
) -> Measured:
    """Measure sizes, the smallest first, in about `total_s`; `answer_s` is the limit of one answer.

    A size that would not end in time, or for which there is no memory, and all larger ones are left
    out with a note.

    Raises:
        ProbeError: a rank has gone, failed or gives no answer.
    """
    rows: list[Row] = []
    wrong: set[int] = set()
    until_s = time.monotonic() + total_s
    for at, size in enumerate(sizes):
        left_s = until_s - time.monotonic()
        # Twice the size takes at most about twice as long.
        if rows and least_s(rows[-1].median_s * size / rows[-1].size_bytes) > left_s:
            why = f"it would take longer than the {total_s:g} s of --seconds"
            return Measured(tuple(rows), tuple(sorted(wrong)), (_left_out(sizes[at:], why),))
        try:
            hub.ask({"do": "prepare", "collective": collective, "bytes": size}, answer_s)
            row, bad = _measure_size(hub, collective, size, left_s / (len(sizes) - at), answer_s)
        except MemoryLackError as err:
            if not rows:
                raise
            return Measured(tuple(rows), tuple(sorted(wrong)), (_left_out(sizes[at:], str(err)),))
        rows.append(row)
        wrong |= bad
        say(f"{collective} {size_words(size)}: {row.bus_gbs:.3g} GB/s")
    return Measured(tuple(rows), tuple(sorted(wrong)), ())


def _left_out(sizes: Sequence[int], why: str) -> str:
    rest = " and larger" if len(sizes) > 1 else ""
    return f"{size_words(sizes[0])}{rest} not measured: {why}"


def _measure_size(
    hub: Hub, collective: str, size: int, budget_s: float, answer_s: float
) -> tuple[Row, set[int]]:
    warm_s = _longest(hub.ask({"do": "time", "operations": WARMUPS}, answer_s)) / WARMUPS
    checks = hub.ask({"do": "check"}, answer_s)
    plan = repeats(warm_s, budget_s)
    times = [
        _longest(hub.ask({"do": "time", "operations": plan.operations}, answer_s)) / plan.operations
        for _ in range(plan.repetitions)
    ]
    middle = median(times)
    row = Row(
        size, plan.repetitions, plan.operations, middle, min(times), size / middle / 1e9,
        bus_gbs(collective, size, len(hub.ranks), middle),
    )  # fmt: skip
    return row, {at for at, one in enumerate(checks) if one.get("right") is not True}


def _by_node(ranks: Sequence[Rank]) -> dict[str, list[Rank]]:
    found: dict[str, list[Rank]] = defaultdict(list)
    for rank in ranks:
        found[rank.node].append(rank)
    return found


@dataclass(frozen=True, slots=True)
class Pairs:
    """Measures how fast nodes send to each other, pair by pair."""

    hub: Hub
    size_bytes: int
    answer_s: float

    def matrix(self, say: Say, only: frozenset[frozenset[str]] | None = None) -> list[Cell]:
        """Return the rates of all pairs of nodes, or of `only` some, in both directions.

        Pairs of one round are disjoint and are measured at the same time. Each rank of a node sends
        to the rank at the same place of the other one.

        Raises:
            ProbeError: a rank has gone, failed or gives no answer.
        """
        nodes = _by_node(self.hub.ranks)
        names = list(nodes)
        cells: list[Cell] = []
        every = rounds(len(names))
        for at, pairs in enumerate(every, 1):
            chosen = [
                (names[a], names[b])
                for a, b in pairs
                if only is None or frozenset((names[a], names[b])) in only
            ]
            if chosen:
                cells += self._round([(nodes[a], nodes[b]) for a, b in chosen])
                say(f"pairs of nodes: round {at} of {len(every)}")
        return cells

    def _round(self, pairs: Sequence[tuple[list[Rank], list[Rank]]]) -> list[Cell]:
        peers: dict[int, Rank] = {}
        for ours, theirs in pairs:
            for one, other in zip(ours, theirs, strict=False):
                peers[one.number], peers[other.number] = other, one
        self.hub.ask_each(
            {
                at: {"do": "meet", "peer": peer.number, "offer": peer.offer}
                for at, peer in peers.items()
            },
            self.answer_s,
        )
        forth = {rank.number for ours, _ in pairs for rank in ours}
        return [
            *self._one_way(peers, forth, [(a, b) for a, b in pairs]),
            *self._one_way(peers, peers.keys() - forth, [(b, a) for a, b in pairs]),
        ]

    def _one_way(
        self,
        peers: Mapping[int, Rank],
        senders: Iterable[int],
        pairs: Sequence[tuple[list[Rank], list[Rank]]],
    ) -> list[Cell]:
        sending = set(senders)

        def timed(operations: int) -> dict[int, Message]:
            return self.hub.ask_each(
                {
                    at: {"do": "pass", "bytes": self.size_bytes, "operations": operations,
                         "sends": at in sending}
                    for at in peers
                },
                self.answer_s,
            )  # fmt: skip

        warm_s = _longest(timed(WARMUPS).values()) / WARMUPS
        plan = repeats(warm_s, _PAIR_S)
        several = [timed(plan.operations) for _ in range(plan.repetitions)]
        cells = []
        for ours, theirs in pairs:
            both = list(zip(ours, theirs, strict=False))
            members = [rank.number for pair in both for rank in pair]
            times = [_longest(answers[at] for at in members) for answers in several]
            moved = self.size_bytes * plan.operations * len(both)
            cells.append(Cell(ours[0].node, theirs[0].node, moved / median(times) / 1e9))
        return cells
