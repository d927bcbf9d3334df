# SPDX-License-Identifier: Apache-2.0
"""Slow times of the job's own throughput, compared with the causes of lost time."""

from collections.abc import Sequence
from dataclasses import replace

from nccl_inspector.analysis.replay.cause import HABIT_TIMES
from nccl_inspector.model import card, rules
from nccl_inspector.model.card import HIGH, INFO, Evidence, Finding, Period
from nccl_inspector.model.wording import elapsed
from nccl_inspector.report.causes import OUTSIDE_S_MIN, severity


def join_progress(
    causes: Sequence[tuple[str, Finding]],
    over_time: Sequence[tuple[str, Finding]],
    wall_s: float,
    cost_min: float,
) -> tuple[tuple[str, Finding], ...]:
    """Return the causes, with what the job's own throughput says about their times.

    A dip of the throughput that no cause explains comes from outside communication, unless the time
    lines say that transfers explain it.
    """
    found = list(causes)
    dips = [(of, dip, figure) for of, dip in over_time if (figure := _figure_of(dip)) is not None]
    for of, dip, figure in dips:
        by_transfers = of in (card.NETWORK, card.NVLINK)
        if dip.period is None or dip.severity == INFO:
            continue
        lasted_s = dip.period.end_s - dip.period.start_s
        if lasted_s < OUTSIDE_S_MIN:  # an evaluation or a checkpoint takes as long
            continue
        place = next(
            (at for at, (kind, one) in enumerate(found)
             if (one.severity != INFO or kind == card.OUTSIDE)
             and _explains(one, dip.period, -figure.value * lasted_s,
                           grew=by_transfers and kind == of)),
            None,
        )  # fmt: skip
        if place is not None:
            kind, one = found[place]
            sure = one.confidence if one.severity == INFO else HIGH
            found[place] = kind, replace(one, evidence=(*one.evidence, figure), confidence=sure)
            continue
        # Dips that come again and again as deep are part of the program: an evaluation, a
        # checkpoint.
        if sum(one.value <= figure.value / 2 for _, _, one in dips) >= HABIT_TIMES:
            continue
        cost_s = -figure.value * lasted_s
        share = cost_s / wall_s if wall_s else 0.0
        if share < cost_min:
            continue
        if by_transfers:
            # Which path it was, only the replay of single operations could tell.
            found.append((of, replace(
                dip, severity=INFO, entities=(), cause=of, cost_s=cost_s, cost_share=share,
            )))  # fmt: skip
            continue
        found.append((
            card.OUTSIDE,
            replace(
                dip, rule=rules.SLOW_OUTSIDE.id, severity=severity(share, cost_min),
                title=f"slower outside of communication for {elapsed(lasted_s)}: "
                f"{figure.metric.removeprefix('change of ')} {figure.value:+.0%}",
                cause=card.OUTSIDE, cost_s=cost_s, cost_share=share,
            ),
        ))  # fmt: skip
    return tuple(sorted(found, key=lambda one: -(one[1].cost_s or 0.0)))


def _figure_of(dip: Finding) -> Evidence | None:
    """Return by how much the job's own throughput fell in a slow time, or None."""
    return next((one for one in dip.evidence if one.source == "throughput" and one.value < 0), None)


def _explains(one: Finding, period: Period, lost_s: float, *, grew: bool) -> bool:
    """Tell whether a cause lasted for most of a dip and little else, or cost most of it.

    `grew`: it may have lasted for longer, and was worse in the dip. The job's own throughput has
    long windows, so one stop makes a dip of a whole window.
    """
    if one.period is None:
        return False
    common = min(one.period.end_s, period.end_s) - max(one.period.start_s, period.start_s)
    length, own = period.end_s - period.start_s, one.period.end_s - one.period.start_s
    if common >= 0.5 * length:
        return grew or own <= 4 * length
    return common >= 0.5 * own and (one.cost_s or 0.0) >= 0.5 * lost_s
