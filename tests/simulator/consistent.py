# SPDX-License-Identifier: Apache-2.0
"""What a report card must say of itself, whatever the job: no sentence contradicts another one.

The figures in sentences are read back and held against those that `--json` has.
"""

import re
from collections.abc import Iterator, Sequence

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CANNOT_TELL,
    DEGRADED,
    HEALTHY,
    INFO,
    NETWORK,
    NVLINK,
    OUTSIDE,
    STRAGGLER,
    Card,
    Finding,
)
from nccl_inspector.model.wording import duration, elapsed, percent
from nccl_inspector.render.text import render_text

CAUSES = frozenset({STRAGGLER, NETWORK, NVLINK, OUTSIDE})
_SLACK_S = 60.0  # Slurm's times are whole seconds, windows reach over the job's ends
_NOTHING = ("no rank and no link cost", "nothing slow was found")
_COST = re.compile(
    r"It cost about (.+?) \((\d+\.\d)%(?: \+-\d+\.\d%)? of the job's time\): "
    r"(.+?) would have been (.+?)\. "
)
_RATIO = re.compile(r"take (\d+\.\d+) times as long")
_TIMES = re.compile(r"(\d+) times, for (.+?) \(median\)")
_MORE = re.compile(r" and (\d+) more")
_EVIDENCE_OF_COST = "cost, "
# Of the job's own throughput (SLOW_OUTSIDE) the title says how much it fell.
_COST_IS_SAID = {rules.STRAGGLER.id, rules.SLOW_NETWORK.id, rules.SLOW_LINKS.id}


def causes_of(card: Card) -> list[Finding]:
    """Return the findings about lost time that have a cost."""
    return [one for one in card.findings if one.cause in CAUSES and one.cost_share is not None]


def contradictions(card: Card, cost_min: float = 0.01) -> list[str]:
    """Return every contradiction of a card, as words; `cost_min`: the setting report_cost."""
    found = [
        *_of_verdict(card, cost_min),
        *_of_sums(card),
        *(words for one in card.findings for words in _of_finding(card, one)),
        *_of_stragglers(card),
        *_of_slow_times(card),
        *_of_text(card),
    ]
    return list(dict.fromkeys(found))


def _of_verdict(card: Card, cost_min: float) -> Iterator[str]:
    """Yield where the verdict is not what its findings say."""
    verdict, costly = card.verdict, [c for c in causes_of(card) if (c.cost_share or 0) >= cost_min]
    warned = [one for one in costly if one.severity != INFO]
    if verdict.status in (HEALTHY, CANNOT_TELL):
        yield from (f"{verdict.status} beside the warning: {one.title}" for one in warned)
        if costly:
            yield from _information(card, costly)
    elif verdict.status == DEGRADED:
        alike = [o for o in causes_of(card) if o.cause == verdict.cause and o.severity != INFO]
        if not alike:
            yield f"DEGRADED ({verdict.cause}) without a warning of that cause"
        together = min(sum(one.cost_share or 0.0 for one in alike), 1.0)
        if abs(together - (verdict.cost_share or 0.0)) > 1e-9:
            yield f"DEGRADED costs {verdict.cost_share}, its findings {together}"
        if f"and {len(alike) - 1} more like it" in verdict.summary and len(alike) < 2:
            yield f"the verdict counts more findings than there are: {verdict.summary}"


def _information(card: Card, costly: Sequence[Finding]) -> Iterator[str]:
    """Yield what is untrue of a verdict beside information that cost much."""
    summary = card.verdict.summary
    yield from (f'"{words}" beside {costly[0].title}' for words in _NOTHING if words in summary)
    if any(one.rule == rules.HANG_OUTSIDE.id for one in card.findings):
        return  # the verdict is about that
    worst = max(costly, key=lambda one: one.cost_share or 0.0)
    if worst.title not in summary or f"({worst.cost_share:.1%})" not in summary:
        yield f"{card.verdict.status} does not say what cost most: {worst.title}"
    if len(costly) > 1 and f"and {len(costly) - 1} more" not in summary:
        yield f"{card.verdict.status} does not say that there are {len(costly)} such findings"


def _of_sums(card: Card) -> Iterator[str]:
    """Yield where costs are more than all of the time."""
    share = sum(one.cost_share or 0.0 for one in causes_of(card) if one.severity != INFO)
    if share > 1.0:
        yield f"warnings cost {share:.0%} of the job's time"
    wall_s = card.job.wall_s
    if wall_s and (card.verdict.cost_s or 0.0) > wall_s * (1 + 1e-9):
        yield f"the verdict costs {card.verdict.cost_s:.0f} s of {wall_s:.0f} s"


def _of_finding(card: Card, one: Finding) -> Iterator[str]:
    """Yield which figures in a finding's sentences are not those of its fields."""
    yield from _of_cost(card, one)
    for row in one.evidence:
        if row.metric.startswith(_EVIDENCE_OF_COST) and row.value != one.cost_share:
            yield f"{one.title}: the evidence has another cost: {row.value}"
    ratios = {f"{row.value:.2f}" for row in one.evidence if row.unit == "times"}
    if (match := _RATIO.search(one.title)) and ratios and match[1] not in ratios:
        yield f"{one.title}: the evidence has another ratio: {ratios}"
    yield from _of_people(one)
    yield from _of_period(card, one)


