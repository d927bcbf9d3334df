# SPDX-License-Identifier: Apache-2.0
"""Numbers that a box claims and the job cannot make true: how many ranks a communicator has."""

import subprocess
import sys
from dataclasses import replace

import pytest

from nccl_inspector.analysis.claims import (
    RANKS_A_NODE_MAX,
    RANKS_MAX,
    Allocation,
    bound_ranks,
    gaps,
    name_runs,
)
from nccl_inspector.analysis.hang.arrival import Meeting, OpPlace, find_meetings
from tests.support.synthetic.standstill import claiming

HUGE = 2**31 - 1
# The report of one operation in flight, of a communicator that claims so many ranks.
_REPORT = f"""
import resource
from dataclasses import replace
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import NodeSummary
from tests.support.synthetic.standstill import claiming
from tests.support.summaries import HEAD
loaded = Loaded((NodeSummary(HEAD, tuple(claiming({HUGE}))),), (0,), ())
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
card = build_card(loaded)
print(card.data_quality.missing)
"""


def test_a_claim_of_two_billion_ranks_makes_no_report_larger() -> None:
    """In a child with half a GiB beyond what it has and a minute of CPU time."""
    done = subprocess.run(
        [sys.executable, "-c", _REPORT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "claim that it has 2,147,483,647 ranks" in done.stdout
    assert "a job of 4 nodes has 1,024 at most" in done.stdout


def test_a_hang_is_looked_at_by_its_records_whatever_number_of_ranks_is_claimed() -> None:
    for meeting in find_meetings(claiming(HUGE)):
        place = OpPlace(meeting.id, -1, 1)
        assert len(meeting.expected_seats(place)) == len(meeting.seats)
        assert meeting.expected_count(place) == HUGE
        assert len(meeting.missing(place)) <= len(meeting.seats) + 1


def test_what_slurm_says_bounds_what_is_believed() -> None:
    assert Allocation().ranks_max == RANKS_MAX
    assert Allocation(nodes=2).ranks_max == 2 * RANKS_A_NODE_MAX
    assert Allocation(nodes=1, tasks=1000, gpus=8).ranks_max == 1000
    assert Allocation(nodes=10**6).ranks_max == RANKS_MAX


@pytest.mark.parametrize("nranks", [4, 1024])
def test_a_number_of_ranks_that_the_job_can_have_stays(nranks: int) -> None:
    """Also when most of them have left no box."""
    processes = claiming(nranks)
    bounded = bound_ranks(processes, Allocation(nodes=4))
    assert bounded.processes == processes
    assert bounded.problems == ()


def test_an_impossible_number_of_ranks_counts_as_unknown_and_is_said() -> None:
    bounded = bound_ranks(claiming(1025), Allocation(nodes=4))
    assert {comm.nranks for one in bounded.processes for comm in one.comms} == {0}
    assert all("1,025 ranks; a job of 4 nodes has 1,024 at most" in one for one in bounded.problems)


def test_many_impossible_claims_are_said_in_a_few_lines() -> None:
    one = claiming(HUGE)[0]
    comms = tuple(replace(one.comms[0], id=n, name=f"c{n}") for n in range(1000))
    problems = bound_ranks([replace(one, comms=comms)], Allocation(nodes=1)).problems
    assert len(problems) == 9
    assert problems[-1] == "992 more communicators claim an impossible number of ranks"


def test_more_ranks_than_slurm_knows_are_believed_when_all_have_left_a_record() -> None:
    one = claiming(4)[0]
    comms = tuple(replace(one.comms[0], id=7, rank=n, nranks=300) for n in range(300))
    assert bound_ranks([replace(one, comms=comms)], Allocation(nodes=1)).problems == ()


def test_missing_ranks_are_told_as_runs_between_those_that_are_there() -> None:
    assert gaps({0, 1, 5}, 8) == ((2, 4), (6, 7))
    assert gaps((), 3) == ((0, 2),)
    assert gaps({0, 1}, 2) == ()
    assert gaps({-1, 1, 10**9}, 3) == ((0, 0), (2, 2))
    assert list(name_runs(((2, 4), (6, 6)))) == ["rank 2", "rank 3", "rank 4", "rank 6"]
    assert list(name_runs(((1, 1), (2, HUGE)))) == ["rank 1", f"ranks 2-{HUGE}"]


def test_a_pair_expects_its_two_ranks_once_each() -> None:
    meeting: Meeting = next(iter(find_meetings(claiming(4))))
    rank = min(meeting.seats)
    alone = OpPlace(meeting.id, 9, 1, (rank, rank))
    assert [seat.comm.rank for seat in meeting.expected_seats(alone)] == [rank]
    assert meeting.expected_count(alone) == 1
    assert meeting.missing(OpPlace(meeting.id, 9, 1, (rank, HUGE))) == ((HUGE, HUGE),)
