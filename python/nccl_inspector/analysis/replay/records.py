# SPDX-License-Identifier: Apache-2.0
"""Put the exact records of all processes into one table: joined by operation, on one time line.

Rows of two ranks are the same operation if communicator and number agree, whatever their clocks
say. A collective ends on all its ranks within microseconds, so the ends of joined operations also
tell how the clocks differ, better than any daemon could; nothing else is believed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from nccl_inspector.analysis.replay.alignment import align
from nccl_inspector.analysis.replay.arrays import (
    Ints,
    Mask,
    distinct_pairs,
    last_before,
    medians,
    number_rows,
    order_rows,
)
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import FUNCS, PEER_NONE, SAMPLE_GROUP, SampleKind, Samples
from nccl_inspector.summary.unpacked_samples import clock_columns

CommKey = tuple[int, int]  # id, and how many communicators with this id there were before
SYNCHRONISING = frozenset(
    FUNCS.index(name) for name in ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll")
)  # no rank can leave before the last one has come
_SEND, _RECV, _SENDRECV = (FUNCS.index(name) for name in ("Send", "Recv", "SendRecv"))
_PARTNERS_MAX = 1 << 20  # the most ranks of a communicator
# If all records of a time were kept, they come as one run, which is judged in pieces like bursts.
PIECE_BITS = 34
# The most records that are judged; more would hardly tell more, and take longer.
RECORDS_MAX = 300_000
_READ_MAX = 2_100_000  # the most records in memory at a time


@dataclass(frozen=True, slots=True)
class RecordSource:
    """The samples of one process of the job."""

    member: int  # the process's number in the job
    samples: Samples


@dataclass(frozen=True, slots=True)
class RecordedComm:
    """A communicator that has records; `ordinal` is its place among those of its first member."""

    id: int
    name: str
    nranks: int
    nnodes: int
    ordinal: int
    members: tuple[int, ...]  # processes with records of it
    left_out: int = 0  # ranks whose records were not read
    missing: int = 0  # ranks of which there are no records, and at least as many others have some
    hidden: bool = False  # its operations have no records and were put in (hidden_barriers.py)

    @property
    def looked(self) -> int:
        """How many ranks have a record of an operation if they have all of them."""
        return self.nranks - self.left_out - self.missing


@dataclass(frozen=True, slots=True)
class Records:
    """One row for each operation of each process, ordered by process and begin.

    Times are ns on one time line for all processes (`align`), near Unix time.
    """

    comms: tuple[RecordedComm, ...]
    member: Ints
    comm: Ints
    func: Ints
    size_class: Ints
    number: Ints  # operation's number in its communicator (of a group or a Send: in its function)
    peer: Ints
    bytes: Ints
    begin: Ints
    end: Ints
    queued: Ints  # from the call to the begin; 0: not known
    joined: Ints  # rows of one operation share it
    piece: Ints  # the burst, or the piece of an unbroken run; numbers ascend with time
    run: Ints  # an unbroken run of records: a burst, or everything
    members: int  # processes of the job, with or without records
    lost: int
    active_ns: int = 0  # time with operations, for which the records stand
    within: Ints | None = None  # how exact `queued` is (SampleColumns.within_ns); None: exact

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.member)


@dataclass(frozen=True, slots=True)
class _Raw:
    """The columns of all processes one after another, each in its own Unix time."""

    member: Ints
    comm: Ints
    rank: Ints
    func: Ints
    size_class: Ints
    number: Ints
    peer: Ints
    bytes: Ints
    begin: Ints
    end: Ints
    queued: Ints
    within: Ints
    group: Mask

    def take(self, which: Mask | Ints) -> "_Raw":
        return _Raw(*(getattr(self, name)[which] for name in self.__slots__))


def _shifts(samples: Samples, kind: Ints, times: Ints) -> Ints:
    """Return for each row what to add to its GPU's clock at its start to get Unix time, in ns."""
    found = np.zeros(len(times), np.int64)
    gpu = np.array([0 if one.gpu is None else one.gpu for one in samples.kinds], np.int64)[kind]
    for place, clock in enumerate(clock_columns(samples)):
        mine = gpu == clock.gpu if place else np.ones(len(times), dtype=bool)
        found[mine] = clock.unix_ns(times[mine]) - times[mine]
    return found


def _by_kind(which: Ints, values: list[int]) -> Ints:
    """Return for each row the value of its kind."""
    found: Ints = np.array(values, np.int64)[which]
    return found


