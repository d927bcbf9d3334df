"""Who shares a node with whom: eight tasks, two jobs, two users, and one who means harm."""

import re
import subprocess
from collections import defaultdict

import pytest

from tests.sandbox import JOB_USER, OTHER_USER, Cluster, Node, wait_until
from tests.support import exposition
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_exporter_is_well, ranks, series, wait_for_ranks
from tests.support.sandbox.small_jobs import SHARED

ENDLESS = ("--steps", "100000", *jobs.QUICK)
# NVIDIA's own names, which dashboards have: promtool would have seconds.
KEPT = {
    f'{name} use base unit "seconds" instead of "microseconds"'
    for name in ("nccl_collective_exec_time_microseconds", "nccl_p2p_exec_time_microseconds")
}


# Eight tasks.


@pytest.mark.long
@pytest.mark.case("Identities", "eight tasks that all see GPU 0")
def test_eight_tasks_that_all_see_ordinal_0_have_eight_sets_of_series(
    healthy_cluster: Cluster,
) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    command = jobs.standin(cluster, "--steps", "100000", "--sizes", "64K", "--comms", "world")
    visible = "echo visible $CUDA_VISIBLE_DEVICES"
    job_id = jobs.submit(
        cluster, "--nccl-inspector=prom", "--nodelist=n1", "-N1", "--ntasks-per-node=8",
        "--gpus-per-task=1", script=f"srun sh -c '{visible}; exec {command}'",
    )  # fmt: skip
    wait_for_ranks(node, job_id, 8)
    # One device each: whichever it is, CUDA calls it 0.
    given = re.findall("^visible ([0-9])$", jobs.output(cluster, job_id), re.MULTILINE)
    assert sorted(given) == list("01234567")
    assert {gpu for _, gpu in ranks(node, job_id)} == {f"GPU{minor}" for minor in range(8)}

    text = node.metrics()
    sets: dict[str, list[str]] = defaultdict(list)
    for one in series(node, job_id):
        if "rank" in one.labels:
            own = {key: value for key, value in one.labels.items() if key not in ("rank", "gpu")}
            sets[one.labels["rank"]].append(f"{one.name}{sorted(own.items())}")
    assert sets.keys() == set("01234567")
    assert len({frozenset(members) for members in sets.values()}) == 1, "the same for every rank"
    assert all(len(set(members)) == len(members) > 15 for members in sets.values())

    selector = f'nccl_collective_operations_total{{slurm_job_id="{job_id}"}}'
    wait_until(
        lambda: len({sample.labels["rank"] for sample in cluster.query(selector)}) == 8,
        5, "eight ranks in Prometheus", 0.1,
    )  # fmt: skip
    assert_exporter_is_well(node)
    assert promtool(text) == KEPT
    cluster.run_as("root", ["scancel", str(job_id)])
    jobs.finish(cluster, job_id)


def promtool(text: str) -> set[str]:
    """What promtool has against our part of an answer of node_exporter."""
    ours = re.findall(r"^(?:# (?:HELP|TYPE) )?nccl_.*\n", text, re.MULTILINE)
    assert len(ours) > 200
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input="".join(ours), capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    return set((done.stdout + done.stderr).splitlines())


# Two jobs and two users.


def start(cluster: Cluster, *words: str, user: str = JOB_USER, before: str = "") -> int:
    """An endless job of two tasks on a part of n1."""
    script = f"{before}\nsrun {jobs.standin(cluster, *ENDLESS, *words)}"
    return jobs.submit(cluster, *SHARED, "-n2", script=script, user=user)


