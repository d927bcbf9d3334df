# SPDX-License-Identifier: Apache-2.0
"""The report for a terminal, of hand-made cards."""

import re
from dataclasses import replace

import pytest

from nccl_inspector.model.card import DEGRADED, HEALTHY, Degradation, Period, TimeLine
from nccl_inspector.model.wording import (
    amount,
    change,
    clock,
    compact,
    duration,
    elapsed,
    from_to,
    percent,
)
from nccl_inspector.render.text import render_text
from nccl_inspector.render.timeline_text import tracks
from nccl_inspector.system.printable import plain, visible
from tests.support import example_cards
from tests.support.example_cards import CARDS, DIP, START_S, WINDOW_S


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("everything", [False, True], ids=["short", "all"])
@pytest.mark.parametrize("name", CARDS)
def test_every_line_fits_100_columns_and_is_printable_ascii(name: str, everything: bool) -> None:
    text = render_text(CARDS[name](), everything)
    assert max(map(len, text.split("\n"))) <= 100
    assert re.fullmatch(r"[ -~\n]*", text)


@pytest.mark.parametrize("name", CARDS)
def test_without_colour_there_is_no_escape_and_with_it_the_words_are_the_same(name: str) -> None:
    card = CARDS[name]()
    painted = render_text(card, colour=True)
    assert "\x1b" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == render_text(card)


def test_the_verdict_comes_before_the_findings_and_those_before_the_figures() -> None:
    text = render_text(example_cards.network())
    places = [
        text.index(f"\n{word}")
        for word in ("VERDICT", "FINDINGS", "COMMUNICATORS", "TRANSPORT", "TIMELINE", "STRAGGLERS",
                     "LINKS", "BASELINE", "MISSING")
    ]  # fmt: skip
    assert places == sorted(places)
    assert "VERDICT  DEGRADED (network), high confidence: 6 min 20 s" in text
    assert "It cost the job about 33 s (0.4% of its time)." in flat(text)
    assert " 9% of the ranks' time in collectives was waiting for the last rank " in flat(text)


def test_of_a_healthy_job_the_text_does_not_say_that_ranks_waited() -> None:
    card = example_cards.network()
    healthy = replace(card.verdict, status=HEALTHY, waiting_share=0.98)
    assert "98%" in flat(render_text(replace(card, verdict=replace(healthy, status=DEGRADED))))
    assert "98%" not in flat(render_text(replace(card, verdict=healthy)))


def test_a_finding_has_its_time_who_evidence_and_action() -> None:
    text = flat(render_text(example_cards.network()))
    assert "1 W 2026-08-02 14:40:10 to 14:46:30 UTC: network path slow" in text
    assert "who: node n13, port n13 mlx5_4" in text
    assert "bandwidth: 243 GB/s (compared with 338 GB/s; of 38; boxes)" in text
    assert "-> check cable and port of n13 mlx5_4" in text


def test_five_findings_are_shown_the_worst_first_and_all_with_all() -> None:
    card = example_cards.network()
    (critical,) = example_cards.hang().findings
    card = replace(card, findings=(*card.findings, *card.findings, critical))
    text = render_text(card)
    assert "\n 1 C " in text
    assert "\n 5 " in text
    assert "\n 6 " not in text
    assert "and 2 findings more (--all shows all)" in text
    assert "\n 7 I" in render_text(card, everything=True)


def test_the_time_line_shows_the_dip_where_it_was() -> None:
    lines = render_text(example_cards.network()).split("\n")
    at = next(n for n, line in enumerate(lines) if line.startswith(" mixed ReduceScatter"))
    row, marks = lines[at + 1], lines[at + 2]
    assert row.startswith("   14:00 ")
    minutes = row.removeprefix("   14:00 ")
    assert minutes[:33] == "#" * 33  # a minute a character
    assert minutes[34:38] == "    "  # nothing ended
    assert set(minutes[41:46]) == {"-"}
    assert marks.index("^") == len("   14:00 ") + 40
    assert marks.count("^") == 7


def test_slow_series_come_first_and_one_of_each_class_follows() -> None:
    assert [track.name.split()[0] for track in tracks(example_cards.network(), 3)] == [
        "throughput", "mixed", "mixed", "nvlink",
    ]  # fmt: skip
    assert [track.name.split()[0] for track in tracks(example_cards.healthy(), 3)] == [
        "mixed", "nvlink", "net",
    ]  # fmt: skip


def test_a_short_job_says_so_in_place_of_a_time_line() -> None:
    assert "TIMELINE  1 min 30 s: too short to find slow times in" in render_text(
        example_cards.straggler()
    )


def test_a_column_that_nobody_has_anything_in_is_left_out() -> None:
    assert " expect " in render_text(example_cards.network())
    assert " expect " not in render_text(example_cards.bare())


