# SPDX-License-Identifier: Apache-2.0
"""Findings about the measurement itself: who died, what is missing, and what was not counted."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from nccl_inspector.analysis.coverage import Coverage
from nccl_inspector.analysis.hang.describe import said_killed
from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hang.first_end import FirstEnd
from nccl_inspector.analysis.next_command import show_journal, show_node
from nccl_inspector.analysis.places import Places
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    HIGH,
    INFO,
    LOW,
    MEDIUM,
    WARNING,
    Entity,
    Evidence,
    Finding,
    Period,
)
from nccl_inspector.model.process import KILLED, Process
from nccl_inspector.model.wording import clock, duration, elapsed, number, said_entity

DROPS_SHARE_MIN = 0.01  # of all operations
_DOUBT_SHARE = 0.1  # of the told time; a smaller error changes nothing for the reader
_WHOLE = "It did not end in order; its data are whole up to the last event."
_KILLED = "processes killed"  # the evidence of those that accuse nobody
_DEATHS = (rules.HANG_DEAD.id, rules.STOPPED_FIRST.id)
_BEAT_S = 1.0  # a box beats once a second (plugin/beat)
# How long before the others (s) a process must have ended if it is not known what ended the job:
# longer than from SIGTERM to SIGKILL (KillWait, 30 s by default).
UNKNOWN_S = 35.0


def _entities(kind: str, names: Sequence[str]) -> tuple[Entity, ...]:
    return tuple(Entity(kind, name) for name in names)


@dataclass(frozen=True, slots=True)
class Ends:
    """How the processes of a job ended.

    `silences_ns`: for how long each gave no sign of life while another still did
    (analysis/clocks.py). `doubt_ns`: the error of the comparison of the nodes' clocks. `waiting`:
    the names of processes that waited for another one, which is known; whenever they ended, they
    only gave up. `how_ended`: as of HungJob (describe.py). `first`: which task failed first, if
    that is known of Slurm, and if no hang names somebody. `failed_node`: as of `find_failed_node`.
    """

    places: Places
    ending: Ending
    silences_ns: Sequence[float]
    doubt_ns: float = 0.0
    waiting: frozenset[str] = frozenset()
    how_ended: Mapping[str, str] = field(default_factory=dict)
    first: FirstEnd | None = None
    failed_node: str = ""


def find_replaced(processes: Sequence[Process]) -> frozenset[int]:
    """Return the places of the processes that a later one replaced on the same GPUs.

    So torchrun restarts the processes of a job, and so a batch script starts one step after
    another. The ends of the replaced ones say nothing about the end of the job.
    """
    begins: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for at, one in enumerate(processes):
        created_ns = min((comm.created_ns for comm in one.comms if comm.created_ns), default=0)
        for gpu in one.gpus:
            begins[gpu.uuid].append((created_ns, at))

    def is_used_later(at: int, uuid: str) -> bool:
        last_ns = processes[at].facts.beat_ns
        return bool(uuid) and any(ns > last_ns and who != at for ns, who in begins[uuid])

    return frozenset(
        at
        for at, one in enumerate(processes)
        if one.gpus
        and one.facts.state == KILLED
        and all(is_used_later(at, gpu.uuid) for gpu in one.gpus)
    )


@dataclass(frozen=True, slots=True)
class _Killed:
    """A process that did not end in order."""

    name: str
    process: Process
    silent_ns: float


def _died_first(killed: Sequence[_Killed], ends: Ends, least_s: float) -> list[_Killed]:
    """Return the processes that died before the others, in order of death.

    If most of them did, they gave up before the rest, and did not die of themselves.
    """
    if not ends.ending.orders_deaths:
        return []
    early = [
        one for one in killed if one.silent_ns > least_s * 1e9 and one.name not in ends.waiting
    ]
    if 2 * len(early) > len(killed):
        return []
    return sorted(early, key=lambda one: -one.silent_ns)


def _doubt_words(doubt_ns: float, silent_ns: float) -> str:
    """Return how far the told time may be from the true one; empty: that does not matter.

    `silent_ns`: for so long at least it was silent, by clocks as wrong as they may be.
    """
    if doubt_ns < _DOUBT_SHARE * silent_ns:
        return ""
    if not isfinite(doubt_ns):
        return " Clocks of different nodes could not be compared, so it is compared with its node."
    longest_s = (silent_ns + doubt_ns) / 1e9
    return f" It may have been up to {longest_s:.0f} s before: the nodes' clocks tell no better."


def _first_death(early: Sequence[_Killed], processes: int, ends: Ends, least_s: float) -> Finding:
    first = early[0]
    who = ends.places.rank(first.name)
    beat_s, before_s = first.process.facts.beat_ns / 1e9, first.silent_ns / 1e9
    others = f", and {number(len(early) - 1, 'other')}" if len(early) > 1 else ""
    known = bool(ends.ending.state) or least_s >= ends.ending.silence_s
    died = "died" if known else "ended without finalizing NCCL"
    if why_killed := ends.how_ended.get(first.name):
        died = said_killed(why_killed)
    why = "" if known else " What ended the job is not known."
    return Finding(
        rule=rules.KILLED.id,
        severity=rules.KILLED.severity if known else WARNING,
        confidence=MEDIUM if known else LOW,
        title=f"{said_entity(who)} {died} {before_s:.0f} s before the last process{others}",
        detail=_WHOLE
        + why + _doubt_words(ends.doubt_ns, first.silent_ns),
        period=Period(beat_s, beat_s + before_s),
        entities=tuple(ends.places.rank(one.name) for one in early),
        evidence=(
            Evidence("boxes", "silent before the last process ended", before_s, "s", least_s,
                     processes),
        ),
        actions=(rules.KILLED.action,),
        next=show_journal(who.node, beat_s, beat_s) if who.node else "",
    )  # fmt: skip


def _failed_first(first: FirstEnd, named: Sequence[tuple[str, Process]], ends: Ends) -> Finding:
    """Return the finding about the task that failed first, as slurmstepd saw it."""
    name, process = named[first.who]
    who, at_s = ends.places.rank(name), first.end.at_ns / 1e9
    lead_s = first.lead_s
    rest, evidence = "", tuple[Evidence, ...]()
    if lead_s is not None:
        rest = f"; the next task ended {duration(lead_s * 1e9)} later"
        before = "ended before the next task"
        evidence = (Evidence("slurm", before, lead_s, "s", None, len(named)),)
    inside = ""
    if process.operations:
        inside = " It was in an operation of NCCL, so no box tells that it was the first."
    step = "the batch script" if first.end.step is None else f"step {first.end.step}"
    died = said_killed(ends.how_ended.get(name) or first.end.words)
    return Finding(
        rule=rules.KILLED.id,
        severity=rules.KILLED.severity,
        confidence=MEDIUM if first.end.signal else LOW,
        title=f"{said_entity(who)} {died} at {clock(at_s, '%H:%M:%S')}, before any other",
        detail=f"Slurm saw task {first.end.task} of {step} end first{rest}. What it measured is "
        f"whole up to the last event.{inside}",
        period=Period(at_s, at_s + (lead_s or 0.0)),
        entities=(who,),
        evidence=evidence,
        actions=(rules.KILLED.action,),
        next=show_journal(who.node, at_s, at_s) if who.node else "",
    )  # fmt: skip


def _node_failed(ends: Ends) -> Finding:
    """Return the finding about the node whose failure ended the job."""
    node, by_slurm = ends.failed_node, bool(ends.ending.failed_node)
    how = "Slurm names it as the failed node."
    if not by_slurm:
        how = (
            "Slurm does not say which node it was. This is the only node that left no data, or "
            "only data without an end of a task."
        )
    return Finding(
        rule=rules.NODE_FAILED.id,
        severity=rules.NODE_FAILED.severity,
        confidence=HIGH if by_slurm else MEDIUM,
        title=f"node {node} failed, so Slurm ended the job",
        detail=how,
        entities=_entities("node", [node]),
        evidence=(Evidence("slurm", "failed nodes", 1, "nodes"),),
        actions=(rules.NODE_FAILED.action,),
        next=show_node(node),
    )


def _apart(killed: Sequence[_Killed]) -> str:
    """Return how far apart the last signs of life of processes were, as text.

    A process gives one a second, so a shorter time is told as that second.
    """
    apart_s = max(max(one.silent_ns for one in killed) / 1e9, _BEAT_S)
    return f"within {apart_s:.1f} s" if apart_s < 10 else f"within {elapsed(apart_s)}"


def _find_early(killed: Sequence[_Killed], ends: Ends) -> tuple[list[_Killed], float]:
    """Return who died before the others, and from how many seconds of silence on that holds.

    If nothing is known of the job's end, it is told from a shorter silence on, with less certainty.
    Slurm's signals do not end the processes of a healthy job that far apart.
    """
    for least_s in (ends.ending.silence_s, *([] if ends.ending.state else [UNKNOWN_S])):
        early = _died_first(killed, ends, least_s)
        if early:
            return early, least_s
    return [], ends.ending.silence_s


def _killed(named: Sequence[tuple[str, Process]], ends: Ends) -> Iterator[Finding]:
    """Yield the findings about processes that did not end in order."""
    replaced = find_replaced([one for _, one in named])
    killed = [
        _Killed(name, one, silent_ns)
        for at, ((name, one), silent_ns) in enumerate(zip(named, ends.silences_ns, strict=True))
        if one.facts.state == KILLED and at not in replaced
    ]
    yield from _restarted([named[at][0] for at in sorted(replaced)], len(named))
    if not killed:
        return
    first = ends.first
    if first and first.who not in replaced:
        yield _failed_first(first, named, ends)
        return
    early, least_s = _find_early(killed, ends)
    if early:
        yield _first_death(early, len(named), ends, least_s)
    elif len(killed) == len(named) - len(replaced):
        yield Finding(
            rule=rules.KILLED.id,
            severity=INFO,
            confidence=MEDIUM,
            title=f"all processes ended {_apart(killed)}, none in order",
            detail="As when a job is cancelled, reaches its time limit or is given up. Data are "
            "whole up to the last event.",
            entities=(Entity("job", ""),),
            evidence=(Evidence("boxes", _KILLED, len(killed), "processes"),),
        )
    else:
        state = ends.ending.state.lower().replace("_", " ")
        why = f", which Slurm ended (state {state})" if ends.ending.was_from_outside else ""
        yield Finding(
            rule=rules.KILLED.id,
            severity=INFO if ends.ending.was_from_outside or ends.waiting else WARNING,
            confidence=MEDIUM,
            title=f"{number(len(killed), 'process')} of {len(named):,} did not end in order",
            detail="Killed, or left without finalizing NCCL; the last sign of life of the first "
            f"was {max(one.silent_ns for one in killed) / 1e9:.0f} s before that of the last "
            f"process{why}. Data are whole up to the last event.",
            entities=_entities("rank", [one.name for one in killed]),
            evidence=(Evidence("boxes", _KILLED, len(killed), "processes", count=len(named)),),
        )


def _restarted(names: Sequence[str], processes: int) -> Iterator[Finding]:
    if names:
        yield Finding(
            rule=rules.KILLED.id,
            severity=INFO,
            confidence=MEDIUM,
            title=f"{number(len(names), 'process')} ended, and later ones went on with their GPUs",
            detail="As after an elastic restart, or in the next step of the job. Their ends say "
            "nothing about how the job ended.",
            entities=_entities("rank", names),
            evidence=(
                Evidence("boxes", "processes replaced", len(names), "processes", count=processes),
            ),
        )


def _missing(
    nodes_missing: Sequence[str], ranks_seen: int, ranks_expected: int | None
) -> Iterator[Finding]:
    lost = max(0, (ranks_expected or 0) - ranks_seen)
    if not nodes_missing and not lost:
        return
    parts = [number(lost, "rank")] if lost else []
    parts += [number(len(nodes_missing), "node")] if nodes_missing else []
    evidence = [Evidence("boxes", "nodes without a summary", len(nodes_missing), "nodes")]
    if ranks_expected is not None:
        seen = Evidence("boxes", "ranks measured", ranks_seen, "ranks", float(ranks_expected))
        evidence.append(seen)
    yield Finding(
        rule=rules.NOT_MEASURED.id,
        severity=rules.NOT_MEASURED.severity,
        confidence=HIGH,
        title=f"no data of {' and '.join(parts)}",
        detail="What these did is not known, so the one to blame may be among them.",
        entities=_entities("node", nodes_missing),
        evidence=tuple(evidence),
        actions=(rules.NOT_MEASURED.action,),
    )


def _dropped(dropped: Mapping[str, int], operations: int) -> Iterator[Finding]:
    lost = sum(dropped.values())
    if not lost:
        return
    share = lost / (lost + operations)
    yield Finding(
        rule=rules.DROPPED.id,
        severity=WARNING if share >= DROPS_SHARE_MIN else INFO,
        confidence=HIGH,
        title=f"{lost:,} events were not measured",
        detail=", ".join(f"{reason} {count:,}" for reason, count in dropped.items()) + ".",
        evidence=(Evidence("boxes", "events dropped", share, "share", count=lost + operations),),
    )


def _unheard(coverage: Coverage, processes: int) -> Iterator[Finding]:
    for words, found in (
        ("not measured: the site's list deny_nccl has this NCCL", coverage.denied),
        ("not measured: RCCL is not supported yet", coverage.rccl),
        ("counted without times: this NCCL gives none", coverage.counted_only),
    ):
        for nccl, names in found.items():
            yield Finding(
                rule=rules.NO_TIMES.id,
                severity=rules.NO_TIMES.severity,
                confidence=HIGH,
                title=f"{number(len(names), 'process')} with {nccl} {words}",
                detail="They are compared with nobody.",
                entities=_entities("rank", names),
                evidence=(
                    Evidence("boxes", "processes", len(names), "processes", count=processes),
                ),
            )
    for words, spell in (
        ("were not measured while the site's kill switch was on", coverage.disabled),
        ("were timed in part, to spare the application", coverage.sampled),
    ):
        if spell.names:
            longest = Evidence("boxes", "the longest", spell.longest_ns / 1e9, "s")
            yield Finding(
                rule=rules.SILENT.id,
                severity=rules.SILENT.severity,
                confidence=HIGH,
                title=f"{number(len(spell.names), 'process')} {words}",
                detail=f"For up to {spell.longest_ns / 1e9:.0f} s. Ranks that counted other "
                "operations than their peers are not compared with them.",
                entities=_entities("rank", spell.names),
                evidence=(longest,),
            )


def tell_ends_once(
    hangs: Iterable[Finding], unmeasured: Iterable[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """Return both kinds of findings, with each end in one of them.

    Who died, and is what others wait for, is told with how long before the others that was. How the
    rest ended stands there, too: it is what follows from it.
    """
    told, rest = [*hangs], list[Finding]()
    at = next((at for at, one in enumerate(told) if one.rule in _DEATHS), None)
    if at is None:
        return told, [*unmeasured]
    for one in unmeasured:
        if one.rule == rules.KILLED.id and _is_told(one, told[at]):
            told[at] = _with_end(told[at], one)
        else:
            rest.append(one)
    return told, rest


def _is_told(end: Finding, death: Finding) -> bool:
    """Tell whether a finding about ends accuses nobody, or only those whose death is told."""
    return any(one.metric == _KILLED for one in end.evidence) or (
        end.severity == rules.KILLED.severity and {*end.entities} <= {*death.entities}
    )


def _with_end(death: Finding, end: Finding) -> Finding:
    if end.severity == rules.KILLED.severity:
        before_s = end.evidence[0].value
        words = f"It ended {elapsed(before_s)} before the last process."
        words += end.detail.removeprefix(_WHOLE)
    else:
        words = f"{end.title[0].upper()}{end.title[1:]}."
    return replace(
        death,
        detail=f"{death.detail} {words}",
        evidence=(*death.evidence, *end.evidence),
        next=death.next or end.next,
    )


def find_unmeasured(
    processes: Sequence[Process],
    names: Sequence[str],
    coverage: Coverage,
    nodes_missing: Sequence[str],
    ranks_expected: int | None,
    ends: Ends,
) -> tuple[Finding, ...]:
    """Return the findings that a reader should know before trusting the others.

    `processes` are in common time (analysis/clocks.py), `names` are their names. `ranks_expected`
    None: not known.
    """
    named = list(zip(names, processes, strict=True))
    operations = sum(comm.enqueued for one in processes for comm in one.comms)
    return (
        *([_node_failed(ends)] if ends.failed_node else _killed(named, ends)),
        *_missing(nodes_missing, len(processes), ranks_expected),
        *_dropped(coverage.dropped, operations),
        *_unheard(coverage, len(processes)),
    )
