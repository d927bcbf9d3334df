"""JSON lines: into the user's directory, beside the report, with the live series or without."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox import JOB_USER, Cluster, wait_until
from tests.support import application_log
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import raw_files

pytestmark = pytest.mark.long  # all of them together

Record = dict[str, Any]
Operations = Counter[tuple[int, str, int]]  # by the task's number, function and bytes

OPTIONS = "Options"
RANKS = 4
TWO_NODES = ("-N2", "--ntasks-per-node=2", "--gpus-per-task=1")
SMALL = ("--nodelist=n1", "-n2", "--gpus-per-task=1", "--mem=1000")
SHORT = ("--steps", "4", "--sizes", "64K", "--comms", "world")
ENDLESS = ("--steps", "100000", *jobs.QUICK)


def run(cluster: Cluster, option: str, *words: str, before: str = "") -> int:
    """A short job with this option, run to its end and collected; its id."""
    script = f"{before}\nsrun {jobs.standin(cluster, *SHORT)}"
    words = f"--nccl-inspector={option}", *(words or TWO_NODES)
    job_id = jobs.submit(cluster, *words, script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED", jobs.output(cluster, job_id)
    return job_id


def records(files: list[Path]) -> list[Record]:
    """Every line of these files, but for those of calls that are a Send and a Recv in lines too."""
    texts = [
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in files
    ]
    lines: list[Record] = [json.loads(line) for text in texts for line in text.splitlines()]
    return [line for line in lines if performance(line).get("coll") != "SendRecv"]


def performance(line: Record) -> Record:
    """What a line says of its operation."""
    found: Record = line.get("coll_perf") or line["p2p_perf"]
    return found


def written(lines: list[Record]) -> Operations:
    """Operations by the lines of the plugin."""
    found: Operations = Counter()
    for line in lines:
        done = performance(line)
        kind = "coll" if "coll" in done else "p2p"
        size = done[f"{kind}_msg_size_bytes"]
        found[line["metadata"]["slurm_procid"], done[kind], size] += 1
    return found


def logged(cluster: Cluster, job_id: int, ranks: int) -> Operations:
    """Operations by the application's own log."""
    directory = jobs.oplog(cluster, job_id)
    return Counter(
        (rank, op["func"], op["bytes"])
        for rank in range(ranks)
        for op in application_log.read_log(directory, rank)
    )


def assert_whole(cluster: Cluster, job_id: int, files: list[Path], ranks: int = RANKS) -> None:
    """A file of each rank, the user's; a line for each operation; a report; nothing left."""
    owner = cluster.home().stat()
    assert len(files) == ranks
    assert {(path.stat().st_uid, path.stat().st_gid) for path in files} == {
        (owner.st_uid, owner.st_gid)
    }
    lines = records(files)
    assert written(lines) == logged(cluster, job_id, ranks)
    assert {line["metadata"]["slurm_job_id"] for line in lines} == {job_id}
    assert {line["metadata"]["lines_dropped"] for line in lines} == {0}
    assert f"{ranks} ranks" in jobs.report(cluster, job_id)
    assert jobs.traces(cluster, job_id) == []


