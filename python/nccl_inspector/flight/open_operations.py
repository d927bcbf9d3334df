# SPDX-License-Identifier: Apache-2.0
"""The first operation of each group, and of each pair of ranks, that did not end; and who came."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nccl_inspector.flight.calls import Call, Evidence, GroupCalls, Pair
from nccl_inspector.flight.dump import Group

# A rank whose dump was written so long after another's call is not merely a little behind.
_BEHIND_NS = 2_000_000_000


class Place(NamedTuple):
    """An operation: a collective by its number, or the Sends of `pair` (source, target)."""

    group: Group
    seq: int
    pair: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """An operation that did not end on some rank. All fields but `place` are global ranks.

    `waiting` has the ranks that called it, and for which it has not ended.
    """

    place: Place
    waiting: Mapping[int, Call]
    absent: tuple[int, ...]  # did not call it
    no_dump: tuple[int, ...]
    unknown: tuple[int, ...]  # not known whether they called it
    mismatched: Mapping[int, Call]  # called something else than most
    is_first: bool = True  # False: records of earlier ones were overwritten
    members_known: bool = True

    @property
    def since_ns(self) -> int:
        """When the last rank came that came."""
        return max((one.last.created_ns for one in self.waiting.values()), default=0)

    @property
    def call(self) -> Call:
        """The call of a rank that is like most."""
        usual = [one for rank, one in self.waiting.items() if rank not in self.mismatched]
        return (usual or list(self.waiting.values()))[0]


def _mismatched(calls: Mapping[int, Call]) -> dict[int, Call]:
    """Return the calls that differ from those of most ranks; of a tie, all."""
    found = Counter(one.what for one in calls.values())
    if len(found) < 2:
        return {}
    (usual, most), *others = found.most_common()
    tie = any(count == most for _, count in others)
    return {rank: one for rank, one in calls.items() if tie or one.what != usual}


class _Collectives:
    """The collectives of one group."""

    def __init__(self, group: GroupCalls, evidence: Evidence) -> None:
        self.group = group
        self.evidence = evidence

    def surely_absent(self, rank: int, seq: int) -> bool:
        """Tell whether a rank that has a dump did not call a collective.

        The newest records are never overwritten. So a rank whose last collective in the group has a
        lower number did not call it; one without any record of the group may have called it before
        all that its dump has.
        """
        last = self.group.last_number(rank)
        return last < seq and (last > 0 or not self.evidence.dumps[rank].has_wrapped)

    def calls(self, seq: int) -> dict[int, Call]:
        return {
            rank: calls[seq] for rank, calls in sorted(self.group.calls.items()) if seq in calls
        }

    def _was_given_up(self, seq: int) -> bool:
        """Tell whether a collective cannot have ended, although nobody watches it any more.

        That is so if ranks called different ones, or if a rank had not called it a while later.
        """
        calls = self.calls(seq)
        if not all(one.is_blind for one in calls.values()):
            return False
        if _mismatched(calls):
            return True
        called_ns = min(one.last.created_ns for one in calls.values())
        return any(
            rank in self.evidence.dumps
            and self.surely_absent(rank, seq)
            and self.evidence.dumps[rank].written_ns > called_ns + _BEHIND_NS
            for rank in self.group.members
        )

    def first(self) -> tuple[int, bool] | None:
        """Return the number of the first collective that did not end, and whether it was given up.

        None: all of them ended.
        """
        calls = [one for of_rank in self.group.calls.values() for one in of_rank.values()]
        open_ = min((one.last.seq for one in calls if not one.is_finished), default=None)
        blind = {one.last.seq for one in calls if one.is_blind}
        for seq in sorted(blind if open_ is None else (one for one in blind if one < open_)):
            if self._was_given_up(seq):
                return seq, True
        return None if open_ is None else (open_, False)

    def open(self) -> Open | None:
        """Return the first collective that did not end."""
        first = self.first()
        if first is None:
            return None
        seq, given_up = first
        calls, dumps = self.calls(seq), self.evidence.dumps
        others = sorted(self.group.members - calls.keys())
        absent = [one for one in others if one in dumps and self.surely_absent(one, seq)]
        no_dump = [one for one in others if one not in dumps and not self._is_unreadable(one)]
        return Open(
            Place(self.group.group, seq),
            {
                rank: one
                for rank, one in calls.items()
                if given_up or not one.is_finished or self._may_have_given_up(rank, one)
            },
            tuple(absent),
            tuple(no_dump),
            tuple(one for one in others if one not in absent and one not in no_dump),
            _mismatched(calls),
            is_first=not self._lost_before(seq, calls),
            members_known=self.group.is_known,
        )

    def _may_have_given_up(self, rank: int, call: Call) -> bool:
        """Tell whether a rank called nothing after an operation whose end is not known."""
        return call.is_blind and self.evidence.dumps[rank].dump.records[-1] is call.last

    def _is_unreadable(self, rank: int) -> bool:
        return rank in self.evidence.unreadable

    def _lost_before(self, seq: int, calls: Iterable[int]) -> bool:
        """Tell whether a rank's records before this one were overwritten, and may be open, too."""
        return any(
            self.evidence.dumps[rank].has_wrapped and min(self.group.calls[rank]) == seq
            for rank in calls
        )


