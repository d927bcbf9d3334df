"""What alerts say in words, and the numbers that rules and tables give, are right."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from nccl_inspector.monitoring.cluster import cluster_dashboard
from nccl_inspector.monitoring.panels import dashboard_json
from nccl_inspector.monitoring.site import make_site
from tests.support.dashboard_queries import fill_in, panel_expressions
from tests.support.promtool import Expected, Series, failures, steady, texts_of_alert
from tests.support.rule_series import END_MIN, Job

OWN = {"cluster": "c", "slurm_job_id": "0"}
SITE = make_site([])
MANY = 1_234_567  # {{ .Value }} alone would say 1.234567e+06


def hung_text(folder: Path, called: Mapping[int, int]) -> str:
    """What the alert says of communicator dp, of whose ranks each called so many operations."""
    own = [
        one
        for one in Job(inflight_s=(600, 600), called=called).series(OWN)
        if one.labels.get("comm_name") == "dp"
    ]
    return texts_of_alert(folder, SITE, own, "NcclCollectiveHung", 30)


def test_a_hang_names_the_rank_that_called_fewer_in_whole_numbers(tmp_path: Path) -> None:
    said = hung_text(tmp_path, dict.fromkeys(range(4), MANY) | {2: MANY - 1})
    assert (
        f"Fewest operations called: rank 2 (n2, GPU0), {MANY - 1}. A rank that called fewer" in said
    )


def test_a_hang_in_which_all_called_as_many_names_no_rank(tmp_path: Path) -> None:
    said = hung_text(tmp_path, dict.fromkeys(range(4), MANY))
    assert "All its ranks that publish called the same number of operations." in said
    assert "Fewest" not in said


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
