# SPDX-License-Identifier: Apache-2.0
"""Which service should work without a database, by Slurm's answers and the signs of work."""

import pytest

from nccl_inspector.controller.sign_of_life import OLD_S
from nccl_inspector.controller.slurm_ping import Answer, parse_ping
from nccl_inspector.controller.slurmctld_turn import (
    FIRST_S,
    SURE_S,
    Seen,
    Slurmctld,
    Step,
    Turn,
    next_step,
)

BOTH = ("one", "two")
ONE, TWO = Answer(BOTH, "one"), Answer(BOTH, "two")
QUIET_S = OLD_S + 1


def after(here: str, *said: tuple[float, Answer | None]) -> Turn:
    """Whose turn it is after these answers, at the time of the last one."""
    known = Slurmctld(0.0)
    for now_s, answer in said:
        known = known.after(now_s, answer, here)
    return known.turn(said[-1][0], here)


def waiting(turn: Turn, here: str, worker: str = "", quiet_s: float = 0.0) -> Step:
    return next_step(Seen(turn, False, worker, quiet_s), here, "one")


def working(turn: Turn, here: str, asking: str) -> Step:
    return next_step(Seen(turn, True, here, 0.0, asking), here, "one")


def test_the_service_on_slurmctlds_host_is_the_one_that_works() -> None:
    assert after("one", (1, ONE)) is Turn.HERE
    assert after("two", (1, ONE)) is Turn.ELSEWHERE
    assert waiting(Turn.HERE, "one") is Step.WORK
    assert waiting(Turn.ELSEWHERE, "two") is Step.WAIT


def test_an_unanswered_question_changes_nothing() -> None:
    nothing = tuple((5.0 * n, None) for n in range(2, 50))
    for here, turn in (("one", Turn.HERE), ("two", Turn.ELSEWHERE)):
        assert after(here, (1, ONE), *nothing) is turn
        assert after(here, (1, ONE), *nothing, (300, TWO)) is turn, "the first one is not sure yet"


def test_failed_questions_between_two_answers_take_nothing_from_them() -> None:
    assert after("two", (1, ONE), (10, TWO), (20, None), (10 + SURE_S, TWO)) is Turn.HERE


def test_one_answer_as_at_a_restart_of_slurmctld_does_not_move_the_work() -> None:
    assert after("one", (1, ONE), (6, TWO)) is Turn.HERE
    assert after("one", (1, ONE), (6, TWO), (11, ONE), (6 + SURE_S, TWO)) is Turn.HERE
    assert after("one", (1, ONE), (6, TWO), (5 + SURE_S, TWO)) is Turn.HERE


def test_answers_that_agree_for_some_time_move_the_work() -> None:
    said = (1.0, ONE), (6.0, TWO), (6 + SURE_S, TWO)
    assert after("one", *said) is Turn.ELSEWHERE
    assert after("two", *said) is Turn.HERE


def test_two_slow_answers_about_a_dead_host_are_enough() -> None:
    assert after("two", (1, ONE), (20, TWO), (20 + SURE_S, TWO)) is Turn.HERE


@pytest.mark.parametrize(
    ("here", "answer"),
    [("one", Answer(("one",), "one")), ("three", ONE), ("two", Answer(("one",), "one"))],
    ids=["a single slurmctld", "no host of slurmctld", "another one's single slurmctld"],
)
def test_where_slurm_has_no_say_the_lock_decides(here: str, answer: Answer) -> None:
    turn = after(here, (1, answer))
    assert turn is Turn.ANYBODY
    assert waiting(turn, here) is Step.WORK
    assert working(turn, here, "one") is Step.WORK


def test_without_an_answer_since_the_start_the_lock_decides_soon() -> None:
    assert Slurmctld(100.0).turn(100 + FIRST_S - 1, "one") is Turn.UNKNOWN
    assert waiting(Turn.UNKNOWN, "one") is Step.WAIT
    assert Slurmctld(100.0).turn(100 + FIRST_S, "one") is Turn.ANYBODY, "it hangs"
    assert after("one", (1, None)) is Turn.ANYBODY, "it fails"
    assert after("two", (1, None), (6, ONE)) is Turn.ELSEWHERE, "the first real answer counts"


def test_a_service_that_is_alone_on_another_host_than_slurmctlds_works_in_the_end() -> None:
    assert waiting(Turn.ELSEWHERE, "two", quiet_s=OLD_S - 1) is Step.WAIT
    assert waiting(Turn.ELSEWHERE, "two", quiet_s=QUIET_S) is Step.WORK
    assert waiting(Turn.ELSEWHERE, "two", worker="one", quiet_s=QUIET_S) is Step.WORK
    assert working(Turn.ELSEWHERE, "two", asking="") is Step.WORK, "and goes on working"


def test_a_service_gives_way_only_to_the_one_on_slurmctlds_host() -> None:
    assert working(Turn.ELSEWHERE, "two", "one.example.org") is Step.GIVE_WAY
    assert working(Turn.ELSEWHERE, "two", "three") is Step.WORK
    # A host that is cut off sees the other one as down, and asks. It is not believed.
    assert working(Turn.HERE, "one", "two") is Step.WORK


def test_nobody_takes_the_lock_while_another_host_gives_signs_of_work() -> None:
    for turn in Turn:
        assert waiting(turn, "one", worker="two", quiet_s=1) is Step.WAIT
    assert waiting(Turn.HERE, "one", worker="two", quiet_s=QUIET_S) is Step.WORK


def test_a_service_that_starts_again_on_its_host_works_at_once() -> None:
    for turn in (Turn.HERE, Turn.ANYBODY):
        assert waiting(turn, "one", worker="one.example.org") is Step.WORK


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Slurmctld(primary) at n1 is UP\n", Answer(("n1",), "n1")),
        ("Slurmctld(primary) at N1.x.org is DOWN\nSlurmctld(backup) at n2 is UP\n",
         Answer(("n1", "n2"), "n2")),
        ("Slurmctld(primary) at n1 is UP\nSlurmctld(backup1) at n2 is UP\n"
         "Slurmctld(backup2) at n3 is DOWN\n", Answer(("n1", "n2", "n3"), "n1")),
        ("Slurmctld(primary) at n1 is DOWN\nSlurmctld(backup) at n2 is DOWN\n", None),
        ("*****************************************\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n",
         None),
        ("", None),
    ],
)  # fmt: skip
def test_the_first_of_slurms_controllers_that_answers_works(
    said: str, answer: Answer | None
) -> None:
    assert parse_ping(said) == answer
