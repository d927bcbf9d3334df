# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's watchdog writes: whose line it is, how far a rank came, and who lags.

    [rank9]:[E129 16:38:47.71 ProcessGroupNCCL.cpp:2241] [PG ID 5 PG GUID 37(TP) Rank 1] text
    [rank3]:[E909 09:55:46.99 ProcessGroupNCCL.cpp:1709] [PG 0 (default_pg) Rank 3] text
    [E ProcessGroupNCCL.cpp:481] [Rank 65] text

Counts of collectives are those of one group. Groups of one name are many (each pipeline stage has
a tensor-parallel one), and the rank in the brackets is that in the group.
"""

import re
from dataclasses import dataclass
from typing import Final

from nccl_inspector.nccl_log.lines import TIME, Head, seconds_of, utc_seconds
from nccl_inspector.nccl_log.prefixes import read_prefix

# glog: severity, month and day (a month below 10 has one digit), time.
_GLOG = re.compile(
    rb"\[([IWEF])(?:(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?)? (?=[A-Za-z])"
)
_RANK_WORD = re.compile(rb"^\s{0,4}\[Rank (\d{1,6})\]")
_GROUP = re.compile(
    rb"\[PG (?:ID (?P<id>[^\s()]{1,32}) )?(?:PG )?(?:GUID )?(?P<name>(?!GUID |Rank )[^\s()]{1,64})"
    rb" ?(?:\((?P<desc>[^()]{0,64})\))?(?: Rank (?P<rank>\d{1,6}))?\]"
)
# Some releases know no name of a group; its number is then one of each process.
_NAMELESS = re.compile(rb"\[PG ID (\d{1,9}) PG GUID {1,4}Rank (\d{1,6})\]")
# "last started work: 19 (_ALLGATHER_BASE)" came with PyTorch 2.13. Backends have names of their own
# where NCCL's is, or none.
_COUNTS = re.compile(
    rb"[Ll]ast\s{1,8}enqueued\s{1,8}(?:\w{1,12}\s{1,8})?work:\s{1,8}(-?\d{1,20})[,.]?\s{1,8}"
    rb"(?:last\s{1,8}started\s{1,8}(?:\w{1,12}\s{1,8})?work:\s{1,8}-?\d{1,20}"
    rb"(?:\s{1,8}\([^()]{0,64}\))?[,.]?\s{1,8})?"
    rb"last\s{1,8}completed\s{1,8}(?:\w{1,12}\s{1,8})?work:\s{1,8}(-?\d{1,20})"
)
# Where the watchdog waits.
_AT = re.compile(
    rb"(?:work sequence id|Timeout at (?:\w{1,12} )?work|detected by watchdog at work): (\d{1,19})"
)
_OPERATION = re.compile(
    rb"Work\w{1,12}\(SeqNum=(\d{1,19}), OpType=(\w{1,40}), NumelIn=(\d{1,20}), NumelOut=(\d{1,20}),"
)
_UNSET: Final = (1 << 64) - 1  # a count that was never set, as an unsigned number
_COUNT_MAX = 1 << 62
_ALL_RANKS: Final = frozenset({"default_pg"})
_FIRST_GROUP: Final = "0"
# The desync report.
_RANKS = rb"\[(\d{1,7}(?:, ?\d{1,7}){0,4095}|)\]"
_NEVER = re.compile(rb"ranks " + _RANKS + rb" are the lagging ranks that caused this timeout")
_NOT_FINISHED = re.compile(_RANKS + rb" joined but didn't finish collective #(\d{1,19})")
_NOT_JOINED = re.compile(
    _RANKS + rb" finished collective #\d{1,19}, but didn't join collective #(\d{1,19})"
)
DESYNC_MARK: Final = b"To our best knowledge"


@dataclass(frozen=True, slots=True)
class TorchGroup:
    """A process group; `key` tells it from others of its name. `rank`: the writer's rank in it."""

    key: str
    desc: str
    rank: int | None

    @property
    def has_all_ranks(self) -> bool:
        """Whether a rank in the group is the rank of the job."""
        return self.desc in _ALL_RANKS or (not self.desc and self.key.endswith(_FIRST))

    @property
    def name(self) -> str:
        """What a person calls it."""
        number = self.key.rpartition(" ")[2]
        return f"{self.desc} ({number})" if self.desc and not self.has_all_ranks else (
            self.desc or f"group {number}"
        )  # fmt: skip


_FIRST = f" {_FIRST_GROUP}"


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """How far a rank came in a group when its watchdog wrote.

    `completed` and `waits_in` (the collective in which it waits) are None if that is not known.
    """

    enqueued: int
    completed: int | None
    waits_in: int | None


