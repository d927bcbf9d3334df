# SPDX-License-Identifier: Apache-2.0
from nccl_inspector.agent.job_order import TURN_S, Turns
from tests.support.clocks import StillClock


class Worker(StillClock):
    """Jobs that need some time, and take no more than they are given."""

    def __init__(self, needs_s: dict[int, float], users: dict[int, int]) -> None:
        super().__init__()
        self.turns = Turns(self)
        self._needs_s, self._users = needs_s, users

    def run_pass(self, total_s: float) -> tuple[list[int], set[int]]:
        """Return the jobs that had a turn, and those of them that could do all of their work."""
        served, whole = [], set()
        for job, end_s in self.turns.share(self._users, total_s):
            served.append(job)
            need_s = self._needs_s[job]
            if self.used_s + need_s <= end_s:
                whole.add(job)
            self.used_s = min(self.used_s + need_s, end_s)
        return served, whole


HOSTILE = range(1, 21)


def test_an_honest_job_is_served_in_each_pass_beside_twenty_that_never_end() -> None:
    needs_s = dict.fromkeys(HOSTILE, 10.0) | {99: 0.2}
    worker = Worker(needs_s, dict.fromkeys(HOSTILE, 1001) | {99: 1002})
    for number in range(50):
        before_s = worker.used_s
        _, whole = worker.run_pass(1.0)
        assert whole == {99}, number
        assert worker.used_s - before_s <= 1.0 + 2 * TURN_S


def test_who_was_left_out_comes_first_in_the_next_pass() -> None:
    jobs = range(100)
    worker = Worker(dict.fromkeys(jobs, 10.0), dict.fromkeys(jobs, 1001))
    served: list[int] = []
    for _ in range(3):
        now, _ = worker.run_pass(1.0)
        assert 30 <= len(now) <= 52
        assert set(now).isdisjoint(worker.turns.left_out)
        served += now
    assert set(served) == set(jobs), "all within three passes"


def test_every_user_has_a_turn_where_there_are_more_than_time_allows() -> None:
    users = {job: job for job in range(200)}
    worker = Worker(dict.fromkeys(users, 10.0), users)
    seen: set[int] = set()
    for _ in range(5):
        seen |= set(worker.run_pass(1.0)[0])
    assert seen == set(users)


def test_what_one_does_not_need_the_others_may_have() -> None:
    worker = Worker({1: 0.001, 2: 0.9}, {1: 1001, 2: 1002})
    worker.run_pass(1.0)  # nothing is known of either
    assert worker.run_pass(1.0)[1] == {1, 2}


def test_one_job_has_its_turn_however_short_the_time_is() -> None:
    worker = Worker({1: 1.0, 2: 1.0}, {1: 1001, 2: 1001})
    assert [worker.run_pass(0)[0] for _ in range(4)] == [[1], [2], [1], [2]]
    assert worker.turns.left_out == [1]


def test_jobs_that_have_ended_are_forgotten() -> None:
    users = {1: 1001, 2: 1001}
    worker = Worker({1: 0.1, 2: 0.1}, users)
    worker.run_pass(1.0)
    del users[1]
    assert worker.run_pass(1.0)[0] == [2]
