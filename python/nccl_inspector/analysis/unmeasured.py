# SPDX-License-Identifier: Apache-2.0
"""Findings about the measurement itself: who died, who is missing, and what was not counted."""

from collections.abc import Iterator, Mapping, Sequence

from nccl_inspector.analysis.coverage import Coverage
from nccl_inspector.card.model import (
    CRITICAL,
    HIGH,
    INFO,
    MEDIUM,
    WARNING,
    Entity,
    Evidence,
    Finding,
    Period,
)
from nccl_inspector.card.words import number
from nccl_inspector.model import KILLED, Process

# The writer thread beats each second, at a low priority; a scheduler kills all within less.
DIED_FIRST_S = 15.0
DROPS_SHARE_MIN = 0.01  # of all operations


def _entities(kind: str, names: Sequence[str]) -> tuple[Entity, ...]:
    return tuple(Entity(kind, name) for name in names)


def _died_first(
    killed: Sequence[tuple[str, Process]], last_beat_ns: int
) -> Iterator[tuple[str, Process]]:
    for name, one in sorted(killed, key=lambda pair: pair[1].facts.beat_ns):
        if last_beat_ns - one.facts.beat_ns > DIED_FIRST_S * 1e9:
            yield name, one


def _killed(named: Sequence[tuple[str, Process]]) -> Iterator[Finding]:
    """Return what there is to say of processes that did not end in order."""
    killed = [(name, one) for name, one in named if one.facts.state == KILLED]
    if not killed:
        return
    last_beat_ns = max(one.facts.beat_ns for _, one in named)
    early = list(_died_first(killed, last_beat_ns))
    if early:
        first, process = early[0]
        before_s = (last_beat_ns - process.facts.beat_ns) / 1e9
        others = f", and {number(len(early) - 1, 'other')}" if len(early) > 1 else ""
        yield Finding(
            rule="killed",
            severity=CRITICAL,
            confidence=MEDIUM,
            title=f"{first} died {before_s:.0f} s before the last process{others}",
            detail="It did not end in order; its data are whole up to the last event.",
            period=Period(process.facts.beat_ns / 1e9, last_beat_ns / 1e9),
            entities=_entities("rank", [name for name, _ in early]),
            evidence=(Evidence("boxes", "before the last beat of the job", before_s, "s"),),
            actions=("look for an error, a signal or the OOM killer at that time",),
        )
    elif len(killed) == len(named):
        yield Finding(
            rule="killed",
            severity=INFO,
            confidence=MEDIUM,
            title="all processes ended at about the same time, none in order",
            detail="As when a job is cancelled or reaches its time limit. Data are whole up to the "
            "last event.",
            entities=(Entity("job", ""),),
            evidence=(Evidence("boxes", "processes killed", len(killed), "processes"),),
        )
    else:
        yield Finding(
            rule="killed",
            severity=WARNING,
            confidence=MEDIUM,
            title=f"{number(len(killed), 'process')} of {len(named):,} did not end in order",
            detail="Killed, or left without finalizing NCCL, at about the time when the others "
            "ended. Data are whole up to the last event.",
            entities=_entities("rank", [name for name, _ in killed]),
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
        rule="not-measured",
        severity=WARNING,
        confidence=HIGH,
        title=f"no data of {' and '.join(parts)}",
        detail="What these did is not known, so the one to blame may be among them.",
        entities=_entities("node", nodes_missing),
        evidence=tuple(evidence),
        actions=("see whether the agent runs there: nccl-inspector status",)
        if nodes_missing
        else (),
    )


def _dropped(dropped: Mapping[str, int], operations: int) -> Iterator[Finding]:
    lost = sum(dropped.values())
    if not lost:
        return
    share = lost / (lost + operations)
    yield Finding(
        rule="dropped",
        severity=WARNING if share >= DROPS_SHARE_MIN else INFO,
        confidence=HIGH,
        title=f"{lost:,} events were not measured",
        detail=", ".join(f"{reason} {count:,}" for reason, count in dropped.items()) + ".",
        evidence=(Evidence("boxes", "events dropped", share, "share", count=lost + operations),),
    )


def _unheard(coverage: Coverage, processes: int) -> Iterator[Finding]:
    for words, found, severity in (
        ("were not measured: the site's list deny_nccl has their NCCL", coverage.denied, WARNING),
        ("have counts but no times: their NCCL gives none", coverage.counted_only, WARNING),
    ):
        for nccl, names in found.items():
            yield Finding(
                rule="no-times",
                severity=severity,
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
                rule="silent",
                severity=INFO,
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
) -> tuple[Finding, ...]:
    """Return what is to be known of the data before anything is believed.

    `names`: of the processes; `ranks_expected`: None where it is not known.
    """
    named = list(zip(names, processes, strict=True))
    operations = sum(comm.enqueued for one in processes for comm in one.comms)
    return (
        *_killed(named),
        *_missing(nodes_missing, len(processes), ranks_expected),
        *_dropped(coverage.dropped, operations),
        *_unheard(coverage, len(processes)),
    )
