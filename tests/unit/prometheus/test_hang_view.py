# SPDX-License-Identifier: Apache-2.0
"""Whom `top --prometheus` names of a job that hangs; the jobs are those of the alert's tests."""

from collections.abc import Iterable
from random import Random

import pytest

from nccl_inspector.live.view import TroubleKind, View
from nccl_inspector.prometheus.api import Api, PromSample
from nccl_inspector.prometheus.hang_view import find_absent
from nccl_inspector.prometheus.node_view import PrometheusView
from tests.support.hanging_jobs import LAYOUTS, HangingJob, How
from tests.support.promtool import Series

OWN = {"cluster": "c1", "slurm_job_id": "42"}
CALLED = "nccl_communicator_operations_enqueued_total"


def last(series: Iterable[Series], *names: str) -> list[PromSample]:
    """The last values of the series with these names."""
    return [
        PromSample(one.labels | {"__name__": one.name}, float(one.values.split()[-1]))
        for one in series
        if one.name in names and one.values.split()[-1] != "stale"
    ]


def hanging(layout: str, how: How = How.ABSENT) -> tuple[HangingJob, list[Series]]:
    chance, plan = Random(layout), LAYOUTS[layout]  # noqa: S311
    rank = chance.randrange(plan.ranks)
    job = HangingJob(plan, rank, chance.randrange(len(plan.programs[rank])), 65, 240, how=how)
    return job, list(job.series(OWN))


def flights(series: Iterable[Series]) -> list[PromSample]:
    return last(series, "nccl_collective_inflight_seconds", "nccl_p2p_inflight_seconds")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_calls_nothing_is_named_and_no_other(layout: str) -> None:
    job, series = hanging(layout)
    mixed = last(series, "nccl_p2p_operations_total")
    found = find_absent(flights(series), last(series, CALLED), mixed)
    assert [one.place for one in found] == [tuple(job.place(job.absent).values())]


@pytest.mark.parametrize("how", [How.NETWORK, How.GPU])
def test_where_all_called_it_nobody_is_named(how: How) -> None:
    _, series = hanging("8 tensor x 4 data", how)
    mixed = last(series, "nccl_p2p_operations_total")
    assert find_absent(flights(series), last(series, CALLED), mixed) == []


def test_processes_that_share_a_gpu_cannot_be_told_apart() -> None:
    _, series = hanging("8 replicas")
    one_gpu = [
        PromSample(one.labels | {"gpu": "GPU0"}, one.value)
        for one in (*flights(series), *last(series, CALLED))
    ]
    half = len(one_gpu) * 2 // 3
    assert find_absent(one_gpu[:half], one_gpu[half:], []) == []


def look(monkeypatch: pytest.MonkeyPatch, still_s: float, usual_s: float) -> View:
    """The view of two jobs: 42, which hangs, and 7, which is well."""
    _, series = hanging("8 replicas")
    well = OWN | {"slurm_job_id": "7"}
    gpus = list(last(series, CALLED))
    answers = {
        "job_info": [PromSample(one | {"user": "amy"}, 1.0) for one in (OWN, well)],
        "job_processes": [PromSample(one | {"node": "n1", "state": "running"}, 8.0)
                          for one in (OWN, well)],
        "max_over_time": [PromSample(OWN, usual_s)],
        "changes": [PromSample(OWN, still_s), PromSample(well, 2.0)],
        "group by": [PromSample(one.labels | {"nranks": "8"}, 1.0) for one in gpus],
        "job_inflight": [PromSample(OWN, still_s)],
        "nccl_(collective|p2p)_inflight": flights(series),
        CALLED: gpus,
        'nccl_collective_operations_total{algo_proto!="GROUP"}': [
            PromSample(OWN, 9.0), PromSample(well, 5.0)
        ],
        'nccl_collective_operations_total{slurm_job_id="42",algo_proto!="GROUP"}': [
            PromSample(OWN, 9.0)
        ],
    }  # fmt: skip

    def query(_api: Api, promql: str) -> list[PromSample]:
        return next((samples for part, samples in answers.items() if part in promql), [])

    monkeypatch.setattr(Api, "query", query)
    return PrometheusView("http://h:9090", 42 if usual_s else None, "2m").look()


def test_a_job_that_stands_still_is_the_worst_and_has_no_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view = look(monkeypatch, 110, 0)
    assert [job.id for job in view.jobs] == [42, 7]
    hung, well = view.jobs
    assert hung.troubles[0].words == "no operation of it has ended for 110 s"
    assert hung.troubles[1].kind == TroubleKind.ABSENT
    assert "did not come to what 7 ranks of dp" in hung.troubles[1].words
    assert hung.flow is not None
    assert hung.flow.operations_per_s == 0
    assert well.flow is not None
    assert well.flow.operations_per_s == 5
    assert well.troubles == ()


def test_the_absent_process_is_the_first_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = hanging("8 replicas")
    (shown,) = [one for one in look(monkeypatch, 110, 4).jobs if one.id == 42]
    assert shown.troubles[0].words.endswith("in the last hour the longest pause was 4 s")
    assert shown.ranks[0].gpu == job.place(job.absent)["gpu"]
    assert shown.ranks[0].troubles[0].kind == TroubleKind.ABSENT
    assert "has nothing in flight" in shown.ranks[0].troubles[0].words


def test_a_pause_that_is_usual_for_the_job_is_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = [one for one in look(monkeypatch, 110, 90).jobs if one.id == 42]
    assert TroubleKind.STILL not in [one.kind for one in shown.troubles]
