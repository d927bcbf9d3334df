"""The numbers that rules and tables give are right."""

import json
from pathlib import Path

import pytest

from nccl_inspector.monitoring.cluster import cluster_dashboard
from nccl_inspector.monitoring.panels import dashboard_json
from nccl_inspector.monitoring.site import make_site
from tests.support.dashboard_queries import fill_in, panel_expressions
from tests.support.promtool import Expected, Series, failures, steady
from tests.support.rule_series import END_MIN, Job

OWN = {"cluster": "c", "slurm_job_id": "0"}
SITE = make_site([])


@pytest.mark.parametrize(
    ("job", "bound"),
    [(Job(small_rank=0), "< bool 0.001"), (Job(dp_ms={3: 10}), "> bool 0.3")],
    ids=["operations of another size", "a late rank"],
)
def test_waiting_is_taken_among_operations_of_one_kind(
    tmp_path: Path, job: Job, bound: str
) -> None:
    expr = f"job:nccl_collective_waiting:ratio {bound}"
    assert failures(tmp_path, SITE, job.series(OWN), [Expected(END_MIN - 5, expr, [OWN])]) == []


def test_a_job_of_two_partitions_is_in_the_table_of_worst_jobs_once(tmp_path: Path) -> None:
    board = json.loads(json.dumps(dashboard_json(cluster_dashboard(SITE), "30s")))
    expr = dict(panel_expressions(board))["Waiting (A)"]
    who = [("1", "n1", "gpu"), ("1", "n2", "cpu"), ("2", "n3", "cpu")]  # job, node, partition
    series = [
        Series(
            "nccl_inspector_job_info",
            {"cluster": "c", "slurm_job_id": job, "node": node, "user": "u", "partition": where},
            steady((10, 1)),
        )
        for job, node, where in who
    ] + [
        Series(
            "job:nccl_collective_waiting:ratio",
            {"cluster": "c", "slurm_job_id": job},
            steady((10, 0.5)),
        )
        for job in ("1", "2")
    ]
    rows = f"count by (slurm_job_id, user) ({fill_in(expr, {'cluster': 'c'})})"
    wanted = [{"slurm_job_id": job, "user": "u"} for job in ("1", "2")]
    assert failures(tmp_path, SITE, series, [Expected(5, rows, wanted)]) == []