@pytest.mark.long
@pytest.mark.case("Identities", "two jobs of two users on a node")
def test_two_jobs_on_a_node_have_series_and_reports_of_their_own(healthy_cluster: Cluster) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    users = JOB_USER, OTHER_USER
    ids = [start(cluster, user=user) for user in users]
    for job_id in ids:
        wait_for_ranks(node, job_id, 2)
    gpus = [{gpu for _, gpu in ranks(node, job_id)} for job_id in ids]
    assert len(gpus[0] | gpus[1]) == 4, "Slurm gave each its own"
    first, second = (
        {one.labels["user"] for one in series(node, job_id) if one.name.endswith("job_info")}
        for job_id in ids
    )
    assert (first, second) == ({JOB_USER}, {OTHER_USER})

    cluster.run_as("root", ["scancel", str(ids[0])])
    jobs.finish(cluster, ids[0])
    assert series(node, ids[0]) == []
    assert len(ranks(node, ids[1])) == 2, "the other goes on"
    assert cluster.job_state(ids[1]) == "RUNNING"
    cluster.run_as("root", ["scancel", str(ids[1])])
    jobs.finish(cluster, ids[1])
    for job_id, user in zip(ids, users, strict=True):
        text = jobs.report(cluster, job_id)
        assert f"job {job_id}, " in text
        assert f", user {user}, " in text
        (summary,) = jobs.summaries(cluster, job_id).values()
        assert {process.facts.procid for process in summary.processes} == {0, 1}
    assert_exporter_is_well(node)


@pytest.mark.long
@pytest.mark.case("Bad input", "another user's files and summaries cannot be read")
def test_nobody_reads_anothers_files_and_everybody_reads_his_own_summaries(
    healthy_cluster: Cluster,
) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    job_id = start(cluster)
    jobs.wait_for_operations(cluster, job_id, 2)
    raw = f"/run/nccl-inspector/jobs/{job_id}/raw"
    (box, *_) = (
        path for path in node.run_dir_listing()
        if path.startswith(f"jobs/{job_id}/raw/") and path.endswith(".box")
    )  # fmt: skip
    for argv in (["ls", raw], ["cat", f"/run/nccl-inspector/{box}"], ["touch", f"{raw}/x"]):
        assert "Permission denied" in node.run(argv, user=OTHER_USER).stderr
    for path in ("jobs", f"jobs/{job_id}", "ended"):
        done = node.run(["ls", f"/run/nccl-inspector/{path}"], user=OTHER_USER)
        assert "Permission denied" in done.stderr
    assert node.run(["ls", raw], user=JOB_USER).returncode == 0

    cluster.run_as("root", ["scancel", str(job_id)])
    jobs.finish(cluster, job_id)
    summary = cluster.layout.reports / str(job_id) / "n1.0.nodesummary"
    read = ["cmp", str(summary), str(summary)]
    assert cluster.run_as(JOB_USER, read).returncode == 0
    assert cluster.run_as(JOB_USER, ["ls", str(summary.parent)]).stdout == f"{summary.name}\n"
    for argv in (["cat", str(summary)], ["ls", str(summary.parent)]):
        assert "Permission denied" in cluster.run_as(OTHER_USER, argv).stderr
    for argv in (["rm", str(summary)], ["touch", str(summary)]):
        done = cluster.run_as(JOB_USER, ["sh", "-c", f"{' '.join(argv)} </dev/null"])
        assert "Permission denied" in done.stderr, "he may read it, not change it"


# One who means harm.

# Every trick with a name that the agent takes for a file of the living process STEM.
HOSTILE = r"""
cd /run/nccl-inspector/jobs/$SLURM_JOB_ID/raw || exit 1
name() { echo "nccl_inspector_metrics_GPU-$1_$stem.prom"; }
put() { printf '%s\n# EOF\n' "$2" >".$1" && mv ".$1" "$(name "$1")"; }
until
    stem=$(ls | sed -n 's/^nccl_inspector_\(0_[0-9]*\)[.]box$/\1/p' | head -n 1)
    series=$(grep -hs -m 1 ^nccl_collective_operations_total nccl_*_metrics_*_$stem.prom)
do sleep 0.1; done
put up 'up 0'
put foreign 'node_load1{} 666'
put label "$(echo "$series" | sed 's/{/{__foo="666",/')"
put value "$(echo "$series" | sed 's/ [^ ]*$/ NaN/')"
put spoof "$(echo "$series" | sed "s/slurm_job_id=\"[0-9]*\"/slurm_job_id=\"$victim\"/;
    s/ [^ ]*$/ 666/; s/comm=\"[^\"]*\"/comm=\"0xbad\"/")"
printf 'up 0\n' >x.prom
mkfifo y.prom "$(name fifo)"
ln -s /etc/passwd "$(name link)"
ln -s /etc/passwd z.prom
head -c 20971520 /dev/zero >"$(name big)"
mkdir -p "$(name dir)/$(printf 'd/%.0s' $(seq 200))"
echo hostile files are there
"""
REASONS = {
    "syntax": 1,  # up 0: ours always have labels
    "unknown_metric": 1,
    "unknown_label": 1,
    "not_finite": 1,
    "not_regular": 2,  # the FIFO, the directory
    "link": 1,
    "too_big": 1,
}