def test_a_short_message_has_its_share_of_the_expected_bandwidth_in_brackets() -> None:
    text = render_text(example_cards.network())
    assert re.search(r"ReduceScatter 128-256MB .* 92% ", text)
    assert re.search(r"AllReduce +32-64MB .* \(84%\) ", text)


def test_a_hang_says_who_never_called_and_who_waits() -> None:
    text = flat(render_text(example_cards.hang()))
    assert "VERDICT HUNG, medium confidence: rank 2 (n11 GPU2, pid 4711) stopped calling" in text
    assert "held up: rank 0, rank 1" in text
    assert "next: ssh n11" in text
    assert "AllReduce 1841 of default_pg: divergent, in flight for 37 min" in text
    assert "never issued it: rank 2" in text
    assert "waiting (31): rank 0, rank 1" in text


def test_a_hang_that_is_only_suspected_says_so_and_of_whom_nothing_is_known() -> None:
    (one,) = example_cards.hang().hangs
    one = replace(one, confirmed=False, not_measured=("rank 9",))
    text = flat(render_text(replace(example_cards.hang(), hangs=(one,))))
    assert "AllReduce 1841 of default_pg: divergent (suspected), in flight" in text
    assert "not measured: rank 9" in text


def test_a_slow_time_of_a_straggler_says_that_waiting_is_in_it() -> None:
    line = example_cards.network().timeline
    slow = replace(line.degradations[0], kind="straggler")
    card = replace(example_cards.network(), timeline=replace(line, degradations=(slow,)))
    text = render_text(card)
    assert "ranks waited longer in mixed ReduceScatter 128-256MB of default_pg" in flat(text)
    assert "with the waiting 338 -> 243 GB/s (-28%)" in flat(text)
    # The line is of T, which did not change: no bandwidth is marked as slow.
    strips = text[text.index("TIMELINE") : text.index("LINKS AND GPUS")].splitlines()
    below = {mark for line in strips if set(line) <= set(" ^w") for mark in line}
    assert below == {" ", "w"}
    (table,) = [line for line in text.splitlines() if line.split()[:1] == ["mixed"]][:1]
    assert "-28%" not in table


def test_a_line_of_bandwidth_is_not_held_against_a_bandwidth_with_waiting() -> None:
    line = example_cards.network().timeline
    slow = replace(line.degradations[0], kind="straggler", baseline_gbs=100.0, bus_gbs=50.0)
    card = replace(example_cards.network(), timeline=replace(line, degradations=(slow,)))
    (track,) = [one for one in tracks(card, 9) if "ReduceScatter" in one.name]
    assert (track.baseline or 0.0) > 300.0
    assert (track.slow, track.waited) == ((), (slow.period,))


def test_no_bandwidth_of_small_operations_is_drawn_beside_that_of_large_ones() -> None:
    card = example_cards.network()
    line = card.timeline
    small = replace(line.series[0], transport="small", size_class=3)
    with_small = replace(card, timeline=replace(line, series=(small, *line.series)))
    assert [one.name for one in tracks(with_small, 9)] == [one.name for one in tracks(card, 9)]
    alone = replace(card, timeline=replace(line, series=(small,), degradations=()))
    assert any(one.name.startswith("small") for one in tracks(alone, 9))


def test_one_of_something_is_not_said_in_the_plural() -> None:
    assert amount(1.0, "nodes") == "1 node"
    assert amount(2.0, "nodes") == "2 nodes"
    assert amount(1.0, "times") == "1 times"


def test_all_that_is_missing_is_said() -> None:
    text = flat(render_text(example_cards.failed()))
    for words in (
        "no summary of 2 nodes of job 48214: m[2-3]",
        "only 48213, 48214 have measurements",
        "no data of 18 of 48 ranks",
        "did not end in order, data up to the last event: rank 9 (n12), rank 10 (n12)",
        "events that were not measured: no_slot 12",
        "records that could not be read: bad_magic 1, torn 2",
        "counted only, NCCL 2.18.3 tells no times: rank 4, rank 5",
        "no counters, the setting is off: n[11-13]",
        "Broadcast 12 (3 MB)",
        "sources boxes (in part: 18 ranks have none); not there: throughput",
        "n11: counters until 61 s before the job's end",
    ):
        assert words in text
    assert "MISSING  nothing" in render_text(example_cards.healthy())


def test_who_was_only_the_slowest_is_not_told_of_a_job_in_which_nobody_is_named() -> None:
    slowest = replace(example_cards.network().stragglers[1], flagged=False)
    card = replace(example_cards.healthy(), stragglers=(slowest,))
    assert "STRAGGLERS" not in render_text(card)
    assert "rank 16" in render_text(card, everything=True)
    nobody = replace(card, stragglers=(replace(slowest, late_ns=0.0),))
    assert "STRAGGLERS" not in render_text(nobody, everything=True)


