# SPDX-License-Identifier: Apache-2.0
"""The page: one file, nothing fetched, every text escaped."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from nccl_inspector.model import rules
from nccl_inspector.model.card import RuleId, Series, TimeLine
from nccl_inspector.render.charts import (
    HEIGHT,
    Plot,
    bandwidth_bars,
    heat_map,
    plots,
    ticks,
    waiting_bars,
)
from nccl_inspector.render.heat import bound_heat
from nccl_inspector.render.html import render_html
from nccl_inspector.render.output_limits import PAGE
from tests.support import example_cards
from tests.support.example_cards import CARDS, START_S

NOW = datetime(2026, 8, 2, 17, tzinfo=UTC)
VOID = {"meta", "br", "link", "img", "input", "hr"}
TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "small", "section", "strong", "p",
    "dl", "dt", "dd", "ol", "ul", "li", "div", "span", "b", "i", "figure", "figcaption", "svg",
    "rect", "line", "polyline", "table", "thead", "tbody", "tr", "th", "td", "footer", "details",
    "summary",
}  # fmt: skip


class Page(HTMLParser):
    """What a page is made of; its elements must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


@pytest.mark.parametrize("name", CARDS)
def test_a_page_has_only_elements_of_ours_and_nothing_that_runs_or_fetches(name: str) -> None:
    text = render_html(CARDS[name](), NOW)
    page = Page(text)
    assert page.tags <= TAGS
    assert not page.attributes & {"src", "href", "action", "data", "srcset"}
    assert not [one for one in page.attributes if one.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    assert "Content-Security-Policy" in text


@pytest.mark.parametrize(
    "nasty", [example_cards.NASTY, "</style><script>alert(1)</script>", "{{ 7777*3 }}"]
)
def test_a_text_of_a_user_is_only_a_text(nasty: str) -> None:
    text = render_html(example_cards.hostile(nasty), NOW)
    page = Page(text)
    assert "script" not in page.tags
    assert "<script" not in text
    assert "23331" not in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffd]", text)
    text.encode("utf-8")


def test_a_name_in_another_script_stays_as_it_is() -> None:
    card = replace(
        example_cards.healthy(), job=replace(example_cards.healthy().job, name="größe-模型")
    )
    assert "größe-模型" in render_html(card, NOW)


def test_verdict_findings_charts_and_tables_are_there() -> None:
    page = Page(render_html(example_cards.network(), NOW))
    text = " ".join(" ".join(page.texts).split())
    for words in (
        "DEGRADED (network)", "high confidence", "It cost the job about 33 s",
        "check cable and port of n13 mlx5_4", "Time line", "Who came late", "Bus bandwidth",
        "Waiting", "COMMUNICATORS", "STRAGGLERS", "LINKS AND GPUS", "BASELINE", "Nothing.",
        "92% of expected, -2% against baseline", "mixed ReduceScatter 128-256MB of default_pg",
        "asked for --switches=1@10:00, on leaf1, leaf2",
    ):  # fmt: skip
        assert words in text
    assert {"svg", "polyline", "rect"} <= page.tags


def test_each_finding_says_what_it_means_and_one_of_a_later_release_nothing() -> None:
    card = example_cards.hang()
    text = " ".join(" ".join(Page(render_html(card, NOW)).texts).split())
    assert " ".join(rules.HANG_DIVERGENT.meaning.split()) in text
    assert text.count("what this means") == len(card.findings)
    odd = RuleId(f"{example_cards.NASTY} later")
    later = replace(card, findings=tuple(replace(one, rule=odd) for one in card.findings))
    page = Page(render_html(later, NOW))
    assert "what this means" not in " ".join(page.texts)
    assert "script" not in page.tags


def test_a_page_of_8192_ranks_is_bounded() -> None:
    text = render_html(example_cards.huge(), NOW)
    assert len(text) < 1_000_000
    assert "processes, none of them later," in text
    left_out = "among them all of 36 communicators (report --json has all)"
    assert left_out in " ".join(text.split())


