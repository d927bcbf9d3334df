# SPDX-License-Identifier: Apache-2.0
"""A card that contradicts itself is noticed, in each way in which one may."""

from dataclasses import replace

import pytest

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CANNOT_TELL,
    DEGRADED,
    HEALTHY,
    HIGH,
    INFO,
    STRAGGLER,
    WARNING,
    Card,
    Entity,
    Evidence,
    Finding,
    Period,
    Verdict,
)
from nccl_inspector.model.wording import elapsed
from tests.simulator.consistent import contradictions
from tests.support import example_cards

_WALL_S, _SHARE = 1000.0, 0.05
_COST_S = _SHARE * _WALL_S


def late(number: int = 5, **changes: object) -> Finding:
    """Return a finding about a late rank that agrees with itself."""
    found = Finding(
        rules.STRAGGLER.id, WARNING, HIGH, f"rank {number} is late by 50.0 ms",
        f"It cost about {elapsed(_COST_S)} ({_SHARE:.1%} of the job's time): {elapsed(_WALL_S)} "
        f"would have been {elapsed(_WALL_S - _COST_S)}. Late only because of it: rank 1.",
        Period(0.0, _WALL_S), (Entity("rank", f"rank {number}"),),
        (Evidence("samples", "cost, by replaying the job without it", _SHARE, "share"),),
        cost_s=_COST_S, cost_share=_SHARE, cause=STRAGGLER, victims=(Entity("rank", "rank 1"),),
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]  # its fields


def card(*findings: Finding, verdict: Verdict | None = None) -> Card:
    """Return a card of a job that takes 1,000 s and has these findings and no others."""
    found = example_cards.network()
    found = replace(found, timeline=replace(found.timeline, degradations=()))
    warned = [one for one in findings if one.severity != INFO]
    share = sum(one.cost_share or 0.0 for one in warned)
    degraded = Verdict(DEGRADED, STRAGGLER, HIGH, findings[0].title, share * _WALL_S, share)
    return replace(
        found,
        job=replace(found.job, start_s=0.0, end_s=_WALL_S),
        findings=findings,
        verdict=verdict or degraded,
        stragglers=tuple(
            replace(found.stragglers[0], rank=entity.name, flagged=True)
            for one in warned
            for entity in one.entities
        ),
    )


def told(status: str, summary: str) -> Verdict:
    return Verdict(status, "", HIGH, summary)


_INFORMATION = late(severity=INFO)
_SAID = f"nothing that must be a fault: {_INFORMATION.title} (5.0%)"


def test_a_card_that_agrees_with_itself_has_no_contradiction() -> None:
    assert contradictions(card(late())) == []
    assert contradictions(card(late(), late(6))) == []
    assert contradictions(card(_INFORMATION, verdict=told(HEALTHY, _SAID))) == []
    small = late(severity=INFO, cost_s=5.0, cost_share=0.005, detail="", evidence=())
    nothing = told(HEALTHY, "no rank and no link cost the job 1% or more")
    assert contradictions(card(small, verdict=nothing)) == []


@pytest.mark.parametrize("status", [HEALTHY, CANNOT_TELL])
def test_nothing_is_healthy_beside_a_warning(status: str) -> None:
    found = contradictions(card(late(), verdict=told(status, _SAID)))
    assert any("beside the warning" in one for one in found)


@pytest.mark.parametrize("status", [HEALTHY, CANNOT_TELL])
@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (f"no rank and no link cost the job 1%. {_SAID}", "no rank and no link"),
        (f"nothing slow was found. {_SAID}", "nothing slow was found"),
        ("all is well", "does not say what cost most"),
        (_SAID.replace("5.0%", "4.0%"), "does not say what cost most"),
    ],
)
def test_what_cost_much_is_said_in_the_verdict(status: str, summary: str, words: str) -> None:
    found = contradictions(card(_INFORMATION, verdict=told(status, summary)))
    assert any(words in one for one in found)


def test_of_several_that_cost_much_the_verdict_says_how_many() -> None:
    two = _INFORMATION, late(6, severity=INFO)
    assert contradictions(card(*two, verdict=told(HEALTHY, _SAID)))
    assert not contradictions(card(*two, verdict=told(HEALTHY, f"{_SAID} and 1 more")))


_WELL, _DETAIL = card(late()), late().detail
_WRONG: dict[str, tuple[Card, str]] = {
    "a verdict of another cost": (
        replace(_WELL, verdict=replace(_WELL.verdict, cost_share=0.07)),
        "DEGRADED costs",
    ),
    "a verdict that costs more than the job took": (
        replace(_WELL, verdict=replace(_WELL.verdict, cost_s=1200.0)),
        "the verdict costs",
    ),
    "findings that cost more than the job took": (
        card(late(cost_share=0.7, cost_s=700.0), late(6, cost_share=0.7, cost_s=700.0)),
        "warnings cost 140%",
    ),
    "a detail of another cost": (
        card(late(detail=_DETAIL.replace("(5.0%", "(6.0%"))),
        "the detail says",
    ),
    "a detail of another saving": (
        card(late(detail=_DETAIL.replace("would have been", "would have been 9"))),
        "would have been",
    ),
    "a warning that does not say its cost": (
        card(late(detail="It is late.")),
        "does not say what it cost",
    ),
    "seconds that are not the share": (
        card(late(cost_s=80.0)),
        "is not",
    ),
    "evidence of another cost": (
        card(late(evidence=(replace(late().evidence[0], value=0.09),))),
        "another cost",
    ),
    "a title of another ratio": (
        card(
            late(
                title="transfers take 1.50 times as long",
                evidence=(Evidence("samples", "T compared with usual", 1.2, "times"),),
            )
        ),
        "another ratio",
    ),
    "who is guilty and a victim": (
        card(late(victims=(Entity("rank", "rank 5"),))),
        "late, and late only because of it",
    ),
    "victims that are accused elsewhere": (
        card(late(), late(1, victims=(), detail=_DETAIL.partition(" Late")[0])),
        "and accused",
    ),
    "victims that are not counted": (
        card(late(detail=_DETAIL.replace("rank 1.", "rank 1, rank 2 and 7 more."))),
        "it says that these waited",
    ),
    "a time outside the job": (
        card(late(period=Period(-500.0, _WALL_S))),
        "not within the job's",
    ),
    "a cost longer than its time": (
        card(late(cost_s=500.0, cost_share=0.5, period=Period(0.0, 10.0))),
        "it cost 500 s in 10 s",
    ),
    "once that is called several times": (
        card(late(title="rank 5 makes the others wait 1 times, for 5 s (median)")),
        "once is not several times",
    ),
    "a series that explains some of what a cause explains whole": (
        replace(
            _WELL,
            timeline=replace(
                _WELL.timeline,
                degradations=tuple(
                    replace(one, period=Period(10.0, 70.0), explained_share=0.08)
                    for one in example_cards.network().timeline.degradations
                ),
            ),
        ),
        "explains 8% of what",
    ),
    "who is accused and not in the table": (
        replace(_WELL, stragglers=()),
        "not in the table",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", _WRONG)
def test_what_does_not_agree_is_noticed(what: str) -> None:
    wrong, words = _WRONG[what]
    assert any(words in one for one in contradictions(wrong))
