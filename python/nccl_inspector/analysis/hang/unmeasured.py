# SPDX-License-Identifier: Apache-2.0
"""Findings about the measurement itself: who died, what is missing, and what was not counted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from nccl_inspector.analysis.coverage import Coverage
from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.next_command import show_journal
from nccl_inspector.analysis.places import Places
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    HIGH,
    INFO,
    MEDIUM,
    WARNING,
    Entity,
    Evidence,
    Finding,
    Period,
)
from nccl_inspector.model.process import KILLED, Process
from nccl_inspector.model.wording import duration, number, said_entity

DROPS_SHARE_MIN = 0.01  # of all operations


def _entities(kind: str, names: Sequence[str]) -> tuple[Entity, ...]:
    return tuple(Entity(kind, name) for name in names)


@dataclass(frozen=True, slots=True)
class Ends:
    """How the processes of a job ended.

    `silences_ns`: for how long each gave no sign of life while another still did
    (analysis/clocks.py). `doubt_ns`: the error of the comparison of the nodes' clocks.
    """

    places: Places
    ending: Ending
    silences_ns: Sequence[float]
    doubt_ns: float = 0.0


def _died_first(
    killed: Sequence[tuple[str, Process, float]], ending: Ending
) -> list[tuple[str, Process, float]]:
    """Return the processes that died before the others, in order of death."""
    if not ending.orders_deaths:
        return []
    early = [row for row in killed if row[2] > ending.silence_s * 1e9]
    return sorted(early, key=lambda row: -row[2])


def _doubt_words(doubt_ns: float) -> str:
    if not doubt_ns:
        return ""
    if not isfinite(doubt_ns):
        return " Clocks of different nodes could not be compared, so it is compared with its node."
    return f" The nodes' clocks are compared to within {duration(doubt_ns)}."


def _first_death(
    early: Sequence[tuple[str, Process, float]], processes: int, ends: Ends
) -> Finding:
    name, process, silent_ns = early[0]
    who = ends.places.rank(name)
    beat_s, before_s = process.facts.beat_ns / 1e9, silent_ns / 1e9
    others = f", and {number(len(early) - 1, 'other')}" if len(early) > 1 else ""
    return Finding(
        rule=rules.KILLED.id,
        severity=rules.KILLED.severity,
        confidence=MEDIUM,
        title=f"{said_entity(who)} died {before_s:.0f} s before the last process{others}",
        detail="It did not end in order; its data are whole up to the last event."
        + _doubt_words(ends.doubt_ns),
        period=Period(beat_s, beat_s + before_s),
        entities=tuple(ends.places.rank(one) for one, _, _ in early),
        evidence=(
            Evidence("boxes", "silent before the last process ended", before_s, "s",
                     ends.ending.silence_s, processes),
        ),
        actions=(rules.KILLED.action,),
        next=show_journal(who.node, beat_s, beat_s) if who.node else "",
    )  # fmt: skip


def _killed(named: Sequence[tuple[str, Process]], ends: Ends) -> Iterator[Finding]:
    """Yield the findings about processes that did not end in order."""
    killed = [
        (name, one, silent_ns)
        for (name, one), silent_ns in zip(named, ends.silences_ns, strict=True)
        if one.facts.state == KILLED
    ]
    if not killed:
        return
    early = _died_first(killed, ends.ending)
    if early:
        yield _first_death(early, len(named), ends)
    elif len(killed) == len(named):
        yield Finding(
            rule=rules.KILLED.id,
            severity=INFO,
            confidence=MEDIUM,
            title="all processes ended at about the same time, none in order",
            detail="As when a job is cancelled or reaches its time limit. Data are whole up to the "
            "last event.",
            entities=(Entity("job", ""),),
            evidence=(Evidence("boxes", "processes killed", len(killed), "processes"),),
        )
    else:
        state = ends.ending.state.lower().replace("_", " ")
        why = f", which Slurm ended (state {state})" if ends.ending.was_from_outside else ""
        yield Finding(
            rule=rules.KILLED.id,
            severity=INFO if ends.ending.was_from_outside else WARNING,
            confidence=MEDIUM,
            title=f"{number(len(killed), 'process')} of {len(named):,} did not end in order",
            detail="Killed, or left without finalizing NCCL, at about the time when the others "
            f"ended{why}. Data are whole up to the last event.",
            entities=_entities("rank", [name for name, _, _ in killed]),
            evidence=(
                Evidence("boxes", "processes killed", len(killed), "processes", count=len(named)),
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
        *_killed(named, ends),
        *_missing(nodes_missing, len(processes), ranks_expected),
        *_dropped(coverage.dropped, operations),
        *_unheard(coverage, len(processes)),
    )
