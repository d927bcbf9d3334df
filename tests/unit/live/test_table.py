# SPDX-License-Identifier: Apache-2.0
import pytest

from nccl_inspector.live.screen import fit
from nccl_inspector.live.table import ScreenLine, age, number, render
from nccl_inspector.live.view import Flow, LiveJob, LiveRank, Trouble, TroubleKind, View, gather

HOSTILE = "\x1b[2J\x07\u202eevil\n\u4e2d"
FLOW = Flow(1234.5, {"local": 2e12, "net": 3e9}, {"local": 10.0, "net": 1.0}, 3.0, 10.0)
HUNG = Trouble(TroubleKind.HUNG, 75.0, "has waited 75 s in AllReduce of 1-2MB in tp")


def rank(name: str = "rank 3", troubles: tuple[Trouble, ...] = (HUNG,)) -> LiveRank:
    return LiveRank(name, "n1", "GPU3", FLOW, 75.0, "AllReduce", 0.4, 0, troubles)


def view(name: str = "amy", ranks: int = 2) -> View:
    found = tuple(rank(f"rank {number}", (HUNG,) if number else ()) for number in range(ranks))
    job = LiveJob(4711, "c1", name, "gpu", 4, 7, 8, FLOW, 75.0, 0, gather(found), found)
    return View("n1", 1763723456.0, 2.0, (job,), ("job 12: unreadable",), ("GB/s: a note",))


def texts(lines: list[ScreenLine]) -> list[str]:
    return [line.text for line in lines]


def test_a_job_at_eighty_columns_has_what_is_wrong_below() -> None:
    assert texts(render(view(), False, 80)) == [
        "n1  2025-11-21 11:10:56 UTC  1 job, 8 ranks; rates over 2 s",
        "",
        " JOB USER RANKS OPS/S LOCAL  NET MIXED P2P WAIT OLDEST DROPS",
        "4711 amy    7/8 1.23k   200 3.00     -   -  30%    75s     0",
        "  ! rank 1 (n1, GPU3) has waited 75 s in AllReduce of 1-2MB in tp",
        "",
        "job 12: unreadable",
        "GB/s: a note",
    ]


def test_at_two_hundred_columns_it_stands_beside() -> None:
    row = texts(render(view(), False, 200))[3]
    assert row.endswith("0  rank 1 (n1, GPU3) has waited 75 s in AllReduce of 1-2MB in tp")


@pytest.mark.parametrize("width", [40, 60, 79, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for by_rank in (False, True):
        lines = texts(render(view("u" * 300), by_rank, width))
        assert max(map(len, lines)) <= width


def test_hostile_names_do_not_reach_the_terminal() -> None:
    bad = Trouble(TroubleKind.LATE, 1.0, HOSTILE)
    ranks = (rank(HOSTILE, (bad,)),)
    job = LiveJob(1, HOSTILE, HOSTILE, "", 1, 1, 1, None, None, None, gather(ranks), ranks)
    lines = render(View(HOSTILE, 0.0, None, (job,), (HOSTILE,), (HOSTILE,)), True, 200)
    assert all(" " <= char <= "~" for line in lines for char in line.text)
    assert any("evil" in line.text for line in lines)


def test_what_is_not_known_is_a_dash() -> None:
    job = LiveJob(1, "", "amy", "", 1, 1, 1, None, None, None, (), ())
    row = texts(render(View("n1", 0.0, None, (job,), (), ()), False, 80))[3]
    assert row.split() == ["1", "amy", "1", *["-"] * 8]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.044, "0.04"), (9.996, "10.0"), (99.96, "100"), (999.6, "1.00k"),
     (12345, "12.3k"), (2.5e6, "2.50M"), (7e9, "7.00G")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.04, "0.0s"), (9.96, "10s"), (119, "119s"), (120, "2m")]
)
def test_ages_are_short(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_a_low_terminal_shows_the_worst_and_says_what_is_missing() -> None:
    lines = [ScreenLine(str(number)) for number in range(10)]
    assert texts(fit(lines, 4)) == ["0", "1", "2", "(7 lines more)"]
    assert fit(lines, 10) == lines


def test_a_low_terminal_scrolls_to_the_end_and_no_further() -> None:
    lines = [ScreenLine(str(number)) for number in range(10)]
    assert texts(fit(lines, 4, 2)) == ["2", "3", "4", "(5 lines more)"]
    assert texts(fit(lines, 4, 99)) == ["6", "7", "8", "9"]


def test_the_chosen_line_is_always_shown() -> None:
    for at in range(10):
        lines = [ScreenLine(str(number), marked=number == at) for number in range(10)]
        assert str(at) in texts(fit(lines, 4))