def test_counters_that_some_nodes_do_not_have_are_said_beside_the_others() -> None:
    text = render_text(example_cards.failed())
    links, missing = text.index("LINKS AND GPUS"), text.index("\nMISSING")
    assert links < text.index("no counters, the setting is off: n[11-13]") < missing


def test_a_gap_of_all_processes_does_not_list_them() -> None:
    assert "not measured: all 7,000 processes" in flat(render_text(example_cards.huge()))


def test_what_is_left_out_is_said_with_its_number_and_all_has_it() -> None:
    text = flat(render_text(example_cards.huge()))
    less = (
        "left out: 1,990 kinds of operation that took less time, among them all of 99 communicators"
    )
    assert f"{less} (--all shows all)" in text
    assert "rank 11 and 8,180 more" in text
    assert "rank 8191" in flat(render_text(example_cards.huge(), everything=True))


def test_the_ten_kinds_of_operation_that_took_the_most_time_are_shown() -> None:
    card = example_cards.network()
    few = replace(card, operations=tuple(map(replace, card.operations * 9)))
    shown = render_text(few).partition("COMMUNICATORS")[2].partition("TRANSPORT")[0]
    assert len(re.findall(r"^   [A-Z]\w+ .* [0-9]", shown, re.M)) == 10
    busiest = max(card.operations, key=lambda one: one.count * one.time_ns)
    assert len(re.findall(rf"^   {busiest.func} ", shown, re.M)) >= 9


def test_array_task_steps_attempts_and_components_are_in_the_head() -> None:
    text = flat(render_text(example_cards.straggler()))
    assert "job 48213 (array task 810_3), name gpt-pretrain, user amy" in text
    assert "32 processes in 2 steps, attempt 1 (--attempt shows 0)" in text
    assert "job 48213 (het: components 48213, 48214)" in flat(render_text(example_cards.failed()))
    assert "nodes 48213: n[11-14]; 48214: m[1-4]" in flat(render_text(example_cards.failed()))


def test_no_data_says_why_and_shows_no_figures() -> None:
    text = render_text(example_cards.no_data())
    assert "VERDICT  NO DATA" in text
    assert "the site's kill switch was on" in text
    assert "COMMUNICATORS" not in text


def test_a_degradation_at_the_edge_of_time_does_no_harm() -> None:
    slow = Degradation(Period(-1e300, 1e300), "mixed", "x", "AllReduce", 20, -0.5, 2.0, 1.0)
    card = replace(
        example_cards.network(),
        timeline=TimeLine(WINDOW_S, START_S, 20, (), None, (slow,)),
        heat=(),
    )
    for columns in (60, 80, 100):
        assert max(map(len, render_text(card, columns=columns).split("\n"))) <= columns
    assert render_text(card, columns=1) == render_text(card, columns=60)
    assert render_text(card, columns=500) == render_text(card)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (duration(412_000), "412 us"),
        (duration(12.1e6), "12.1 ms"),
        (duration(999_600), "1.00 ms"),
        (duration(90e9), "90.0 s"),
        (duration(0), "0 ns"),
        (elapsed(380), "6 min 20 s"),
        (elapsed(8047), "2 h 14 min"),
        (elapsed(59.7), "1 min"),
        (elapsed(86400 * 3 + 7300), "3 d 2 h"),
        (percent(0.28), "28%"),
        (percent(0.004), "0.4%"),
        (percent(0.0004), "<0.1%"),
        (percent(None), "-"),
        (change(-0.28), "-28%"),
        (change(0.0), "+0%"),
        (compact(9999), "9999"),
        (compact(41_212), "41.2k"),
        (compact(10**18), "1000000T"),
        (amount(0.99, "share"), "99%"),
        (amount(3, "events"), "3 events"),
        (amount(2220, "s"), "37 min"),
        (clock(1e300), "-"),
        (from_to(DIP), "2026-08-02 14:40:10 to 14:46:30 UTC"),
        (from_to(Period(0, 86400)), "1970-01-01 00:00:00 to 1970-01-02 00:00:00 UTC"),
    ],
)
def test_figures_in_words(said: str, words: str) -> None:
    assert said == words


@pytest.mark.parametrize("text", ["", "a b~", "\x7f", "\x1b[31m", "a\nb", "a\tb", "ü", "\ud800"])
def test_plain_text_is_printable_ascii_as_long_as_it_was(text: str) -> None:
    assert re.fullmatch("[ -~]*", plain(text))
    assert len(plain(text)) == len(text)


def test_visible_text_keeps_letters_of_any_script() -> None:
    assert visible("größe-模型\u202e\x1b\u2028\ud800\u200b") == "größe-模型?????"
