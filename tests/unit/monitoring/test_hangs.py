# SPDX-License-Identifier: Apache-2.0
"""One alert for a job that hangs, within three minutes, which names who did not come.

The jobs are those of tests/support/hanging_jobs.py; promtool evaluates the rules of the defaults.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from nccl_inspector.monitoring.site import make_site
from tests.support.federated_rules import federated_rules, spread
from tests.support.hanging_jobs import LAYOUTS, HangingJob, How, PausingJob
from tests.support.marks import long_but
from tests.support.promtool import Expected, Series, failures_of, rules_of, texts_of_alert

OWN = {"cluster": "c", "slurm_job_id": "7"}
ALERT = "NcclJobHung"
FIRING = f'ALERTS{{alertname="{ALERT}", alertstate="firing"}}'
RULES = rules_of(make_site([]))
HOUR_S = 3600


def hanging(layout: str, how: How = How.ABSENT, seed: int = 0) -> HangingJob:
    """A job in which chance chooses who, where and when."""
    chance, plan = Random(f"{layout}/{how}/{seed}"), LAYOUTS[layout]  # noqa: S311
    rank = chance.randrange(plan.ranks)
    item = chance.randrange(len(plan.programs[rank]))
    onset_s = 240 + 30 * chance.random()
    return HangingJob(plan, rank, item, onset_s, 480, seed, how)


def fired(folder: Path, job: HangingJob, after_s: float = 180) -> str:
    """What the one alert says so long after the onset; before the onset there is none."""
    series = list(job.series(OWN))
    minutes = [job.onset_s / 60, (job.onset_s + after_s) / 60]
    (said,) = texts_of_alert(folder, RULES, series, ALERT, minutes, "30s")
    assert "            1:" not in said, "one alert for a job"
    labels = 'Labels:{alertname="NcclJobHung", cluster="c", severity="critical", slurm_job_id="7"}'
    assert labels in said
    return said


def named(said: str) -> set[str]:
    """The places that the texts name."""
    return set(re.findall(r"n\d+ GPU\d+", said))


def place(job: HangingJob) -> str:
    return " ".join(job.place(job.absent).values())


# In `make test`; together they take half a minute.
SHORT = (
    "2 replicas",
    "4 x 8 shards",
    "2 tensor x 2 context x 2 stages x 4 data",
    "8 experts x 4 data",
)


@pytest.mark.parametrize("layout", long_but(SHORT, LAYOUTS))
def test_within_three_minutes_one_alert_names_who_called_nothing(
    tmp_path: Path, layout: str
) -> None:
    job = hanging(layout)
    said = fired(tmp_path, job)
    assert named(said) == {place(job)}
    assert re.search(
        rf"{place(job)} \(rank \d+ of \w+\) (did not come|has nothing in flight)", said
    )
    assert re.search(rf"hangs: an operation has not ended for .*; {place(job)} ", said)


@pytest.mark.parametrize(
    "layout", long_but(["4 stages"], ["8 replicas", "4 stages", "8 experts x 4 data"])
)
def test_a_dead_process_is_named_though_its_series_are_gone(tmp_path: Path, layout: str) -> None:
    job = hanging(layout, How.DIES)
    said = fired(tmp_path, job)
    assert named(said) == {place(job)}
    assert f"{place(job)} (rank" in said
    assert ") died." in said


def test_who_called_it_and_whose_gpu_did_not_begin_it_is_said_to_have_called(
    tmp_path: Path,
) -> None:
    job = hanging("8 tensor x 4 data", How.GPU)
    said = fired(tmp_path, job)
    assert named(said) == {place(job)}
    assert "but its GPU has not begun it" in said


@pytest.mark.parametrize("layout", long_but(["8 replicas"], ["8 replicas", "8 tensor x 4 data"]))
def test_where_all_called_it_nobody_is_named(tmp_path: Path, layout: str) -> None:
    said = fired(tmp_path, hanging(layout, How.NETWORK))
    assert named(said) == set()
    assert "No process stands out." in said


def test_processes_that_share_a_gpu_are_not_accused(tmp_path: Path) -> None:
    job = hanging("8 replicas")
    shared = [
        Series(one.name, one.labels | ({"gpu": "GPU0"} if "gpu" in one.labels else {}), one.values)
        for one in job.series(OWN)
    ]
    (said,) = texts_of_alert(tmp_path, RULES, shared, ALERT, [(job.onset_s + 180) / 60], "30s")
    assert f"A process of n1 GPU0 (rank {job.absent} of dp) called fewer operations" in said
    assert "it may wait elsewhere itself" in said


def test_of_a_rank_that_calls_what_no_other_calls_the_others_are_not_accused(
    tmp_path: Path,
) -> None:
    job = hanging("8 replicas")
    odd, idle = job.place((job.absent + 1) % 8), "nccl_collective_inflight_seconds"
    series = [
        Series(one.name, one.labels, " ".join(["0"] * 16))
        if one.name == idle and not odd.items() <= one.labels.items()
        else one
        for one in job.series(OWN)
        if one.name != "nccl_communicator_operations_enqueued_total"
    ]
    series += [
        Series(one.name, one.labels, "+".join(("500", "0x7 501", "0x7")))
        if odd.items() <= one.labels.items()
        else Series(one.name, one.labels, "500+0x15")
        for one in job.series(OWN)
        if one.name == "nccl_communicator_operations_enqueued_total"
    ]
    (said,) = texts_of_alert(tmp_path, RULES, series, ALERT, [(job.onset_s + 180) / 60], "30s")
    assert named(said) == {" ".join(odd.values())}
    assert "that most of its ranks did not call" in said


QUIET = {
    "operations of four minutes from the start": PausingJob(
        HOUR_S, waits=[(241 * at, 241 * at + 240) for at in range(14)]
    ),
    "four minutes of preparation before the first operation": PausingJob(
        HOUR_S, waits=[(5, 245)]
    ),
    "checkpoints of 70 s": PausingJob(
        HOUR_S, waits=[(600 * at + 411, 600 * at + 481) for at in range(6)]
    ),
    "a checkpoint that takes twice as long as the others": PausingJob(
        HOUR_S, waits=[(600, 675), (1200, 1275), (1800, 1930)]
    ),
    "a Recv that was posted hours ago": PausingJob(HOUR_S, received_s=-9000),
    "a Recv that waits while nothing is called for a minute": PausingJob(
        HOUR_S, received_s=300, still=[(1000, 1055)]
    ),
    "nothing is called for half an hour, and nothing is in flight": PausingJob(
        HOUR_S, still=[(1000, 2800)]
    ),
    "a job that has ended while ranks waited": PausingJob(
        HOUR_S, waits=[(1000, 1050)], gone_s=1050
    ),
    "a first checkpoint of five minutes": PausingJob(
        HOUR_S, waits=[(600, 900)], saves=[(600, 900)]
    ),
    "a first checkpoint, with a file system that stands for a minute": PausingJob(
        HOUR_S, waits=[(610, 1000)], saves=[(610, 700), (760, 1000)]
    ),
    "a job that is suspended": PausingJob(HOUR_S, stopped=[(1000, 2000)]),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", long_but(["checkpoints of 70 s", "a first checkpoint of five minutes"], QUIET)
)
def test_a_job_that_does_not_hang_is_quiet(tmp_path: Path, case: str) -> None:
    ever = f"count(present_over_time({FIRING}[{HOUR_S}s]))"
    assert complaints(tmp_path, QUIET[case], [Expected(59, ever, [])]) == []


def complaints(folder: Path, job: PausingJob, wanted: Iterable[Expected]) -> list[str]:
    return failures_of(folder, RULES, list(job.series(OWN)), wanted, "30s")


def test_a_wait_of_twice_the_usual_length_is_a_hang_at_last(tmp_path: Path) -> None:
    job = PausingJob(HOUR_S, waits=[(600, 720), (1200, 1320), (2000, HOUR_S)])
    wanted = [Expected(2000 / 60 + 3, FIRING, []), Expected(2000 / 60 + 6, ever_one(), [{}])]
    assert complaints(tmp_path, job, wanted) == []


def ever_one() -> str:
    return f"count({FIRING}) == bool 1"


def test_who_stops_writing_in_the_middle_of_a_checkpoint_hangs(tmp_path: Path) -> None:
    job = PausingJob(HOUR_S, waits=[(600, HOUR_S)], saves=[(600, 680)])
    wanted = [Expected(13, FIRING, []), Expected(17, ever_one(), [{}])]
    assert complaints(tmp_path, job, wanted) == []


def test_who_reads_or_writes_for_ten_minutes_while_all_wait_is_told_with_that(
    tmp_path: Path,
) -> None:
    job = PausingJob(HOUR_S, waits=[(600, HOUR_S)], saves=[(600, HOUR_S)])
    minutes = [20, 22]
    said = texts_of_alert(tmp_path, RULES, list(job.series(OWN)), ALERT, minutes, "30s")
    assert len(said) == 1, "none after ten minutes, one after twelve"
    assert "n1 GPU0 calls nothing and reads and writes 76.29MiB a second" in said[0]


def test_of_a_first_wait_the_alert_says_what_else_looks_the_same(tmp_path: Path) -> None:
    first = fired(tmp_path, hanging("8 replicas"))
    known = "a first evaluation or compilation of one rank looks the same"
    assert known in first
    job = PausingJob(HOUR_S, waits=[(600, 670), (2000, HOUR_S)])
    series = list(job.series(OWN))
    (second,) = texts_of_alert(tmp_path, RULES, series, ALERT, [2000 / 60 + 5], "30s")
    assert "n1 GPU0" in second
    assert known not in second
    assert known not in fired(tmp_path, hanging("8 replicas", How.DIES)), "it died"


def test_a_hang_that_a_restart_ended_is_no_usual_wait(tmp_path: Path) -> None:
    job = PausingJob(HOUR_S, waits=[(600, 1500), (2400, HOUR_S)], restarts_s=[1500])
    wanted = [
        Expected(13, ever_one(), [{}]),
        Expected(38, FIRING, []),
        Expected(43, ever_one(), [{}]),
    ]
    assert complaints(tmp_path, job, wanted) == []


def test_a_job_with_only_sends_and_recvs_hangs_by_its_own_pauses(tmp_path: Path) -> None:
    job = PausingJob(HOUR_S, received_s=100, still=[(600, 720), (2000, HOUR_S)])
    wanted = [Expected(2000 / 60 + 3, FIRING, []), Expected(2000 / 60 + 6, ever_one(), [{}])]
    assert complaints(tmp_path, job, wanted) == []


@pytest.mark.parametrize(
    "layout", long_but(["8 tensor x 4 data"], ["8 tensor x 4 data", "4 x 8 shards"])
)
def test_a_server_above_shards_names_who_called_nothing_too(tmp_path: Path, layout: str) -> None:
    job = hanging(layout)
    series = list(spread(job.series(OWN)))
    (said,) = texts_of_alert(
        tmp_path, federated_rules(), series, ALERT, [(job.onset_s + 180) / 60], "30s"
    )
    assert named(said) == {place(job)}
    assert "called fewer operations there than others" in said


@pytest.mark.long
def test_a_server_above_shards_knows_of_a_checkpoint(tmp_path: Path) -> None:
    series = list(spread(QUIET["a first checkpoint of five minutes"].series(OWN)))
    ever = f"count(present_over_time({FIRING}[{HOUR_S}s]))"
    wanted = [Expected(59, ever, [])]
    assert failures_of(tmp_path, federated_rules(), series, wanted, "30s") == []
