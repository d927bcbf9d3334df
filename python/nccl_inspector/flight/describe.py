# SPDX-License-Identifier: Apache-2.0
"""What the dumps say, as findings: who did not come, who waits where, and at which lines."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nccl_inspector.flight.calls import Call, Evidence, GroupCalls, find_groups
from nccl_inspector.flight.dump import Frame, Record
from nccl_inspector.flight.files import Found
from nccl_inspector.flight.open_operations import Open, Place, find_open
from nccl_inspector.flight.stuck import Cause, Stuck, find_stuck
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    HIGH,
    LOW,
    MEDIUM,
    WARNING,
    Entity,
    Finding,
    Period,
)
from nccl_inspector.model.card import Evidence as Figure
from nccl_inspector.model.rules import Rule
from nccl_inspector.model.wording import clock, cut_list, number

# A younger operation is in flight. A dump is also written while all is well: on demand, or before
# a time limit.
SUSPECT_S = 5.0
_RUNS_SHOWN = 8
_ENTITIES_MAX = 1024
_FRAMES_SHOWN = 2
_NAMED = 4  # ranks whose last calls are said
_RULES: dict[Cause, Rule] = {
    Cause.NO_DUMP: rules.FLIGHT_NO_DUMP,
    Cause.NOT_CALLED: rules.FLIGHT_NOT_CALLED,
    Cause.MISMATCHED: rules.FLIGHT_MISMATCHED,
    Cause.DEADLOCK: rules.FLIGHT_DEADLOCK,
    Cause.NOT_STARTED: rules.FLIGHT_NOT_STARTED,
    Cause.NOT_ENDED: rules.FLIGHT_NOT_ENDED,
    Cause.NOT_KNOWN: rules.FLIGHT_NOT_KNOWN,
}
_CONFIDENCE = {
    Cause.MISMATCHED: HIGH,
    Cause.DEADLOCK: HIGH,
    Cause.NOT_KNOWN: LOW,
    Cause.NOT_ENDED: LOW,
}
_SURE = (Cause.MISMATCHED, Cause.DEADLOCK)  # however young the operation is


def said_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 2`, or `ranks 0-1, 3`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [f"{low}" if low == high else f"{low}-{high}" for low, high in runs]
    word = "rank" if len(runs) == 1 and runs[0][0] == runs[0][1] else "ranks"
    return f"{word} {cut_list(parts, _RUNS_SHOWN)}"


def said_frame(frame: Frame) -> str:
    """Return `train.py:212 in optimizer_step`."""
    return f"{frame.file}:{frame.line} in {frame.function}"


def said_stack(frames: Sequence[Frame]) -> str:
    """Return the line of a call and the line that it was called from; empty: not known."""
    return ", called from ".join(map(said_frame, frames[:_FRAMES_SHOWN]))


def said_group(name: str, desc: str) -> str:
    """Return the name that the program gave a group, else its number."""
    return desc if desc and desc != "undefined" else f"group {name}"


class _Words:
    """Texts about the operations of one set of dumps."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        groups = {(one.group, one.desc) for rank in evidence.dumps.values()
                  for one in rank.dump.records}  # fmt: skip
        self._names = Counter(said_group(*one) for one in groups)

    def group(self, name: str, desc: str) -> str:
        said = said_group(name, desc)
        return said if self._names[said] < 2 else f"{said} ({name})"

    def place(self, place: Place, call: Call) -> str:
        """Return `all_reduce 4 of default_pg`, `send 0->1 of pipe`."""
        group = self.group(place.group.name, place.group.desc)
        if place.pair is not None:
            return f"{call.last.op} {place.pair[0]}->{place.pair[1]} of {group}"
        return f"{call.last.op} {place.seq} of {group}"

    def record(self, one: Record) -> str:
        ends = f"{one.source}->{one.target}" if one.source >= 0 else f"{one.seq}"
        return f"{one.op} {ends} of {self.group(one.group, one.desc)}"

    def open(self, one: Open) -> str:
        return self.place(one.place, one.call)

    def last(self, rank: int) -> str:
        """Return a sentence about what a rank called last; empty if it recorded nothing."""
        dump = self.evidence.dumps.get(rank)
        if dump is None or not dump.dump.records:
            return ""
        last = dump.dump.records[-1]
        where = f" at {said_stack(last.frames)}" if last.frames else ""
        when = f" ({clock(last.created_ns / 1e9, '%H:%M:%S')})" if last.created_ns else ""
        return f"Rank {rank} called last: {self.record(last)}{where}{when}."


def _where(calls: Iterable[Call]) -> tuple[str, int]:
    """Return the line of the program at which most ranks called, and how many other lines."""
    lines = Counter(said_stack(one.last.frames) for one in calls if one.last.frames)
    if not lines:
        return "", 0
    return lines.most_common(1)[0][0], len(lines) - 1


