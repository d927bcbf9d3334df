# SPDX-License-Identifier: Apache-2.0
"""The one answer, from what the findings say."""

from collections.abc import Mapping, Sequence

from nccl_inspector.card.model import (
    CANNOT_TELL,
    COMMUNICATION,
    CONFIDENCES,
    CRITICAL,
    DEGRADED,
    FAILED,
    HEALTHY,
    HIGH,
    HUNG,
    LOW,
    MEDIUM,
    NO_DATA,
    OTHER,
    STRAGGLER,
    WARNING,
    Finding,
    Hang,
    Period,
    Straggler,
    Verdict,
)
from nccl_inspector.card.words import elapsed

# Of the job's time. Medians do not see who is late in one operation of ten.
WAITED_MIN = 0.1
# Slurm's words for a job that did not end well by itself. A cancelled one was ended by somebody,
# and many a training run goes on until its time is over.
FAILED_STATES = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"})
# Rules of findings that are about the measurement, or about the application's own doing.
_ABOUT_DATA = frozenset({"not-measured", "dropped", "no-times", "silent", "refused"})


def _hung(hang: Finding, hangs: Sequence[Hang]) -> Verdict:
    cost_s = max((one.age_s for one in hangs if one.confirmed), default=None)
    return Verdict(HUNG, "", hang.confidence, hang.title, cost_s)


def _failed(state: str, findings: Sequence[Finding]) -> Verdict | None:
    """Return the verdict of a job that died, or of which a process died long before the others."""
    first = next(
        (one for one in findings if one.rule == "killed" and one.severity == CRITICAL), None
    )
    hang = next((one for one in findings if one.rule == "hang-dead"), None)
    hardware = next(
        (one for one in findings
         if one.severity == CRITICAL and any(e.source == "counters" for e in one.evidence)),
        None,
    )  # fmt: skip
    if first is None and state not in FAILED_STATES:
        return None
    if hardware is not None:
        both = first or hang
        summary = hardware.title + (f"; {both.title}" if both else "")
        return Verdict(FAILED, COMMUNICATION, HIGH if both else MEDIUM, summary)
    if first is not None:
        confidence = HIGH if hang else first.confidence
        return Verdict(FAILED, OTHER, confidence, first.title)
    told = state.lower().replace("_", " ")
    return Verdict(
        FAILED, OTHER, LOW, f"the job's state is {told}; nothing in its communication explains that"
    )


def _lasting(
    causes: Sequence[tuple[str, Finding]], costs: Mapping[Period, float]
) -> tuple[str, Finding] | None:
    """Return the slow time that cost most."""
    wrong = [one for one in causes if one[1].severity != "I"]

    def cost(one: tuple[str, Finding]) -> float:
        period = one[1].period
        return costs.get(period, 0.0) if period else 0.0

    return max(wrong, key=cost, default=None)


def _degraded(
    findings: Sequence[Finding],
    causes: Sequence[tuple[str, Finding]],
    costs: Mapping[Period, float],
    stragglers: Sequence[Straggler],
    ranks: int,
) -> Verdict | None:
    """Return what cost most: a process or a slow time.

    Counters that rose are no cause by themselves: they speak for something that was slow.
    """
    late = next((one for one in stragglers if one.flagged), None)
    late_s = late.waited_ns / 1e9 / max(ranks - 1, 1) if late else 0.0
    slow = _lasting(causes, costs)
    slow_s = costs.get(slow[1].period, 0.0) if slow and slow[1].period else 0.0
    if late and (slow is None or slow[0] == STRAGGLER or (slow[1].period and late_s >= slow_s)):
        named = next(one for one in findings if one.rule == "straggler")
        return Verdict(DEGRADED, STRAGGLER, named.confidence, named.title, late_s)
    if slow:
        cost_s = slow_s or None
        return Verdict(DEGRADED, slow[0], slow[1].confidence, slow[1].title, cost_s)
    return None


def _healthy(
    findings: Sequence[Finding],
    wall_s: float | None,
    waiting_share: float | None,
    waiting_s: float,
) -> Verdict:
    """Return that nothing is wrong, as far as medians of what was measured can tell."""
    about = [one for one in findings if one.rule in _ABOUT_DATA and one.severity == WARNING]
    confidence = CONFIDENCES[min(1 + len(about), 2)] if about else MEDIUM
    ran = f" in {elapsed(wall_s)}" if wall_s else ""
    among = " among what was measured" if about else ""
    waited = ""
    if wall_s and waiting_s >= WAITED_MIN * wall_s:
        confidence = LOW
        waited = (
            f"; yet a rank waited {elapsed(waiting_s)} of it for others at the mean: who is late "
            "changes, or is late now and then"
        )
    summary = f"no rank stands out at the median and no transport was slow{ran}{among}{waited}"
    return Verdict(HEALTHY, "", confidence, summary, None, None, waiting_share)


def judge(
    *,
    state: str,
    no_data: str,
    judged: bool,
    most_missing: bool,
    findings: Sequence[Finding],
    causes: Sequence[tuple[str, Finding]],
    costs: Mapping[Period, float],
    hangs: Sequence[Hang],
    stragglers: Sequence[Straggler],
    ranks: int,
    wall_s: float | None,
    waiting_share: float | None,
    waiting_s: float = 0.0,
) -> Verdict:
    """Return the verdict.

    `no_data`: why nothing was measured, empty when something was; `judged`: some series or rank
    could have been named; `most_missing`: half of the ranks or more were not
    measured; `causes`: of slow times and lasting slowness, `costs` seconds by period;
    `waiting_s`: what a rank waited for others at the mean.
    """
    if no_data:
        return Verdict(NO_DATA, "", LOW, no_data)
    dead = _failed(state, findings)
    hang = next((one for one in findings if one.rule.startswith("hang-")), None)
    if hang is not None and hang.severity == CRITICAL and not (dead and hang.rule == "hang-dead"):
        return _hung(hang, hangs)
    if dead and dead.confidence != LOW:
        return dead
    found = _degraded(findings, causes, costs, stragglers, ranks)
    if found is not None:
        share = found.cost_s / wall_s if found.cost_s is not None and wall_s else None
        return Verdict(
            found.status, found.cause, found.confidence, found.summary, found.cost_s, share,
            waiting_share,
        )  # fmt: skip
    if dead:
        return dead
    if hang is not None:  # perhaps: it might have ended, had the job gone on
        return Verdict(CANNOT_TELL, "", LOW, hang.title, waiting_share=waiting_share)
    if not judged or most_missing:
        why = (
            "half of the ranks or more were not measured"
            if most_missing
            else "no AllReduce, AllGather or ReduceScatter with enough operations of enough ranks"
        )
        return Verdict(CANNOT_TELL, "", LOW, why, waiting_share=waiting_share)
    return _healthy(findings, wall_s, waiting_share, waiting_s)
