# SPDX-License-Identifier: Apache-2.0
import pytest

from nccl_inspector.live.controls import Controls, Order, arrange, press
from nccl_inspector.live.keyboard import keys_of
from nccl_inspector.live.view import Flow, LiveJob, LiveRank, Trouble, TroubleKind, View


def rank(number: int, node: str, per_s: float | None, *troubles: str) -> LiveRank:
    flow = None if per_s is None else Flow(per_s)
    found = tuple(Trouble(TroubleKind.LATE, 1.0, words) for words in troubles)
    return LiveRank(f"rank {number}", node, "GPU0", flow, None, "", None, 0, found)


def job(number: int, user: str, per_s: float, waiting_s: float, *ranks: LiveRank) -> LiveJob:
    flow = Flow(per_s, waiting_s=waiting_s, waitable_s=10.0)
    return LiveJob(number, "c", user, "gpu", 1, 1, 1, flow, None, 0, (), ranks)


VIEW = View(
    "n1",
    0.0,
    2.0,
    (
        job(12, "ada", 10.0, 5.0, rank(10, "n2", 3.0), rank(9, "n1", None, "is late by 3 ms")),
        job(7, "bob", 30.0, 1.0),
        job(100, "ada", 20.0, 9.0),
    ),
    (),
    (),
)


def after(*keys: str, start: Controls | None = None) -> Controls:
    controls = start or Controls()
    for key in keys:
        controls = press(controls, key, VIEW)
    return controls


def shown(*keys: str) -> list[int]:
    return [one.id for one in arrange(VIEW, after(*keys)).jobs]


def test_jobs_come_worst_first_and_s_takes_the_next_order() -> None:
    assert shown() == [12, 7, 100]
    assert shown("s") == [7, 100, 12]
    assert shown("s", "s") == [100, 12, 7]
    assert shown("s", "s", "s", "s") == [7, 12, 100]
    assert after(*"sssss").order == Order.WORST


def test_a_filter_finds_jobs_by_their_words_and_esc_shows_all_again() -> None:
    assert shown("/", *"ADA", "enter") == [12, 100]
    assert shown("/", *"adx", "backspace", "enter") == [12, 100]
    assert shown("/", *"bob", "enter", "esc") == [12, 7, 100]
    assert after("/", *"q").quit is False
    assert len(after("/", *"x" * 500).text) < 100


def test_enter_opens_the_chosen_job_and_esc_goes_back_to_it() -> None:
    opened = after("down", "down", "enter")
    assert opened.job_id == 7
    back = press(opened, "esc", VIEW)
    assert (back.job_id, back.chosen) == (None, 7)
    assert after("enter").job_id is None, "nothing was chosen"


def test_the_choice_stays_on_a_job_and_within_those_that_are_shown() -> None:
    assert after("up").chosen == 12
    assert after("down", *["pgdn"] * 3).chosen == 100
    assert after("down", "s", "down").chosen == 12, "the last one in this order"
    assert after("/", *"none", "enter", "down").chosen is None


def test_the_ranks_of_a_job_are_sorted_and_filtered_by_their_own_words() -> None:
    def names(controls: Controls) -> list[str]:
        return [one.name for one in arrange(VIEW, controls).jobs[0].ranks]

    start = Controls(job_id=12)
    assert names(after("s", start=start)) == ["rank 10", "rank 9"], "what is unknown comes last"
    assert names(after(*"ssss", start=start)) == ["rank 9", "rank 10"]
    assert names(after("/", *"late", "enter", start=start)) == ["rank 9"]
    assert names(after("/", *"N2", "enter", start=start)) == ["rank 10"]
    assert after("down", "pgdn", "up", start=start).scrolled == 10


def test_help_ends_with_any_key_and_q_quits() -> None:
    assert after("?").helping
    assert not after("?", "q").helping
    assert after("q").quit


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("\x1b[A\x1bOB\x1b[5~\x1b[6~", ["up", "down", "pgup", "pgdn"]),
        ("\r\n\x7f", ["enter", "enter", "backspace"]),
        ("\x1b", ["esc"]),
        ("aé/", ["a", "é", "/"]),
        ("\x1b[1;5C\x1b[3~q", ["q"]),
    ],
)
def test_what_a_terminal_sends_becomes_keys(sent: str, keys: list[str]) -> None:
    assert keys_of(sent) == keys