def _of_cost(card: Card, one: Finding) -> Iterator[str]:
    """Yield what a finding says of its cost that is not so."""
    wall_s, cost_s, share = card.job.wall_s or 0.0, one.cost_s or 0.0, one.cost_share or 0.0
    if match := _COST.search(one.detail):
        told = elapsed(cost_s), f"{100 * share:.1f}"
        if (match[1], match[2]) != told:
            yield f"{one.title}: the detail says {match[1]} and {match[2]}%, the fields {told}"
        if (match[3], match[4]) != (elapsed(wall_s), elapsed(wall_s - cost_s)):
            yield f"{one.title}: {match[3]} would have been {match[4]}"
    elif one.rule in _COST_IS_SAID and one.severity != INFO and share > 0:
        yield f"{one.title}: its detail does not say what it cost"
    known = wall_s and one.cost_s is not None and one.cost_share is not None
    if known and abs(cost_s - share * wall_s) > max(0.01 * cost_s, 0.05):
        yield f"{one.title}: {cost_s:.1f} s is not {share:.2%} of {wall_s:.0f} s"


def _of_people(one: Finding) -> Iterator[str]:
    """Yield who is both guilty and a victim, or counted wrongly."""
    guilty = {entity.name for entity in one.entities if entity.kind == "rank"}
    victims = [entity.name for entity in one.victims]
    if both := guilty & set(victims):
        yield f"{one.title}: late, and late only because of it: {sorted(both)}"
    if "Late only because of it: " in one.detail:
        said = one.detail.partition("Late only because of it: ")[2].partition(".")[0]
        more = int(match[1]) if (match := _MORE.search(said)) else 0
        named = [name for name in _MORE.sub("", said).split(", ") if name]
        if len(named) + more != len(victims) or not set(named) <= set(victims):
            yield f"{one.title}: it says that these waited: {said}"


def _of_period(card: Card, one: Finding) -> Iterator[str]:
    """Yield what happened outside the job's time, or oftener than there was time for."""
    start_s, end_s, period = card.job.start_s, card.job.end_s, one.period
    if period is None or start_s is None or end_s is None:
        return
    if one.cause in CAUSES and (
        period.start_s < start_s - _SLACK_S or period.end_s > end_s + _SLACK_S
    ):
        yield f"{one.title}: its time is not within the job's"
    if (match := _TIMES.search(one.title)) and int(match[1]) < 2:
        yield f"{one.title}: once is not several times"
    if one.cost_s is not None and one.cost_s > period.end_s - period.start_s + _SLACK_S:
        yield f"{one.title}: it cost {one.cost_s:.0f} s in {period.end_s - period.start_s:.0f} s"


def _of_stragglers(card: Card) -> Iterator[str]:
    """Yield where findings and the table of stragglers differ."""
    accused = {
        entity.name
        for one in card.findings
        if one.severity != INFO and one.rule == rules.STRAGGLER.id
        for entity in one.entities
        if entity.kind == "rank"
    }
    flagged = {one.rank for one in card.stragglers if one.flagged}
    if not accused <= flagged:
        yield f"accused, and not in the table: {sorted(accused - flagged)}"
    for one in card.findings:
        blamed = {e.name for e in one.victims} & accused
        if one.severity != INFO and one.rule == rules.STRAGGLER.id and blamed:
            yield f"{one.title}: late only because of it, and accused: {sorted(blamed)}"


def _of_slow_times(card: Card) -> Iterator[str]:
    """Yield which slow times of the time line say how much of a dip they explain, beside a cause.

    What a cause cost is known; each series by itself explains another share of it.
    """
    causes = [one for one in causes_of(card) if one.severity != INFO and one.period is not None]
    for slow in card.timeline.degradations:
        for one in causes:
            own = one.period
            if (
                slow.explained_share is not None
                and own is not None
                and min(own.end_s, slow.period.end_s) > max(own.start_s, slow.period.start_s)
            ):
                yield f"{slow.func} explains {slow.explained_share:.0%} of what {one.title} cost"


def _of_text(card: Card) -> Iterator[str]:
    """Yield which of the figures of the card its text does not have."""
    text = " ".join(render_text(card, everything=True).split())
    verdict = card.verdict
    if verdict.cost_s:
        known = verdict.cost_share is not None
        share = f" ({percent(verdict.cost_share)} of its time)" if known else ""
        alone = f"It cost the job about {elapsed(verdict.cost_s)}{share}."
        in_it = (
            f"cost this job {percent(verdict.cost_share)} of its time ({elapsed(verdict.cost_s)})"
        )
        if alone not in text and in_it not in text:
            yield "the text does not say the verdict's cost"
    for one in card.findings:
        if " ".join(one.title.split()) not in text:
            yield f"not in the text: {one.title}"
    for row in card.stragglers:
        if row.flagged and duration(row.late_ns) not in text:
            yield f"the text does not say how late {row.rank} is"
