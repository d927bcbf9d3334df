# SPDX-License-Identifier: Apache-2.0
"""The overall verdict, from the findings."""

from collections.abc import Sequence
from dataclasses import replace

from nccl_inspector.analysis.hang.describe import PERHAPS
from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.replay.cause import COST_MIN
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.analysis.replay.missing_last import MOST as MISSING_LAST_MIN
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CANNOT_TELL,
    COMMUNICATION,
    CONFIDENCES,
    CRASHED,
    CRITICAL,
    DEGRADED,
    FAILED,
    HEALTHY,
    HIGH,
    HUNG,
    INFO,
    LOW,
    MEDIUM,
    NETWORK,
    NO_DATA,
    NVLINK,
    OTHER,
    OUTSIDE,
    PERHAPS_HUNG,
    STRAGGLER,
    UNKNOWN,
    WARNING,
    Finding,
    Hang,
    Verdict,
)
from nccl_inspector.model.rules import About
from nccl_inspector.model.wording import elapsed, node_list

# Share of the job's time. Medians do not show who is late in one operation of ten.
WAITED_MIN = 0.1
# Slurm's states of a job that failed by itself. CANCELLED and TIMEOUT are not among them: somebody
# cancelled the job, and many training runs go on until their time is over.
FAILED_STATES = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"})
_HANGS = rules.ids_about(About.HANG)
_CRASHES = {rules.HANG_DEAD.id, rules.STOPPED_FIRST.id}
_ABOUT_DATA = rules.ids_about(About.DATA)


def _stuck(findings: Sequence[Finding], hangs: Sequence[Hang]) -> Verdict | None:
    """Return the verdict by the first operation that never ended, whatever ended the job."""
    hang = next((one for one in findings if one.rule in _HANGS), None)
    if hang is None or hang.rule == rules.HANG_OUTSIDE.id:
        return None
    if hang.severity != CRITICAL:
        return Verdict(PERHAPS_HUNG, "", hang.confidence, hang.title.removeprefix(PERHAPS))
    if hang.rule not in _CRASHES:
        cost_s = max((one.age_s for one in hangs if one.confirmed), default=None)
        return Verdict(HUNG, "", hang.confidence, hang.title, cost_s)
    return _crashed(hang, findings)


def _crashed(who: Finding, findings: Sequence[Finding]) -> Verdict:
    """Return the verdict about a job of which it is known which process failed."""
    hardware = _hardware(findings)
    if hardware is None:
        return Verdict(CRASHED, "", who.confidence, who.title)
    return Verdict(CRASHED, COMMUNICATION, HIGH, f"{hardware.title}; {who.title}")


def _hardware(findings: Sequence[Finding]) -> Finding | None:
    """Return what was counted and means that hardware failed."""
    return next(
        (one for one in findings
         if one.severity == CRITICAL and any(e.source == "counters" for e in one.evidence)),
        None,
    )  # fmt: skip