@dataclass(frozen=True, slots=True)
class _Bursts:
    """The bursts that all processes have kept (in bits), and the share of pieces that is read."""

    length: int
    period: int
    share: float  # share of the pieces that is read

    @property
    def piece(self) -> int:
        """The length of a piece of time, in bits."""
        return self.period if self.length < self.period else PIECE_BITS

    def has(self, end: Ints) -> Mask:
        """Tell for each end whether the operation is read."""
        inside: Mask = (end & ((1 << self.period) - 1)) < (1 << self.length)
        if self.share < 1:
            place = end >> self.piece
            inside &= self._kept(place) != self._kept(place - 1)
        return inside

    def _kept(self, piece: Ints) -> Ints:
        """Return how many pieces are read up to each piece."""
        found: Ints = np.floor(piece.astype(float) * self.share).astype(np.int64)
        return found

    def runs(self, pieces: Ints, every: Ints) -> Ints:
        """Return for each piece the number of its run; within a run no piece is left out.

        `pieces` are those that are judged, `every` are all with records; both are in order of time.
        """
        if self.length < self.period:
            return np.arange(len(pieces))
        left_out = np.diff(np.searchsorted(every, pieces)) > 1
        left_out |= np.diff(pieces) > np.diff(self._kept(pieces))
        return np.append(0, np.cumsum(left_out))


def _columns(source: RecordSource, comms: dict[CommKey, int], bursts: _Bursts) -> list[Ints | Mask]:
    """Return the columns of _Raw for one process."""
    columns, kinds = source.samples.columns(), source.samples.kinds
    which = columns.kind.astype(np.int64)
    begin = columns.start_ns + _shifts(source.samples, which, columns.start_ns)
    # By its own reading: a clock that drifts must not put an end behind the next begin.
    ended = columns.start_ns + columns.time_ns
    end = ended + _shifts(source.samples, which, ended)
    group = (columns.flags & SAMPLE_GROUP).astype(bool)
    for kind in kinds:
        comms.setdefault((kind.comm_id, kind.incarnation), len(comms))
    comm = [comms[kind.comm_id, kind.incarnation] for kind in kinds]
    func = [kind.func for kind in kinds]
    rows = bursts.has(end)
    if group.any():
        rows &= _without_parts(_by_kind(which, comm), _by_kind(which, func), group, begin, end)
    of_kind = partial(_by_kind, which[rows])
    return [
        np.full(int(rows.sum()), source.member, np.int64),
        of_kind(comm),
        of_kind([kind.rank for kind in kinds]),
        of_kind(func),
        of_kind([kind.size_class for kind in kinds]),
        columns.index[rows].astype(np.int64),
        columns.peer[rows].astype(np.int64),
        columns.bytes[rows],
        begin[rows],
        end[rows],
        columns.queued_ns[rows],
        columns.within_ns[rows],
        group[rows],
    ]


