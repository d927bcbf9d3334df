# SPDX-License-Identifier: Apache-2.0
from nccl_inspector.agent.beat_age import Beats, Now

S = 10**9


def test_the_first_look_goes_by_the_unix_time_of_the_beat() -> None:
    assert Beats().silent_s("a", 1, 100 * S, Now(107 * S, 5.0)) == 7


def test_a_beat_that_stays_grows_old_by_our_own_clock() -> None:
    beats = Beats()
    beats.silent_s("a", 1, 100 * S, Now(101 * S, 5.0))
    # The system's clock was set back meanwhile.
    assert beats.silent_s("a", 1, 100 * S, Now(2 * S, 25.0)) == 21


def test_a_step_of_the_clock_is_no_silence() -> None:
    beats = Beats()
    beats.silent_s("a", 1, 100 * S, Now(101 * S, 5.0))
    an_hour_on = Now(3707 * S, 10.0)
    assert beats.silent_s("a", 2, 106 * S, an_hour_on) <= 5


def test_a_beat_from_the_future_is_of_now() -> None:
    assert Beats().silent_s("a", 1, 200 * S, Now(100 * S, 5.0)) == 0


def test_who_is_not_seen_is_forgotten() -> None:
    beats = Beats()
    beats.silent_s("a", 1, 0, Now(0, 0.0))
    beats.keep([])
    assert beats.silent_s("a", 1, 50 * S, Now(51 * S, 60.0)) == 1