def test_the_dip_is_shaded_where_it_was_and_overlapping_ones_once() -> None:
    throughput, world, gather, nvlink = plots(example_cards.network(), PAGE)[:4]
    assert world.bands == throughput.bands == ((299.8, 47.3),)
    assert gather.bands == world.bands
    assert nvlink.bands == ()
    assert len(world.paths) == 2  # before and after the gap
    ys = [float(point.partition(",")[2]) for path in world.paths for point in path]
    assert 0 <= min(ys) <= max(ys) <= 100


def test_a_window_alone_between_gaps_is_seen() -> None:
    values = (2.0, 2.0, None, 3.0, None)
    line = TimeLine(10, START_S, 5, (Series("net", "x", "Send", 20, values, (0, 1, 0)),))
    (plot,) = plots(replace(example_cards.healthy(), timeline=line), PAGE)
    _, (first, last) = plot.paths
    assert first != last


def test_a_course_of_two_windows_is_no_chart_and_an_axis_says_where_it_begins() -> None:
    def plots_of(*values: float) -> list[Plot]:
        line = TimeLine(10, START_S, 5, (Series("net", "x", "Send", 20, values, (0, 1, 0)),))
        return plots(replace(example_cards.healthy(), timeline=line), PAGE)

    assert plots_of(2.0, 3.0) == []
    assert [one.low for one in plots_of(1.0, 3.0, 2.0)] == ["0"]
    assert [one.low for one in plots_of(2.9, 3.0, 3.0)] == ["2.52 (not 0)"]


@pytest.mark.parametrize(
    "values", [(1.7e308, 1e308, 1e307), (5e-324, 0.0, 5e-324), (-1e308, 1e308, 1.0)], ids=str
)
def test_numbers_at_the_edge_of_what_can_be_written_stay_within_the_plot(
    values: tuple[float, ...],
) -> None:
    line = TimeLine(10, START_S, 5, (Series("net", "x", "Send", 20, values, (1, 1, 1)),))
    for plot in plots(replace(example_cards.healthy(), timeline=line), PAGE):
        heights = [float(point.split(",")[1]) for path in plot.paths for point in path]
        assert all(0 <= one <= HEIGHT for one in (*heights, plot.baseline_y or 0.0))


def test_ticks_are_at_round_times() -> None:
    assert [tick.text for tick in ticks(example_cards.network().timeline)] == [
        "14:00", "14:30", "15:00", "15:30", "16:00",
    ]  # fmt: skip
    assert ticks(TimeLine()) == []
    week = TimeLine(600, START_S + 7, 7 * 144)
    assert all(tick.text.endswith("00:00") for tick in ticks(week))
    assert len(ticks(week)) < 7


def test_the_heat_map_has_the_latest_first_and_runs_as_one_rectangle() -> None:
    found = heat_map(example_cards.network())
    assert found is not None
    assert found.names[0] == "rank 17"
    late = [cell for cell in found.cells if cell[1] == 0]
    assert [cell[3] for cell in late][-1] == 5
    assert len(late) < 8
    assert heat_map(example_cards.nothing()) is None


def test_heat_is_bounded_by_the_latest_and_by_means_over_windows() -> None:
    heat = tuple((f"rank {n}", (float(n), None, 3.0 * n, None)) for n in range(100))
    assert bound_heat(heat, 2, 2) == (("rank 99", (99.0, 297.0)), ("rank 98", (98.0, 294.0)))
    assert bound_heat(heat, 200, 4)[0] == heat[-1]
    assert bound_heat((), 2, 2) == ()


def test_bars_are_shares_of_the_longest() -> None:
    bars = bandwidth_bars(example_cards.network())
    assert max(max(bar.share, bar.expected or 0, bar.baseline or 0) for bar in bars) == 100
    assert bars[0].name == "ReduceScatter 128-256MB"
    assert bars[0].words == "338 GB/s, 92% of expected, -2% against baseline"
    assert [bar.words for bar in waiting_bars(example_cards.network())] == ["18%", "11%", "4%"]
    assert bandwidth_bars(example_cards.nothing()) == []
    card = example_cards.network()
    negative = tuple(replace(one, bus_gbs=-1.0) for one in card.operations)
    assert bandwidth_bars(replace(card, operations=negative)) == []
