# SPDX-License-Identifier: Apache-2.0
"""What is made of a Prometheus' answers; the questions are tested on a real one."""

from collections.abc import Mapping

import pytest

from nccl_inspector.live.view import TroubleKind, View
from nccl_inspector.prometheus.api import Api, PromSample
from nccl_inspector.prometheus.node_view import PrometheusView, window_s

JOB = {"cluster": "c1", "slurm_job_id": "42"}
Answers = Mapping[str, list[PromSample]]  # by a part of the question
INFO = {"job_info": [PromSample(JOB | {"user": "amy", "partition": "gpu"}, 4.0)]}


def ask(monkeypatch: pytest.MonkeyPatch, answers: Answers, wanted: int | None = None) -> View:
    def query(_api: Api, promql: str) -> list[PromSample]:
        found = [samples for part, samples in answers.items() if part in promql]
        return found[0] if found else []

    monkeypatch.setattr(Api, "query", query)
    return PrometheusView("http://h:9090", wanted, "2m").look()


def test_without_series_there_are_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, {}).jobs == ()


def test_a_job_that_only_rates_speak_of_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = [PromSample(JOB | {"slurm_job_id": "41"}, 5.0)]
    jobs = ask(monkeypatch, {**INFO, "rate(nccl_collective_operations": gone}).jobs
    assert [job.id for job in jobs] == [42]


def test_jobs_of_two_clusters_with_one_number_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"job_info": [PromSample(JOB, 1.0), PromSample(JOB | {"cluster": "c2"}, 1.0)]}
    assert [job.cluster for job in ask(monkeypatch, both).jobs] == ["c1", "c2"]


def test_states_of_the_agents_are_troubles(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"running": 5.0, "stopped": 1.0, "lost": 2.0}
    samples = [
        PromSample(JOB | {"node": "n3", "state": state}, count) for state, count in states.items()
    ]
    (job,) = ask(monkeypatch, {**INFO, "job_processes": samples}).jobs
    assert (job.alive, job.expected) == (5, 8)
    assert [one.words for one in job.troubles] == [
        "2 processes of n3: died without finalizing",
        "1 process of n3: no longer beat: stopped, or starved of CPU",
    ]


def test_a_hang_names_the_rank_that_waits_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [
        PromSample(JOB | {"node": "n3", "gpu": "GPU1", "rank": rank, "comm_name": "tp"}, age_s)
        for rank, age_s in (("3", 70.0), ("5", 90.0))
    ]
    (job,) = ask(monkeypatch, {**INFO, "collective_inflight": samples}).jobs
    assert [one.words for one in job.troubles] == ["n3 GPU1 (rank 5 of tp) has waited 90 s"]


def test_a_job_that_only_the_agents_tell_of_hangs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = [PromSample(JOB, 300.0)]
    processes = [PromSample(JOB | {"node": "n1", "state": "running"}, 8.0)]
    answers = {"job_inflight": oldest, "job_processes": processes}
    (job,) = ask(monkeypatch, answers).jobs
    assert [one.kind for one in job.troubles] == [TroubleKind.HUNG]
    assert job.user == "-"


def test_hostile_labels_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [
        PromSample(JOB | {"nranks": nranks, "n_nodes": "1", "collective": "AllReduce"}, 1e9)
        for nranks in ("", "x", "1e9", "9" * 30)
    ]
    answers = {**INFO, "_bytes_total": odd, "_operations_total": [PromSample(JOB, 1.0)],
               "job_processes": [PromSample(JOB | {"slurm_job_id": "x"}, 1.0)]}  # fmt: skip
    (job,) = ask(monkeypatch, answers).jobs
    assert job.flow
    assert job.flow.gbs() == {}


def test_who_waits_least_while_the_others_do_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [JOB | {"node": f"n{number}", "gpu": "GPU0"} for number in range(4)]
    ranks = [
        PromSample(gpu | {"rank": str(number), "nranks": "4", "comm": "0x1", "comm_name": "w"}, 1.0)
        for number, gpu in enumerate(gpus)
    ]
    share = (0.8, 0.75, 0.02, 0.8)
    answers = {
        **INFO,
        "group by": ranks,
        "group_left": [PromSample(gpu, 1 - one) for gpu, one in zip(gpus, share, strict=True)],
        "and on": [PromSample(gpu, 1.0) for gpu in gpus],
        "rate(nccl_collective_operations": [PromSample(gpu, 5.0) for gpu in gpus],
    }
    (job,) = ask(monkeypatch, answers, wanted=42).jobs
    assert job.ranks[0].name == "rank 2"
    assert job.troubles[0].words == (
        "rank 2 (n2, GPU0) waits least, 2% where others do 78%: it may be late"
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("2m", 120), ("90s", 90), ("500ms", 0.5), ("0m", 0), ("2", 0), ("", 0)]
)
def test_windows_are_times(text: str, seconds: float) -> None:
    assert window_s(text) == seconds