def rejected(node: Node) -> dict[str, float]:
    found = exposition.read_prom(node.metrics())
    name = "nccl_inspector_agent_rejected_files_total"
    return {one.labels["reason"]: one.value for one in found if one.name == name}


def attack(cluster: Cluster, victim: int) -> int:
    """A job of the other user: two tasks that are measured, and the hostile script beside them."""
    endless = jobs.standin(cluster, *ENDLESS)
    script = f"srun {endless} &\nvictim={victim}\n{HOSTILE}\nwait"
    job_id = jobs.submit(cluster, *SHARED, "-n2", script=script, user=OTHER_USER)
    wait_until(
        lambda: "hostile files are there" in jobs.output(cluster, job_id, OTHER_USER),
        15, "the hostile files", 0.1,
    )  # fmt: skip
    return job_id


@pytest.mark.case("Bad input", "links, FIFOs, huge files, spoofed and foreign series in raw/")
def test_a_hostile_user_harms_only_himself(healthy_cluster: Cluster) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    victim = start(cluster)
    wait_for_ranks(node, victim, 2)
    good = {one.labels["rank"] for one in series(node, victim) if "rank" in one.labels}
    before = rejected(node)
    job_id = attack(cluster, victim)

    def risen() -> dict[str, float]:
        now = rejected(node)
        return {reason: now[reason] - before.get(reason, 0) for reason in now}

    wait_until(
        lambda: all(risen().get(reason, 0) >= count for reason, count in REASONS.items()),
        10, f"refusals {REASONS}", 0.1,
    )  # fmt: skip
    text = node.metrics()
    assert not re.search(r"^(up|node_load1)\b|__foo|NaN|/bin/", text, re.MULTILINE)
    # The one file that keeps to the rules counts as what it is: his.
    spoofed = [one for one in exposition.read_prom(text) if one.labels.get("comm") == "0xbad"]
    assert [one.labels["slurm_job_id"] for one in spoofed] == [str(job_id)]
    assert {one.labels["rank"] for one in series(node, victim) if "rank" in one.labels} == good
    assert len(ranks(node, job_id)) >= 2, "his own true series go on"
    assert_exporter_is_well(node)

    cluster.run_as("root", ["scancel", str(job_id), str(victim)])
    for ended in (job_id, victim):
        jobs.finish(cluster, ended)
    assert series(node, job_id) == series(node, victim) == []
    (summary,) = jobs.summaries(cluster, victim).values()
    assert {process.facts.procid for process in summary.processes} == {0, 1}
    assert node.run(["test", "-s", "/etc/passwd"]).returncode == 0
    assert node.process("agent")
    assert node.process("node_exporter")
    assert "NCCL JOB REPORT" in jobs.report(cluster, job_id)


@pytest.mark.long
@pytest.mark.parametrize("box", ["fifo", "link", "garbage", "truncated"])
@pytest.mark.case("Bad input", "a box that is a FIFO, a link, random bytes, or cut")
def test_a_spoilt_box_is_told_and_the_job_is_collected_all_the_same(
    healthy_cluster: Cluster, box: str
) -> None:
    cluster = healthy_cluster
    name = "nccl_inspector_9_9.box"
    make = {
        "fifo": f"mkfifo {name}",
        "link": f"ln -s /etc/passwd {name}",
        "garbage": f"head -c 100000 /dev/urandom >{name}",
        "truncated": f"head -c 5000 nccl_inspector_0_*.box | head -c 5000 >{name}",
    }[box]
    script = (
        f"srun {jobs.standin(cluster, '--steps', '1', *jobs.QUICK)}\n"
        f"cd /run/nccl-inspector/jobs/$SLURM_JOB_ID/raw && {make} && echo made"
    )
    job_id = jobs.submit(cluster, *SHARED, "-n2", script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert "made" in jobs.output(cluster, job_id)
    (summary,) = jobs.summaries(cluster, job_id).values()
    assert {process.facts.procid for process in summary.processes} >= {0, 1}
    report = jobs.report(cluster, job_id)
    assert f"{name} is refused" in report