def _shape(call: Call) -> str:
    last = call.last
    words = " ".join(one for one in (last.dtypes, f"[{last.inputs}]" if last.inputs else "") if one)
    return f"{last.op} {words}".rstrip()


def _others(one: Stuck, operation: str) -> str:
    count = len(one.operation.waiting.keys() - set(one.roots))
    if not count:
        return f"nobody waits in {operation} yet"
    return f"{count:,} {'other waits' if count == 1 else 'others wait'} in {operation}"


def _not_called(one: Stuck, it: str) -> str:
    ends = one.operation.place.pair
    if ends is not None and len(one.roots) == 1 and one.roots[0] in one.operation.absent:
        # Of a pair each side has a call of its own.
        op, other = it.split(" ", 1)[0], it.split(" ", 1)[1]
        own = "send" if one.roots[0] == ends[0] else "recv"
        return f"{said_ranks(one.roots)} did not call {own} {other}; {_others(one, f'the {op}')}"
    if one.roots:
        return f"{said_ranks(one.roots)} did not call {it}; {_others(one, 'it')}"
    waiting, others = one.operation.waiting, number(len(one.operation.absent), "other")
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{said_ranks(waiting)} {verb} in {it}, which {others} did not call"


def _title(one: Stuck, words: _Words) -> str:
    who, it, many = said_ranks(one.roots), words.open(one.operation), len(one.roots) > 1
    match one.cause:
        case Cause.NO_DUMP:
            return f"{who} left no dump; {_others(one, it)}"
        case Cause.NOT_CALLED:
            return _not_called(one, it)
        case Cause.MISMATCHED:
            found = one.operation.mismatched
            called = {_shape(call) for call in found.values()}
            if not called:
                return f"{who} called something else than others; {_others(one, it)}"
            most = {*one.operation.waiting} - found.keys()
            if not most:
                return f"{who} called different things as {it}: {cut_list(sorted(called), _NAMED)}"
            usual = _shape(one.operation.call)
            return f"{who} called {cut_list(sorted(called), _NAMED)}; most called {usual}"
        case Cause.DEADLOCK:
            places = [f"rank {rank} is in {words.open(where)}" for rank, where in
                      sorted(one.circle.items())]  # fmt: skip
            return f"{cut_list(places, _NAMED)}: each waits for another"
        case Cause.NOT_STARTED:
            have = "their GPUs have" if many else "its GPU has"
            return f"{who} called {it}, but {have} not started it; {_others(one, 'it')}"
        case Cause.NOT_ENDED:
            waiting = said_ranks(one.operation.waiting)
            return f"{it} does not end for {waiting}, and all ranks called it"
        case Cause.NOT_KNOWN:
            return (
                f"{said_ranks(one.operation.waiting)} wait in {it}; who did not come is not known"
            )


def _roots_at(one: Stuck, words: _Words) -> Iterator[str]:
    """Yield where the first few of the ranks are that hold up the others."""
    calls = one.operation.mismatched if one.cause is Cause.MISMATCHED else {}
    calls = calls or {rank: where.waiting[rank] for rank, where in one.circle.items()}
    for rank, call in sorted(calls.items())[:_NAMED]:
        if call.last.frames:
            yield f"Rank {rank} is at {said_stack(call.last.frames)}."
    if not calls:
        yield from filter(None, map(words.last, one.roots[:_NAMED]))


def _detail(one: Stuck, words: _Words) -> Iterator[str]:
    operation = one.operation
    usual = [call for rank, call in operation.waiting.items() if rank not in operation.mismatched]
    line, others = _where(usual)
    if line and one.cause is not Cause.DEADLOCK:
        more = f", or one of {number(others, 'other line')}" if others else ""
        yield f"Waiting at {line}{more}."
    yield from _roots_at(one, words)
    if one.cause is Cause.NOT_CALLED and not one.roots:
        yield "Most others are in no operation: either it is one too many, or they stopped."
    if not operation.is_first:
        yield (
            "Records of earlier operations were overwritten, so an earlier one may be the first "
            "that did not end."
        )
    if operation.unknown:
        yield f"It is not known whether {said_ranks(operation.unknown)} called it."
    if one.behind and not one.roots:
        yield f"So it is with {number(one.behind, 'other operation')} of groups of this name."
    elif one.behind:
        yield f"{number(one.behind, 'other operation')} waits for the same.".replace(
            "operations waits", "operations wait"
        )


def age_s(operation: Open, evidence: Evidence) -> float | None:
    """Return how long the last to come had waited when its dump was written; None: not known."""
    since_ns = operation.since_ns
    written = [evidence.dumps[rank].written_ns for rank in operation.waiting]
    age_ns = max(written, default=0) - since_ns
    return age_ns / 1e9 if since_ns and age_ns >= 0 else None


