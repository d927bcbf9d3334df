# SPDX-License-Identifier: Apache-2.0
"""What scontrol's words mean; the records are as 22.05 printed them, shortened."""

import pytest

from nccl_inspector.slurm.attempt import Answer, Attempt, cluster_name, judge
from tests.support.fake_scontrol import record

HERE = Attempt(42, "n1", 1)


def says(text: str, attempt: Attempt = HERE) -> Answer:
    return judge(0, text, "", attempt)


@pytest.mark.parametrize(
    "state",
    [
        "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL",
        "DEADLINE", "OUT_OF_MEMORY",
    ],
)  # fmt: skip
def test_a_terminal_state_is_the_end(state: str) -> None:
    assert says(record(state)) is Answer.ENDED


@pytest.mark.parametrize(
    "state",
    [
        "RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "COMPLETING", "RESIZING", "SIGNALING",
        "STAGE_OUT", "REVOKED", "SOMETHING_NEW", "", "completed", "COMPLETED,COMPLETING",
    ],
)  # fmt: skip
def test_what_runs_here_or_is_not_known_is_alive(state: str) -> None:
    assert says(record(state)) is Answer.ALIVE


@pytest.mark.parametrize("nodes", ["", "(null)", "n7"])
def test_a_job_back_in_the_queue_has_ended_here(nodes: str) -> None:
    assert says(record("PENDING", nodes)) is Answer.ENDED


def test_a_job_in_the_queue_that_still_names_this_node_is_alive() -> None:
    assert says(record("PENDING")) is Answer.ALIVE


def test_a_job_that_runs_elsewhere_has_ended_here() -> None:
    assert says(record("RUNNING", "n[2-4]")) is Answer.ENDED
    assert says(record("COMPLETING", "n[2-4]")) is Answer.ALIVE
    assert says(record("COMPLETING", "n[2-4]", restarts=2)) is Answer.ENDED


@pytest.mark.parametrize("nodes", ["", "(null)", "n[1-", "n[1-99999999]"])
def test_a_node_list_that_cannot_be_read_ends_nothing(nodes: str) -> None:
    assert says(record("RUNNING", nodes)) is Answer.ALIVE


def test_a_later_attempt_on_this_node_is_for_its_prolog_to_deal_with() -> None:
    assert says(record("RUNNING", restarts=2)) is Answer.ALIVE


def test_without_a_manifest_only_the_state_counts() -> None:
    assert says(record("RUNNING", "n7", restarts=9), Attempt(42)) is Answer.ALIVE
    assert says(record("COMPLETED"), Attempt(42)) is Answer.ENDED


def test_of_several_records_ours_counts() -> None:
    text = record("FAILED", job="41") + record("COMPLETED") + record("RUNNING", "n7", job="43")
    assert says(text) is Answer.ENDED
    assert says(text + record("PENDING", "(null)", job="44")) is Answer.ENDED
    assert says(text + record("RUNNING", job="44")) is Answer.ALIVE, "a name may look like ours"
    assert says(record("COMPLETED", job="4") + record("RUNNING") + record("FAILED", job="421")) is (
        Answer.ALIVE
    )
    assert says(record("COMPLETED", job="41")) is Answer.ALIVE


@pytest.mark.parametrize(
    "name",
    [
        "x JobState=COMPLETED",
        "x\nJobState=COMPLETED",
        "x\nJobId=42 JobState=COMPLETED NodeList=n1",
        "x NodeList=n7",
        "x\nJobId=7 JobState=COMPLETED",
        "x JobState=COMPLETED\nJobId=7 y",
        "x JobState=COMPLETED\nJobId=7 JobState=COMPLETED\nJobId=8 y",
        "x JobState=RUNNING NodeList=n7\nJobId=7 y",
        "x JobState=COMPLETED\nJobId=y",
        "x JobState=PENDING NodeList=(null)\nJobId=",
    ],
)
def test_a_name_that_a_user_chose_ends_nothing(name: str) -> None:
    assert says(record("RUNNING").replace("sbatch", name)) is Answer.ALIVE


def test_a_record_made_up_inside_another_ends_nothing() -> None:
    made_up = record("RUNNING", job="41").replace(
        "sbatch", "x\nJobId=42 JobState=COMPLETED\nJobId=1"
    )
    assert says(made_up + record("RUNNING")) is Answer.ALIVE
    assert says(record("RUNNING") + made_up) is Answer.ALIVE


@pytest.mark.parametrize("words", ["JobState=COMPLETED", "JobState=RUNNING JobState=FAILED"])
def test_of_two_states_none_is_believed(words: str) -> None:
    for state in ("RUNNING", "TIMEOUT"):
        assert says(record(state).replace("a b", f"a {words} b")) is Answer.ALIVE


def test_a_newline_in_a_name_does_not_hide_the_state() -> None:
    assert says(record("COMPLETED").replace("sbatch", "a\nb")) is Answer.ENDED


def test_an_unknown_id_is_the_end_and_any_other_error_is_no_answer() -> None:
    unknown = "slurm_load_jobs error: Invalid job id specified\n"
    assert judge(1, "", unknown, HERE) is Answer.ENDED
    down = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
    assert judge(1, "", down, HERE) is Answer.NONE
    assert judge(-9, record("COMPLETED"), "", HERE) is Answer.NONE
    assert judge(0, "", "", HERE) is Answer.NONE
    assert judge(0, "No jobs in the system\n", "", HERE) is Answer.NONE


def test_the_clusters_name_is_the_one_that_is_there_once() -> None:
    text = (
        "Configuration data as of 2026-01-01\nClusterName             = c1\nCompleteWait = 0 sec\n"
    )
    assert cluster_name(text) == "c1"
    assert cluster_name("") == ""
    assert cluster_name("ClusterName             = \nX = 1\n") == ""
    assert cluster_name(text * 2) == ""