@dataclass(frozen=True, slots=True)
class Operation:
    """What a rank waits in: the collective, and its sizes in elements."""

    name: str
    sizes: tuple[int, int]  # in, out


@dataclass(frozen=True, slots=True)
class Desync:
    """PyTorch's own report of who lags; the ranks are those in the group."""

    never: tuple[int, ...]  # joined no collective
    not_finished: tuple[int, ...]
    not_finished_in: int
    not_joined: tuple[int, ...]
    not_joined_in: int


def group_of(message: bytes) -> TorchGroup | None:
    """Return the process group that a line is about; None: it names none."""
    match = _GROUP.search(message)
    if match is None:
        return None
    guid = match["name"].decode("utf-8", "replace")
    desc = (match["desc"] or b"").decode("utf-8", "replace")
    desc = "" if desc == "undefined" else desc
    key = f"guid {guid}" if match["id"] else f"id {desc} {guid}"
    return TorchGroup(key, desc, None if match["rank"] is None else int(match["rank"]))


def severity_of(head: bytes) -> str:
    """Return the letter of a line's severity: I, W, E or F; empty: it has none."""
    match = _GLOG.search(head)
    return match[1].decode("ascii") if match else ""


def parse_torch_head(head: bytes, message: bytes, year: int | None) -> Head:
    """Return whose line of PyTorch's it is, and when it was written; its times have no year.

    If a collector put a time in front, that counts: it is on all lines.
    """
    clock = TIME.search(head)
    time_s = seconds_of(clock) if clock else _glog_s(head, year)
    prefix = read_prefix(head)
    group = group_of(message)
    if prefix.is_rank:
        return Head(time_s, label=prefix.label, is_rank=True)
    if group is not None and group.rank is not None:
        if group.has_all_ranks:
            return Head(time_s, label=group.rank, is_rank=True)
        if prefix.label is None:
            return Head(time_s, pid=prefix.pid, alias=f"rank {group.rank} of {group.name}")
    if group is None and prefix.label is None and (one := _NAMELESS.search(message)) is not None:
        alias = f"rank {one[2].decode()} of group {one[1].decode()}"
        return Head(time_s, pid=prefix.pid, alias=alias)
    word = _RANK_WORD.match(message)
    if word is not None and group is None:
        return Head(time_s, label=int(word[1]), is_rank=True)
    pid = prefix.pid if prefix.label is None else None
    alias = prefix.worker if prefix.label is None else ""
    return Head(time_s, pid=pid, label=prefix.label, is_rank=False, alias=alias)


def _glog_s(head: bytes, year: int | None) -> float | None:
    match = _GLOG.search(head)
    if match is None or not year or match[2] is None:
        return None
    _, *parts, fraction = match.groups()
    return utc_seconds((b"%d" % year, *parts), fraction)


def counts_of(text: bytes) -> WorkCounts | None:
    """Return the counts in a line, which may have been broken at a blank; None: it has none."""
    match = _COUNTS.search(text)
    if match is None:
        return None
    enqueued, completed = int(match[1]), int(match[2])
    enqueued = -1 if enqueued == _UNSET else enqueued
    if enqueued >= _COUNT_MAX:
        return None
    # Some releases write a completed count that was never set.
    done = -1 if completed == _UNSET else completed if completed <= enqueued else None
    at = _AT.search(text)
    if at is not None:
        return WorkCounts(enqueued, done, int(at[1]))
    waits = None
    if done is not None and done < enqueued:
        waits = max(done, 0) + 1
    return WorkCounts(enqueued, done, waits)


def operation_of(message: bytes) -> tuple[int, Operation] | None:
    """Return the number of a collective in its group and what it is; None: the line names none."""
    match = _OPERATION.search(message)
    if match is None:
        return None
    name = match[2].decode("ascii", "replace")
    return int(match[1]), Operation(name, (int(match[3]), int(match[4])))


def desync_of(text: bytes) -> Desync | None:
    """Return who lags by PyTorch's own report; None: the text has none."""
    never, part, rest = _NEVER.search(text), _NOT_FINISHED.search(text), _NOT_JOINED.search(text)
    if never is None and part is None and rest is None:
        return None
    return Desync(
        _numbers(never), _numbers(part), int(part[2]) if part else 0,
        _numbers(rest), int(rest[2]) if rest else 0,
    )  # fmt: skip


def _numbers(match: re.Match[bytes] | None) -> tuple[int, ...]:
    words = match[1].split(b",") if match else []
    return tuple(dict.fromkeys(int(word) for word in words if word.strip()))