def _finding(one: Stuck, words: _Words) -> Finding:
    rule, operation = _RULES[one.cause], one.operation
    age, since_s = age_s(operation, words.evidence), operation.since_ns / 1e9
    period = Period(since_s, since_s + age) if age is not None else None
    victims = sorted(operation.waiting.keys() - set(one.roots))[:_ENTITIES_MAX]
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        confidence=LOW if not one.roots else _CONFIDENCE.get(one.cause, MEDIUM),
        title=_title(one, words),
        detail=" ".join(_detail(one, words)),
        period=period,
        entities=tuple(Entity("rank", f"rank {rank}") for rank in one.roots[:_ENTITIES_MAX]),
        evidence=(Figure("flight recorder", "in flight", age, "s", count=len(operation.waiting)),)
        if age is not None
        else (),
        actions=(rule.action,),
        victims=tuple(Entity("rank", f"rank {rank}") for rank in victims),
    )  # fmt: skip


def _unnamed(missing: Sequence[int], found: Iterable[Stuck]) -> list[int]:
    """Return the ranks without a dump that no finding names."""
    named = {rank for one in found for rank in one.roots}
    return [rank for rank in missing if rank not in named]


def _without_dump(ranks: Sequence[int], world: int) -> Finding:
    rule = rules.FLIGHT_NO_DUMP
    return Finding(
        rule=rule.id,
        severity=WARNING,
        confidence=MEDIUM,
        title=f"{said_ranks(ranks)} of {number(world, 'rank')} left no dump",
        detail="No operation in the other dumps waits for it."
        if len(ranks) == 1
        else "No operation in the other dumps waits for them.",
        entities=tuple(Entity("rank", f"rank {rank}") for rank in ranks[:_ENTITIES_MAX]),
        actions=(rule.action,),
    )


def _unreadable(found: Found) -> Iterator[Finding]:
    rule = rules.FLIGHT_UNREADABLE
    by_reason: dict[str, list[str]] = {}
    for one in found.refused:
        by_reason.setdefault(one.reason, []).append(str(one.path))
    for reason, paths in by_reason.items():
        yield Finding(
            rule=rule.id,
            severity=rule.severity,
            confidence=HIGH,
            title=f"{cut_list(paths, _NAMED)}: {reason}",
            detail="",
            actions=(rule.action,),
        )


@dataclass(frozen=True, slots=True)
class GroupState:
    """How far a process group came: the numbers of the collectives that all and that any called."""

    name: str
    ranks: int
    by_all: int
    by_any: int


@dataclass(frozen=True, slots=True)
class Told:
    """What the dumps say."""

    ranks: int  # of the job, as far as the dumps know it
    dumps: int
    records: int
    versions: tuple[str, ...]
    libraries: tuple[str, ...]  # versions of NCCL
    backends: tuple[str, ...]
    written_s: float | None  # when the last dump was written
    in_flight: int  # operations that have not ended, and that need not be stuck
    groups: tuple[GroupState, ...]
    findings: tuple[Finding, ...]


def _group_state(group: GroupCalls, words: _Words) -> GroupState:
    dumped = group.members & words.evidence.dumps.keys()
    last = [group.last_number(rank) for rank in dumped]
    name = words.group(group.group.name, group.group.desc)
    return GroupState(name, len(group.members), min(last, default=0), max(last, default=0))


def describe(found: Found) -> Told:
    """Return what the dumps say; there are no findings if all is well."""
    evidence = found.evidence
    words, groups = _Words(evidence), find_groups(evidence)
    all_open = find_stuck(find_open(groups, evidence), len(evidence.dumps))
    stuck = [
        one
        for one in all_open
        if one.cause in _SURE or (age := age_s(one.operation, evidence)) is None or age >= SUSPECT_S
    ]
    findings = [_finding(one, words) for one in stuck]
    rest = _unnamed(evidence.missing, stuck)
    if rest:
        findings.append(_without_dump(rest, len(evidence.world)))
    dumps = [one.dump for one in evidence.dumps.values()]
    records = [record for one in dumps for record in one.records]
    written_ns = max((one.written_ns for one in evidence.dumps.values()), default=0)
    return Told(
        ranks=len(evidence.world),
        dumps=len(dumps),
        records=len(records),
        versions=tuple(sorted({one.version for one in dumps})),
        libraries=tuple(sorted({one.library for one in dumps if one.library})),
        backends=tuple(sorted({one.backend for one in records if one.backend})),
        written_s=written_ns / 1e9 if written_ns else None,
        in_flight=len(all_open) - len(stuck),
        groups=tuple(_group_state(one, words) for one in groups),
        findings=(*findings, *_unreadable(found)),
    )
