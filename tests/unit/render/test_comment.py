# SPDX-License-Identifier: Apache-2.0
"""The line for AdminComment: short, printable, and told apart from all else in there."""

import re
from dataclasses import replace

import pytest

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.card import Entity
from nccl_inspector.render.comment import make_comment, read_comment, render_summary, summarize
from tests.support import example_cards
from tests.support.example_cards import CARDS, NASTY

LINE = make_comment(example_cards.network())


@pytest.mark.parametrize("name", CARDS)
def test_a_comment_is_a_line_of_printable_ascii_within_512_bytes(name: str) -> None:
    text = make_comment(CARDS[name]())
    assert re.fullmatch("[ -~]+", text)
    assert len(text) <= 512
    read_comment(text)


# As all releases before this one wrote it, and as it is in sites' databases.
OLD = (
    "NCCL DEGRADED(network) cost=33s/0.4% slow=2026-08-02T14:40:10Z+380s/-28% "
    "who=node:n13,port:n13%20mlx5_4,rank:rank%2017,gpu:n13%20GPU1 wait=9% ranks=32/32 "
    "found=0C,2W,1I conf=high attempt=0 v=1"
)


def test_a_comment_begins_with_words_that_say_who_and_the_cost() -> None:
    assert make_comment(example_cards.hang()).startswith(
        "NCCL HUNG: rank 2 (n11 GPU2, pid 4711) stopped calling NCCL at 15:12:44, after AllReduce "
        "1840 of default_pg; 31 other ranks waited 37 min in 1841 until the job reached its time "
        "limit, cost 37 min (28%) -- NCCL HUNG cost=2220s/27.6% who=rank:rank%202,"
    )


def test_a_comment_of_an_older_release_says_the_same_as_one_of_this() -> None:
    assert LINE.endswith(f" -- {OLD}")
    assert read_comment(OLD) == read_comment(LINE) == read_comment(f"{OLD} {LINE}")


@pytest.mark.parametrize("summary", ["x" * 2000, f"NCCL HEALTHY ranks=1 {NASTY} v=1 " * 40])
def test_words_of_any_length_leave_the_cost_and_what_programs_parse_whole(summary: str) -> None:
    card = example_cards.network()
    text = make_comment(replace(card, verdict=replace(card.verdict, summary=summary)))
    words, _, line = text.partition(" -- ")
    assert len(text) <= 512
    assert words.endswith("x.., cost 33 s (0.4%)" if summary[0] == "x" else ", cost 33 s (0.4%)")
    assert not set("='\"|\\") & set(words)
    assert read_comment(text) == read_comment(line)
    assert (read_comment(text).status, read_comment(text).confidence) == ("DEGRADED", "high")


@pytest.mark.parametrize("name", ["healthy", "network", "straggler", "hang", "failed", "nothing"])
def test_a_comment_is_read_back_as_it_was(name: str) -> None:
    wanted = summarize(CARDS[name]())
    found = read_comment(make_comment(CARDS[name]()))
    shares = {"cost_share", "waiting_share"}
    for field in wanted.__dataclass_fields__:
        if field in shares and getattr(wanted, field) is not None:
            assert getattr(found, field) == pytest.approx(getattr(wanted, field), abs=0.001)
        else:
            assert getattr(found, field) == getattr(wanted, field)


def test_a_comment_whose_letters_sacctmgr_made_small_is_read() -> None:
    small = read_comment(LINE.lower())
    entities = tuple(Entity(one.kind, one.name.lower()) for one in read_comment(LINE).entities)
    assert small == replace(read_comment(LINE), entities=entities)


def test_it_is_found_among_a_sites_own_words_and_the_last_one_counts() -> None:
    other = make_comment(example_cards.healthy())
    assert read_comment(f"JS1:abc= {other}\n{LINE}\tbilling=7") == read_comment(LINE)


def test_a_hostile_name_can_forge_no_word_of_the_line() -> None:
    finding = replace(
        example_cards.network().findings[0],
        entities=(Entity("node", f"x conf=low v=1 NCCL HEALTHY ,{NASTY}"),),
    )
    found = read_comment(make_comment(replace(example_cards.network(), findings=(finding,))))
    assert found.status == "DEGRADED"
    assert found.confidence == "high"
    assert len(found.entities) == 1
    assert re.fullmatch("[ -~\n]+", render_summary(found))


def test_entities_that_do_not_fit_are_counted() -> None:
    entities = tuple(Entity("node", f"{'%' * 60}{n}") for n in range(9))
    entities += (Entity("node", "n1"),)
    finding = replace(example_cards.network().findings[0], entities=entities[::-1])
    text = make_comment(replace(example_cards.network(), findings=(finding,)))
    assert len(text) <= 512
    found = read_comment(text)
    assert found.entities[0] == Entity("node", "n1")
    assert len(found.entities) + found.entities_left == 10
    assert "%25%25" in text


def test_a_comment_in_words() -> None:
    assert render_summary(read_comment(LINE)).splitlines() == [
        "DEGRADED (network), high confidence",
        "it cost the job about 33 s (0.4% of its time)",
        "slow by 28% for 6 min 20 s from 2026-08-02 14:40:10 UTC on",
        "who: node n13, port n13 mlx5_4, rank 17, gpu n13 GPU1",
        "9% of the ranks' time in collectives was waiting for the last rank to come",
        "data of 32 of 32 ranks, attempt 0",
        "0 critical findings, 2 warnings, 1 for information",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_comment"),
        ("NCCL HEALTHY", "no_comment"),
        ("xNCCL HEALTHY ranks=1 found=0C,0W,0I attempt=0 v=1", "no_comment"),
        (LINE.replace("v=1", "v=2"), "no_comment"),
        (LINE.replace("DEGRADED", "FINE"), "bad_comment"),
        (LINE.replace("network", "weather"), "bad_comment"),
        (LINE.replace("ranks=32/32", "ranks=x"), "bad_comment"),
        (LINE.replace("conf=high", "conf=sure"), "bad_comment"),
        (LINE.replace("14:40:10", "99:40:10"), "bad_comment"),
        (LINE.replace("attempt=0", "attempt=-1"), "bad_comment"),
        (LINE.replace("who=", "who=" + "x" * 70000), "no_comment"),
    ],
)
def test_what_is_no_comment_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_comment(text)
    assert refused.value.reason == reason


def test_numbers_beyond_the_lines_grammar_are_cut_to_what_can_be_read() -> None:
    card = example_cards.healthy()
    odd = replace(card, job=replace(card.job, restart=-(1 << 40)),
                  data_quality=replace(card.data_quality, ranks_seen=1 << 60))  # fmt: skip
    found = read_comment(make_comment(odd))
    assert (found.attempt, found.ranks_seen) == (0, 10**9 - 1)