@pytest.mark.case(OPTIONS, "json: a line for each operation in the user's directory, no series")
def test_json_lines_are_the_users_and_beside_them_is_only_a_report(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    job_id = run(cluster, "json,dir=lines/of mine,verbose,interval=100ms")
    files = sorted((cluster.home() / "lines" / "of mine").glob("*.log"))
    assert_whole(cluster, job_id, files)
    assert all("event_trace_ts" in performance(line) for line in records(files)), "verbose"
    assert cluster.history(f'{{slurm_job_id="{job_id}"}}', 60) == []


@pytest.mark.case(OPTIONS, "json without `dir`: nccl-inspector-<job id> in the task's directory")
def test_without_a_directory_lines_go_where_the_job_runs(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    before = "mkdir -p elsewhere; cd elsewhere; ln -sfn ../oplog.$SLURM_JOB_ID ."
    before += "; mkdir -p ../oplog.$SLURM_JOB_ID"
    job_id = run(cluster, "json,interval=100ms", before=before)
    files = sorted((cluster.home() / "elsewhere" / f"nccl-inspector-{job_id}").glob("*.log"))
    assert_whole(cluster, job_id, files)


@pytest.mark.case(OPTIONS, "prom+json: lines, live series and a report")
def test_prom_and_json_has_both_while_it_runs(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    place = cluster.home() / "both"
    option = f"--nccl-inspector=prom+json,dir={place},gzip,json_max=1M,interval=100ms"
    script = f"srun {jobs.standin(cluster, *ENDLESS)}"
    job_id = jobs.submit(cluster, option, *SMALL, script=script)
    mark = f'slurm_job_id="{job_id}"'
    wait_until(lambda: mark in cluster.node("n1").metrics(), 15, "the job's series", 0.1)
    wait_until(lambda: written_at(place) == 2, 10, "lines of both ranks", 0.1)
    assert sorted(name.rpartition(".")[2] for name in raw_files(cluster, job_id, "")) == [
        "box", "box", "prom", "prom",
    ], "lines are not below /run"  # fmt: skip
    cluster.run_as("root", ["scancel", str(job_id)])
    jobs.finish(cluster, job_id)
    assert "2 ranks" in jobs.report(cluster, job_id)
    assert jobs.traces(cluster, job_id) == []
    assert written_at(place) == 2, "the user's files stay"


def written_at(place: Path) -> int:
    """Files with lines there, compressed."""
    return sum(bool(path.stat().st_size) for path in place.glob("*.log.gz"))


@pytest.mark.case(OPTIONS, "json as the site's default; a step without it")
def test_json_may_be_a_sites_default_and_one_step_may_do_without(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    cluster.set_plugstack("default=json", "interval=100ms")
    usual, other = (jobs.standin(cluster, *SHORT) for _ in range(2))
    script = (
        f"mkdir a b; (cd a && srun {usual}); (cd b && srun --nccl-inspector=prom {other}); "
        "ls a b >seen; rm -r a b"
    )
    job_id = jobs.submit(cluster, *SMALL, script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert (cluster.home() / "seen").read_text().split() == [
        "a:", f"nccl-inspector-{job_id}", f"oplog.{job_id}", "b:", f"oplog.{job_id}",
    ]  # fmt: skip
    (summary,) = jobs.summaries(cluster, job_id).values()
    assert Counter(process.facts.step for process in summary.processes) == {0: 2, 1: 2}


@pytest.mark.case(OPTIONS, "json into a directory that cannot be made: only the lines are lost")
@pytest.mark.parametrize("place", ["/proc/lines", "/root/lines", "oplog.file/lines", "a" * 300])
def test_a_directory_that_cannot_be_costs_the_lines_alone(
    healthy_cluster: Cluster, place: str
) -> None:
    cluster = healthy_cluster
    job_id = run(cluster, f"json,dir={place},interval=100ms", *SMALL, before="touch oplog.file")
    assert "2 ranks" in jobs.report(cluster, job_id)
    assert jobs.summaries(cluster, job_id).keys() == {"n1"}


@pytest.mark.case(OPTIONS, "the site's deny list and budget reach the task; no option sets them")
def test_what_only_the_site_sets_reaches_the_task(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.set_conf(deny_nccl="2.28.0-2.28.5,recommended", budget="0.5")
    said = cluster.run_as(JOB_USER, ["srun", "-N1", "--nccl-inspector=prom", "env"]).stdout
    assert {
        "NCCL_INSPECTOR_DENY_NCCL=2.28.0-2.28.5,2.31.2",
        "NCCL_INSPECTOR_BUDGET_PERCENT=0.500",
        "NCCL_INSPECTOR_CONTROL_DIR=/run/nccl-inspector/control",
    } <= set(said.split("\n"))
    for key in ("deny_nccl=", "budget=0"):
        done = cluster.run_as(JOB_USER, ["srun", "-N1", f"--nccl-inspector=prom,{key}", "true"])
        assert done.returncode != 0
        assert 'unknown key "' in done.stderr