def _died(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding about a process that ended long before the others."""
    deaths = (one for one in findings if one.rule == rules.KILLED.id and one.period is not None)
    return next(deaths, None)


def _failed(ending: Ending, nodes: Sequence[str], findings: Sequence[Finding]) -> Verdict | None:
    """Return the verdict if the job died, or one of its processes died long before the others."""
    first = _died(findings)
    if first is not None and first.severity == CRITICAL:
        return _crashed(first, findings)
    if first is not None:
        return Verdict(FAILED, UNKNOWN, LOW, first.title)
    if ending.state not in FAILED_STATES:
        return None
    node = next((one for one in findings if one.rule == rules.NODE_FAILED.id), None)
    if node is not None:
        return Verdict(CRASHED, "", node.confidence, node.title)
    if ending.state == "NODE_FAIL":
        waits = (one.title for one in findings if one.rule == rules.HANG_NOT_MEASURED.id)
        lost = f"{'nodes' if len(nodes) > 1 else 'node'} {node_list(nodes)} left no data behind"
        words = lost if nodes else next(waits, "")
        if words:
            return Verdict(CRASHED, "", MEDIUM, f"a node of the job failed: {words}")
    hardware = _hardware(findings)
    if hardware is not None:
        return Verdict(FAILED, COMMUNICATION, MEDIUM, hardware.title)
    state = ending.state.lower().replace("_", " ")
    code = f" ({ending.code_words})" if ending.code_words else ""
    return Verdict(
        FAILED, OTHER, LOW,
        f"the job's state is {state}{code}; nothing in its communication explains that",
    )  # fmt: skip


_CAUSES = (STRAGGLER, NETWORK, NVLINK, OUTSIDE)


def _costly(findings: Sequence[Finding], cost_min: float) -> list[Finding]:
    """Return the causes that cost `cost_min` or more, of whatever severity, the costliest first."""
    costly = [one for one in findings if one.cause in _CAUSES and (one.cost_share or 0) >= cost_min]
    return sorted(costly, key=lambda one: -(one.cost_share or 0.0))


def _said_costly(costly: Sequence[Finding]) -> str:
    """Return the costliest cause with what it cost, and how many more there are."""
    more = f" and {len(costly) - 1} more" if len(costly) > 1 else ""
    return f"{costly[0].title} ({costly[0].cost_share:.1%}){more}"


def _not_seen(
    findings: Sequence[Finding],
    cost_min: float,
    why: str,
    sampled: Judged,
    nodes_missing: Sequence[str],
) -> str:
    """Return what is said if a slow rank might not have shown, beside findings that cost much."""
    costly = _costly(findings, cost_min)
    if sampled.missing_last >= MISSING_LAST_MIN:
        of = f" of {node_list(nodes_missing)}," if nodes_missing else ""
        found = f"{_said_costly(costly)}; besides, " if costly else ""
        return (
            f"{found}the measured ranks wait for ranks{of} that left no data, in "
            f"{sampled.missing_last:.0%} of the operations with these: whether they are slow, or "
            "wait for others themselves, is not known"
        )
    if not costly:
        return f"nothing slow was found, but a slow rank might not have shown: {why}"
    return f"{_said_costly(costly)}, but another rank may be slower: {why}"


def _degraded(findings: Sequence[Finding], wall_s: float | None) -> Verdict | None:
    """Return the verdict by what cost most; counters that rose only support a cause."""
    wrong = [one for one in findings if one.cause in _CAUSES and one.severity != INFO]
    worst = max(wrong, key=lambda one: one.cost_s or 0.0, default=None)
    if worst is None:
        return None
    # For example two late ranks: each has its own finding, and the answer is their common cost.
    alike = [one for one in wrong if one.cause == worst.cause]
    seconds = min(sum(one.cost_s or 0.0 for one in alike), wall_s or float("inf"))
    share = min(sum(one.cost_share or 0.0 for one in alike), 1.0)
    more = f" (and {len(alike) - 1} more like it)" if len(alike) > 1 else ""
    summary = worst.title + more
    return Verdict(DEGRADED, worst.cause, worst.confidence, summary, seconds, share)


def _healthy(
    findings: Sequence[Finding],
    wall_s: float | None,
    waiting_share: float | None,
    sampled: Judged,
    cost_min: float,
) -> Verdict:
    """Return that nothing is wrong: a fault that matters would have shown."""
    about = [one for one in findings if one.rule in _ABOUT_DATA and one.severity == WARNING]
    confidence = CONFIDENCES[min(1 + len(about), 2)] if about else MEDIUM
    ran = f" in {elapsed(wall_s)}" if wall_s else ""
    among = " among what was measured" if about else ""
    waited = ""
    dismissed = sampled.dismissed_share >= cost_min
    if sampled.imbalance_share >= WAITED_MIN or dismissed:
        uneven = max(sampled.imbalance_share, sampled.dismissed_share)
        waited = (
            f"; the ranks waited for each other for {uneven:.0%} of the time, and "
            "who is late changes: the work is uneven"
        )
    # What a program does by itself looks like this, too.
    own = _costly(findings, cost_min)
    small = not own and not dismissed
    what = "no rank and no link" if small else "nothing that must be a fault"
    but = f". What may be the program's own doing: {_said_costly(own)}" if own else ""
    summary = (
        f"{what} cost the job {100 * cost_min:g}% or more{ran}{among}: "
        f"{elapsed(sampled.seconds)} of it were replayed operation by operation{waited}{but}"
    )
    return Verdict(HEALTHY, "", confidence, summary, None, None, waiting_share)


def judge(
    *,
    ending: Ending,
    no_data: str,
    most_missing: bool,
    findings: Sequence[Finding],
    hangs: Sequence[Hang],
    wall_s: float | None,
    waiting_share: float | None,
    sampled: Judged,
    cost_min: float = COST_MIN,
    unseen: str = "",
    nodes_missing: Sequence[str] = (),
) -> Verdict:
    """Return the verdict.

    `no_data`: why no operation was measured to its end; empty if one was. A job may hang in its
    first. `most_missing`: at least half of the ranks were not measured. `sampled`: what the exact
    records say, and whether they would have shown a fault. `cost_min`: the share of the job's time
    from which on a cause is a warning. `unseen`: what may have slowed the job without showing.
    `nodes_missing`: nodes of the job without data.
    """
    stuck, dead = _stuck(findings, hangs), _failed(ending, nodes_missing, findings)
    if ending.state == "NODE_FAIL" and dead and dead.status == CRASHED:
        return dead
    sure = dead is not None and dead.status == CRASHED
    if stuck is not None and not (sure and stuck.status == PERHAPS_HUNG):
        return stuck
    if dead and (dead.confidence != LOW or dead.cause == UNKNOWN):
        return dead
    outside = next((one for one in findings if one.rule == rules.HANG_OUTSIDE.id), None)
    if no_data and outside is None:
        return Verdict(NO_DATA, "", LOW, no_data)
    found = _degraded(findings, wall_s)
    if found is not None:
        return replace(found, waiting_share=waiting_share)
    if dead:
        return dead
    if outside is not None:  # it might have gone on, had the job not been ended
        return Verdict(CANNOT_TELL, "", LOW, outside.title, waiting_share=waiting_share)
    if most_missing or not sampled.seen:
        why = "half of the ranks or more were not measured" if most_missing else sampled.why_not
        summary = _not_seen(findings, cost_min, why, sampled, nodes_missing)
        return Verdict(CANNOT_TELL, "", LOW, summary, waiting_share=waiting_share)
    if unseen:
        costly = _costly(findings, cost_min)
        slow = _said_costly(costly) if costly else "nothing slow was found"
        summary = f"{slow}, but what is slow might not have shown: {unseen}"
        return Verdict(CANNOT_TELL, "", LOW, summary, waiting_share=waiting_share)
    return _healthy(findings, wall_s, waiting_share, sampled, cost_min)