def _open_pair(
    ends: tuple[int, int], pair: Pair, group: GroupCalls, evidence: Evidence
) -> Open | None:
    """Return what of a pair's Sends and Recvs did not end.

    Both sides do them in the same order. A Send may end before its Recv was called, because small
    messages wait in a buffer; so a Recv is missing its Send only if fewer Sends were called.
    """
    sends = [one for one in pair.sends if not one.is_finished]
    recvs = [one for one in pair.recvs if not one.is_finished]
    if not sends and not recvs:
        return None
    waiting = {one[0].rank: one[0] for one in (sends, recvs) if one}
    absent, no_dump, unknown = [], [], []
    for rank, mine, theirs, is_open in (
        (ends[0], pair.sends, pair.recvs, bool(sends)),
        (ends[1], pair.recvs, pair.sends, bool(recvs)),
    ):
        if is_open:
            continue
        if rank in evidence.unreadable:
            unknown.append(rank)
        elif rank not in evidence.dumps:
            no_dump.append(rank)
        elif any(evidence.dumps[one].has_wrapped for one in ends if one in evidence.dumps):
            unknown.append(rank)
        elif len(mine) < len(theirs):
            absent.append(rank)
    place = Place(group.group, next(iter(waiting.values())).last.p2p_seq, ends)
    return Open(place, waiting, tuple(absent), tuple(no_dump), tuple(unknown), {})


def _surplus(
    ends: tuple[int, int], pair: Pair, group: GroupCalls, evidence: Evidence
) -> Iterator[Open]:
    """Yield what one side called and the other one did not, behind calls that both are in.

    Both sides are in the first of a batch that does not end, so nothing else says it.
    """
    sides = ((ends[0], pair.sends, pair.recvs), (ends[1], pair.recvs, pair.sends))
    if not all(any(not one.is_finished for one in calls) for _, calls, _ in sides):
        return
    if any(rank not in evidence.dumps or evidence.dumps[rank].has_wrapped for rank in ends):
        return
    for rank, mine, theirs in sides:
        if len(mine) < len(theirs) and not theirs[len(mine)].is_finished:
            call = theirs[len(mine)]
            # No other place has a negative number.
            place = Place(group.group, -1 - len(mine), ends)
            yield Open(place, {call.rank: call}, (rank,), (), (), {})


def _behind_batches(found: list[Open]) -> list[Open]:
    """Return the operations without pairs that all called, and that only their batch holds up.

    A batch ends as a whole. If another part of it waits for a call that was not made, then the
    matched part of it waits for that, too.
    """
    held = {
        (rank, one.place.group, call.last.p2p_seq)
        for one in found
        if one.place.pair is not None and one.absent
        for rank, call in one.waiting.items()
    }

    def is_held(one: Open) -> bool:
        if one.place.pair is None or one.absent or one.no_dump or one.unknown or one.mismatched:
            return False
        return any((rank, one.place.group, call.last.p2p_seq) in held
                   for rank, call in one.waiting.items())  # fmt: skip

    return [one for one in found if not is_held(one)]


def find_open(groups: Iterable[GroupCalls], evidence: Evidence) -> list[Open]:
    """Return the first operation of each group and of each pair that did not end."""
    listed: list[Open] = []
    for group in groups:
        found = _Collectives(group, evidence).open()
        if found is not None:
            listed.append(found)
        for ends, pair in group.pairs.items():
            found = _open_pair(ends, pair, group, evidence)
            if found is not None:
                listed.append(found)
            listed += _surplus(ends, pair, group, evidence)
    return _behind_batches(listed)
