# SPDX-License-Identifier: Apache-2.0
"""All causes of lost time that exact records show, with their costs, and whether one would show.

The cost is the share of the time with operations that the job would have saved without the cause,
by replaying the sampled pieces of time. What several causes cost together is divided between them,
so that no second counts twice.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Mask
from nccl_inspector.analysis.replay.bound_gaps import gaps_if_faster
from nccl_inspector.analysis.replay.cause import Cause
from nccl_inspector.analysis.replay.changes import find_changes
from nccl_inspector.analysis.replay.costs import saved_share
from nccl_inspector.analysis.replay.culprits import FoundCulprits
from nccl_inspector.analysis.replay.gaps import find_gaps
from nccl_inspector.analysis.replay.hidden_barriers import fill_holes
from nccl_inspector.analysis.replay.late_calls import LateCalls, hidden_share, judge_calls
from nccl_inspector.analysis.replay.late_causes import late_causes
from nccl_inspector.analysis.replay.late_stages import late_stages
from nccl_inspector.analysis.replay.met_outside import met_before
from nccl_inspector.analysis.replay.missing_last import missing_last_share
from nccl_inspector.analysis.replay.order import Order, find_order
from nccl_inspector.analysis.replay.outside_causes import outside_causes, without_explained
from nccl_inspector.analysis.replay.paths import Spot
from nccl_inspector.analysis.replay.process_choice import Choice
from nccl_inspector.analysis.replay.records import Records, RecordSource, gather
from nccl_inspector.analysis.replay.stop_calls import judge_stops
from nccl_inspector.analysis.replay.transfer_causes import ask_transfers, transfer_causes
from nccl_inspector.analysis.replay.what_if import Replay
from nccl_inspector.model.card import UNKNOWN
from nccl_inspector.model.process import Samples

# Limits of the evidence needed to say that a fault of 5 % would have shown.
SEEN_RANKS_MIN, SEEN_JOINED_MIN, SEEN_SECONDS_MIN, SEEN_UNLIKE_MAX = 0.5, 0.5, 5.0, 0.7
SEEN_TOGETHER_MAX = 0.8  # share of the ranks' long work after which all come to NCCL together
# If all ranks took what is usual, the replay must not make the job longer by more than this;
# otherwise the replay is wrong.
_AGAINST_MAX = 0.03


@dataclass(frozen=True, slots=True)
class Judged:
    """What the records of a job say; `seen`: a fault of 5 % would have shown."""

    causes: tuple[Cause, ...] = ()
    seen: bool = False
    why_not: str = ""  # if `seen` is False: what is missing
    pieces: int = 0
    seconds: float = 0.0  # seconds that were replayed
    imbalance_share: float = 0.0
    dismissed_share: float = 0.0  # what lateness costs that may be chance
    clear: float = 0.0  # share of the operations for which it is known what they depend on
    records: Records | None = None
    order: Order | None = None
    replay: Replay | None = None
    faster: Floats | None = None  # what to add to gaps if transfers are faster (bound_gaps.py)
    looked: int = 0  # processes whose records were read
    refused: Mapping[str, int] = field(default_factory=dict)  # unreadable ones, by reason
    usual: Floats | None = None  # the gaps of all rows at their peers' pace
    members: tuple[int, ...] = ()  # the processes whose records were read
    proves: bool = False  # what was found holds, although a fault of missing ranks would not show
    missing_last: float = 0.0  # share of operations in which a rank without records came last

    @property
    def active_s(self) -> float:
        """For how many seconds the job had operations; costs are shares of that time."""
        return self.records.active_ns / 1e9 if self.records is not None else 0.0

    def below(self, factors: Mapping[tuple[int, int, int], float]) -> tuple[float, float]:
        """Return what it costs that transfers are always slow: the share and its standard error.

        `factors`: possible T / T, by communicator's id, function and size class.
        """
        if self.records is None or self.replay is None or not factors:
            return 0.0, 0.0
        factor = np.ones(len(self.records))
        for kind, value in factors.items():
            factor[_of_kind(self.records, kind)] = value
        cost, error, _ = saved_share(ask_transfers(self.replay, [factor], self.faster), 0)
        return cost, error

    def late_calls(
        self, cause: Cause, samples: Callable[[int], Samples | None]
    ) -> LateCalls | None:
        """Return when the late processes of a cause called; None: not known.

        `samples` returns those of a process.
        """
        if self.records is None or self.order is None or self.usual is None:
            return None
        found = judge_calls(self.records, self.order, self.usual, cause.members, cause.late_ns)
        if found is None or found.kind == UNKNOWN:
            hidden = hidden_share(self.records, self.order, self.usual, cause.members)
            read = {one: own for one in self.members if (own := samples(one)) is not None}
            stops = judge_stops(read, cause.members, cause.late_ns, hidden)
            found = stops or found
        return found

    def queued_share(self, kinds: Iterable[tuple[int, int, int]]) -> float:
        """Return the share of operations of some kinds that began when their stream was free."""
        if self.records is None or self.order is None:
            return 0.0
        rows = [_of_kind(self.records, kind) for kind in kinds]
        mine = np.logical_or.reduce(rows) if rows else np.zeros(len(self.records), dtype=bool)
        return float(np.mean(self.order.queued[mine])) if mine.any() else 0.0


def _of_kind(records: Records, kind: tuple[int, int, int]) -> Mask:
    """Return a mask of the rows of a communicator (its id), function and size class."""
    comm_id, func, size_class = kind
    comms = [place for place, comm in enumerate(records.comms) if comm.id == comm_id]
    found: Mask = (
        np.isin(records.comm, comms) & (records.func == func) & (records.size_class == size_class)
    )
    return found


def _seen(
    records: Records, order: Order, usual: Floats, found: FoundCulprits, looked: int, joined: float
) -> str:
    """Return what is missing for a fault of 5 % to show; empty: nothing.

    `looked`: in the records of how many processes a fault had to show. `joined`: the share of the
    operations of which enough ranks have records.
    """
    ranks = len(np.unique(records.member))
    if ranks < SEEN_RANKS_MIN * looked:
        return f"only {ranks} of {looked} processes have records"
    if joined < SEEN_JOINED_MIN:
        return f"only {joined:.0%} of the sampled operations have records of all their ranks"
    if found.seconds < SEEN_SECONDS_MIN or found.pieces < 1:
        return f"only {found.seconds:.0f} s of the job could be replayed"
    if np.mean(np.isnan(usual)) > SEEN_UNLIKE_MAX:
        return "hardly any rank has others that do the same work"
    if found.imbalance_share < -_AGAINST_MAX:
        return "what the operations depend on could not be found out"
    if not np.any(~np.isnan(order.waited)):
        return "no operation in which ranks wait for each other"
    if met_before(records, order) > SEEN_TOGETHER_MAX:
        return "ranks meet outside NCCL before their operations: who is late there does not show"
    return ""


def judge_records(
    sources: Sequence[RecordSource],
    nodes: Sequence[str],
    locals_: Sequence[int],
    *,
    choice: Choice | None = None,
) -> Judged:
    """Return what the samples of a job's processes say; `nodes` and `locals_` are by process.

    `choice`: which processes the sources are from, if not from all.
    """
    refused = Counter[str]()
    records = gather(sources, len(nodes), choice.left_out if choice else {}, refused)
    if records is None:
        why_not = "no process has exact records of its operations"
        return Judged(why_not=why_not, refused=dict(refused))
    records = fill_holes(records)
    order = find_order(records)
    gaps = find_gaps(records, order)
    usual = gaps.usual
    spots = tuple(Spot(node, local) for node, local in zip(nodes, locals_, strict=True))
    replay = Replay(records, order, gaps)
    late, found = late_causes(records, order, usual, nodes, replay)
    changes = find_changes(records, order, gaps)
    faster = gaps_if_faster(records, order, gaps)
    stages = late_stages(records, order, gaps, replay)
    transfers = transfer_causes(records, order, faster, replay, changes, spots)
    outside = outside_causes(records, order, replay, changes)
    causes = [*late, *stages, *transfers, *without_explained(outside, transfers, stages)]
    looked = len(choice.members) if choice and choice.some else len(nodes)
    must = looked if choice and choice.by_busy else len(nodes)
    whole = ~np.isnan(order.transfer)
    why_not = _seen(records, order, usual, found, must, float(np.mean(whole)))
    # What those that are there have in common is known, also if others are missing.
    enough = float(np.mean(whole | ~np.isnan(order.waited)))
    proves = not why_not or not _seen(records, order, usual, found, must, enough)
    return Judged(
        tuple(sorted(causes, key=lambda one: -one.cost_share)),
        not why_not,
        why_not,
        found.pieces,
        found.seconds,
        found.imbalance_share,
        found.dismissed_share,
        order.sure,
        records,
        order,
        replay,
        faster,
        looked,
        dict(refused),
        usual,
        tuple(one.member for one in sources),
        proves,
        missing_last_share(records, order),
    )
