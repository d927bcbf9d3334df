# SPDX-License-Identifier: Apache-2.0
"""The first sentence of a report: what happened, who it was, what it cost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    DEGRADED,
    HIGH,
    INFO,
    NETWORK,
    STRAGGLER,
    WARNING,
    Card,
    Finding,
    Job,
    Period,
    Verdict,
)
from nccl_inspector.model.headline import headline, what_happened
from nccl_inspector.render.comment import make_comment
from nccl_inspector.render.html import render_html
from nccl_inspector.render.json import to_json
from nccl_inspector.render.text import render_text
from nccl_inspector.store.card_rows import rows_of
from tests.support import example_cards

NOON = datetime(2026, 8, 1, 12, tzinfo=UTC)
BEGIN_S = NOON.timestamp()
JOB = Job(job_id=4711, start_s=BEGIN_S, end_s=BEGIN_S + 3600)
LATE = Finding(
    rule=rules.STRAGGLER.id, severity=WARNING, confidence=HIGH,
    title="rank 5 (n3 GPU3) is late by 40 ms", detail="", cost_s=1008.0, cost_share=0.28,
    cause=STRAGGLER, who="rank 5 (n3 GPU3)", how="it comes about 40 ms late, and the others wait",
)  # fmt: skip


def card_of(findings: Sequence[Finding]) -> Card:
    """Return a card whose verdict is about the first finding."""
    first = findings[0]
    verdict = Verdict(
        DEGRADED, first.cause, HIGH, first.title, sum(one.cost_s or 0 for one in findings),
        sum(one.cost_share or 0 for one in findings),
    )  # fmt: skip
    return replace(example_cards.healthy(), job=JOB, findings=tuple(findings), verdict=verdict)


def during(first_s: float, last_s: float) -> Finding:
    """Return the finding with a period, in seconds of the job."""
    return replace(LATE, period=Period(BEGIN_S + first_s, BEGIN_S + last_s))


@pytest.mark.parametrize(
    ("finding", "when"),
    [
        (LATE, ""),
        (during(20, 3590), ""),
        (during(1800, 3590), ", from 12:30:00 UTC on"),
        (during(20, 1800), ", until 12:30:00 UTC"),
        (during(600, 1800), ", from 12:10:00 to 12:30:00 UTC"),
        (during(170, 3590), ""),  # 5 % of the job are 180 s
        (during(190, 3590), ", from 12:03:10 UTC on"),
    ],
)
def test_it_says_who_what_it_cost_and_since_when(finding: Finding, when: str) -> None:
    assert headline(card_of([finding])) == (
        f"Rank 5 (n3 GPU3) cost this job 28% of its time (16 min 48 s){when}: it comes about 40 ms "
        "late, and the others wait."
    )


def test_two_that_are_alike_are_both_named_and_what_is_said_of_one_is_said_of_one() -> None:
    other = replace(LATE, who="rank 9 (n4 GPU1)", cost_s=72.0, cost_share=0.02)
    assert headline(card_of([LATE, other])).startswith(
        "Rank 5 (n3 GPU3) and rank 9 (n4 GPU1) cost this job 30% of its time (18 min): the first "
        "comes about 40 ms late"
    )
    assert headline(card_of([LATE, other, other, other])).startswith(
        "Rank 5 (n3 GPU3) and 3 others cost"
    )


def test_what_is_information_or_of_another_cause_is_not_in_it() -> None:
    hint = replace(LATE, severity=INFO, who="rank 7 (n1 GPU0)")
    link = replace(LATE, cause=NETWORK, who="slow transfers on node n2")
    assert headline(card_of([LATE, hint, link])).startswith("Rank 5 (n3 GPU3) cost this job")


def test_a_finding_that_does_not_say_who_has_its_title_and_the_cost() -> None:
    card = card_of([replace(LATE, who="", how="")])
    assert headline(card) == (
        "Rank 5 (n3 GPU3) is late by 40 ms. It cost the job about 16 min 48 s (28% of its time)."
    )


def test_a_name_keeps_its_case() -> None:
    card = card_of([replace(LATE, who="n3 mlx5_1/1")])
    assert headline(card).startswith("n3 mlx5_1/1 cost this job")


@pytest.mark.parametrize(
    "card",
    [card_of([during(1800, 3590)]), example_cards.hang(), example_cards.network(),
     example_cards.healthy()],
)  # fmt: skip
def test_text_page_comment_history_and_json_begin_with_the_same_sentence(card: Card) -> None:
    said = headline(card)
    text = " ".join(render_text(card).split())
    assert what_happened(card) in text.partition("VERDICT ")[2].partition(" nodes ")[0]
    assert said in " ".join(render_html(card, NOON).replace("&#39;", "'").split())
    assert json.loads(to_json(card, NOON))["headline"] == said
    assert rows_of(card).job.summary == said
    words = what_happened(card).partition(": it comes")[0].partition(". It cost")[0]
    assert (
        make_comment(card).partition(": ")[2].startswith(words[:150].rstrip(".").replace("'", ""))
    )


@pytest.mark.parametrize(("first_s", "when"), [(50, ""), (70, ", from 12:01:10 UTC on")])
def test_a_minute_at_the_edge_of_a_short_job_is_not_said(first_s: float, when: str) -> None:
    card = card_of([during(first_s, 590)])
    short = replace(card, job=replace(JOB, end_s=BEGIN_S + 600))
    assert headline(short).partition(": ")[0].endswith(f"(16 min 48 s){when}")