def _raw(
    sources: Iterable[RecordSource],
    comms: dict[CommKey, int],
    bursts: _Bursts,
    refused: Counter[str],
) -> _Raw | None:
    parts = []
    for source in sources:
        try:
            parts.append(_columns(source, comms, bursts))
        except RefusedError as err:
            refused[err.reason] += 1
    if not any(len(part[0]) for part in parts):
        return None
    return _Raw(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _common_bursts(sources: Sequence[RecordSource]) -> _Bursts:
    """Return what is read: the bursts that all have; of very many records only some pieces."""
    taken = [one.samples for one in sources]
    length = min(one.length_bits for one in taken)
    period = max(one.period_bits for one in taken)
    rows = sum(
        len(one) * 2.0 ** (length - one.length_bits + one.period_bits - period) for one in taken
    )
    share = RECORDS_MAX / rows if rows > _READ_MAX else 1.0
    return _Bursts(length, period, share)


def _without_parts(comm: Ints, func: Ints, group: Mask, begin: Ints, end: Ints) -> Mask:
    """Tell which rows of a process are operations by themselves.

    The Sends and Recvs of an all-to-all are one kernel, and each contains the others' waiting, so
    they count as a group. Other Sends and Recvs of one call (a pipeline's) count as pairs, because
    pairs are what two ranks have in common.
    """
    kept: Mask = ~(group & (func == _SENDRECV))
    whole = np.flatnonzero(group & kept)
    parts = np.flatnonzero(~group & np.isin(func, (_SEND, _RECV)))
    if len(whole) and len(parts):
        at = last_before(comm[whole], begin[whole], comm[parts], begin[parts])
        inside = at >= 0
        inside[inside] = end[parts[inside]] <= end[whole[at[inside]]]
        kept[parts[inside]] = False
    return kept


def _some_pieces(piece: Ints, most: int) -> Mask:
    """Tell which rows are in pieces that are judged: evenly spread ones with about `most` rows."""
    rows = len(piece)
    kept: Mask = (piece * most) // rows != ((piece - 1) * most) // rows
    return kept


def _join(raw: _Raw) -> Ints:
    """Return the number of each row's operation.

    A collective or a group is identified by its number; a Send by the Recv on the other side with
    the same number between the two ranks.
    """
    paired = ((raw.func == _SEND) | (raw.func == _RECV)) & (raw.peer != PEER_NONE) & ~raw.group
    source = np.where(raw.func == _SEND, raw.rank, raw.peer)
    target = np.where(raw.func == _SEND, raw.peer, raw.rank)
    line = np.where(paired, 1 + source * _PARTNERS_MAX + target, 0)
    # Each function counts separately, and a Send has the number of its Recv.
    family = np.where(paired, -1, 2 * raw.func + raw.group)
    return number_rows(raw.comm, line, family, raw.number)


def _active_ns(raw: _Raw, bursts: _Bursts) -> int:
    """Return for how long the job had operations, about that of the process that had them longest.

    Unbroken records cover the time from their first operation to their last. A burst stands for the
    time until the next burst. A long break without operations does not count.
    """
    if bursts.length == bursts.period:
        first = np.full(int(raw.member.max()) + 1, np.iinfo(np.int64).max)
        last = np.zeros(len(first), np.int64)
        np.minimum.at(first, raw.member, raw.begin)
        np.maximum.at(last, raw.member, raw.end)
        return int((last - first).max())
    members, _ = distinct_pairs(raw.member, raw.end >> bursts.period)
    return int(np.bincount(members).max()) << bursts.period


def _disown(raw: _Raw, joined: Ints) -> Ints:
    """Return the operations' numbers; rows that differ from the others get a number of their own.

    Numbers differ after a time without measurement. What most rows say counts.
    """
    said = raw.func * 64 + np.where(raw.group, 0, raw.size_class)
    paired = np.isin(raw.func, (_SEND, _RECV))
    said = np.where(paired, raw.size_class, said)
    usual = medians(joined, said.astype(float), int(joined.max()) + 1)
    odd = said != usual[joined]
    # Nor can one process have an operation twice (a communicator's id that was used again).
    owner = joined * (int(raw.member.max()) + 1) + raw.member
    ordered = np.sort(owner)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        some = np.flatnonzero(np.isin(owner, twice))
        order = some[np.lexsort((raw.begin[some], owner[some]))]
        odd[order[1:][owner[order][1:] == owner[order][:-1]]] = True
    found = joined.copy()
    found[odd] = int(joined.max()) + 1 + np.arange(int(odd.sum()))
    return number_rows(found)


def _piece_of(joined: Ints, end: Ints, bits: int) -> Ints:
    """Return each row's piece of time, counted from 1970; rows of one operation have the same."""
    first = int(end.min())
    middle = medians(joined, (end - first).astype(float), int(joined.max()) + 1)
    found: Ints = ((middle.astype(np.int64) + first) >> bits)[joined]
    return found


def _cut_again(run: Ints, piece: Ints, pieces: Ints, aligned: Ints) -> Ints:
    """Return the number of each row's piece, cut again within its run by the common clock.

    Otherwise, if clocks differ by seconds, successive operations would be in pieces that are not
    successive. `piece`: number in `pieces`; `aligned`: pieces from 1970 by the common clock.
    """
    first, last = (np.full(int(run.max()) + 1, value) for value in (pieces[-1], pieces[0]))
    np.minimum.at(first, run, pieces[piece])
    np.maximum.at(last, run, pieces[piece])
    return number_rows(run, np.clip(aligned, first[run], last[run]))


def _missing(nranks: int, have: int) -> int:
    """Return how many ranks lack records, if those that have some can speak for the others."""
    return nranks - have if 0 < nranks - have <= have else 0


_NEVER_NS = int(np.iinfo(np.int64).max)


def _first_uses(raw: _Raw, ids: Mapping[CommKey, int]) -> dict[int, dict[CommKey, int]]:
    """Return by process when it first used each communicator: ns of its own time."""
    named = {place: key for key, place in ids.items()}
    key, at = np.unique(raw.member * len(ids) + raw.comm, return_inverse=True)
    begin = np.full(len(key), _NEVER_NS)
    np.minimum.at(begin, at, raw.begin)
    found: dict[int, dict[CommKey, int]] = {}
    for one, first in zip(key.tolist(), begin.tolist(), strict=True):
        found.setdefault(one // len(ids), {})[named[one % len(ids)]] = first
    return found


def _as_made(kinds: Mapping[CommKey, SampleKind], used: Mapping[CommKey, int]) -> list[CommKey]:
    """Return a process's communicators in the order in which they were made.

    Of those that were made at one moment, by their size and first use: these are the same on all
    ranks that do the same work, while ids are chance.
    """
    return sorted(
        kinds,
        key=lambda one: (
            kinds[one].created_ns, kinds[one].nranks, used.get(one, _NEVER_NS), one,
        ),
    )  # fmt: skip


def _comms(
    raw: _Raw, ids: dict[CommKey, int], sources: Sequence[RecordSource], left_out: Mapping[int, int]
) -> tuple[RecordedComm, ...]:
    facts: dict[CommKey, SampleKind] = {}
    ordinals: dict[CommKey, int] = {}
    uses = _first_uses(raw, ids)
    for source in sources:
        found = {(one.comm_id, one.incarnation): one for one in source.samples.kinds}
        for place, key in enumerate(_as_made(found, uses.get(source.member, {}))):
            ordinals.setdefault(key, place)
            facts.setdefault(key, found[key])
    numbers, with_records = distinct_pairs(raw.comm, raw.member)
    cuts = np.searchsorted(numbers, np.arange(1, len(ids)))
    members = [tuple(one.tolist()) for one in np.split(with_records, cuts)]
    return tuple(
        RecordedComm(
            key[0],
            facts[key].name,
            facts[key].nranks,
            facts[key].nnodes,
            ordinals[key],
            members[place],
            left_out.get(key[0], 0),
            _missing(facts[key].nranks - left_out.get(key[0], 0), len(members[place])),
        )
        for key, place in ids.items()
    )


def _with_records(sources: Iterable[RecordSource], refused: Counter[str]) -> list[RecordSource]:
    found = []
    for source in sources:
        try:
            if len(source.samples):
                found.append(source)
        except RefusedError as err:
            refused[err.reason] += 1
    return found


def gather(
    every: Iterable[RecordSource],
    members: int,
    left_out: Mapping[int, int] | None = None,
    refused: Counter[str] | None = None,
) -> Records | None:
    """Return the records of all processes; None if there are none.

    `members`: the number of processes of the job. `left_out`: by communicator's id, how many of its
    ranks are not among the sources. Sources that cannot be read are counted in `refused`, by
    reason.
    """
    refused = Counter() if refused is None else refused
    sources = _with_records(every, refused)
    if not sources:
        return None
    ids: dict[CommKey, int] = {}
    bursts = _common_bursts(sources)
    raw = _raw(sources, ids, bursts, refused)
    if raw is None:
        return None
    active_ns = _active_ns(raw, bursts)
    # By operation and not by row: a node's clock may be half a minute off.
    joined = _join(raw)
    all_pieces = None  # None: all pieces are judged
    if bursts.share == 1 and len(joined) > RECORDS_MAX:
        piece = _piece_of(joined, raw.end, bursts.piece)
        all_pieces = np.unique(piece)
        some = _some_pieces(number_rows(piece), RECORDS_MAX)
        raw, joined = raw.take(some), joined[some]
    joined = _disown(raw, number_rows(joined))
    pieces, piece = np.unique(_piece_of(joined, raw.end, bursts.piece), return_inverse=True)
    run = bursts.runs(pieces, pieces if all_pieces is None else all_pieces)[piece]
    sure = np.isin(raw.func, list(SYNCHRONISING))
    begin, end = align(raw.member, raw.begin, raw.end, sure, joined, piece)
    if int(run.max()) + 1 < len(pieces):
        piece = _cut_again(run, piece, pieces, _piece_of(joined, end, bursts.piece))
    order = order_rows(raw.member, begin, end)
    return Records(
        comms=_comms(raw, ids, sources, left_out or {}),
        member=raw.member[order],
        comm=raw.comm[order],
        func=raw.func[order],
        size_class=raw.size_class[order],
        number=raw.number[order],
        peer=raw.peer[order],
        bytes=raw.bytes[order],
        begin=begin[order],
        end=end[order],
        queued=raw.queued[order],
        joined=joined[order],
        piece=piece[order],
        run=run[order],
        members=members,
        lost=sum(source.samples.lost for source in sources),
        active_ns=active_ns,
        within=raw.within[order],
    )
