"""The sandbox cluster keeps what the other tests and the demo rely on."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import (
    JOB_USER,
    NODES,
    OTHER_USER,
    Cluster,
    ClusterError,
    Options,
    config,
    host,
    layout,
    slurm,
    wait_until,
)
from tests.sandbox.layout import REPO
from tests.sandbox.processes import DAEMON_ENV, Process, members

BARE = Options(agents=False, monitoring=False)


@pytest.fixture
def other_dir(cluster_dir: Path) -> Iterator[Path]:
    """A second state directory; what a test leaves in it is ended."""
    root = Path(tempfile.mkdtemp(prefix="nccl-inspector-test-", dir=cluster_dir.parent))
    yield root
    command_line("down", root)


def command_line(command: str, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.sandbox", command, "--dir", str(root), *words],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def traces(root: Path) -> list[str]:
    """Every process whose command line, directory or mounts name `root`: found without our code."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            mounts = (entry / "mountinfo").read_text(errors="replace")
            if str(root) in f"{words} {(entry / 'cwd').readlink()} {mounts}":
                found.append(f"{entry.name}: {words}")
        except OSError:
            continue
    return found


# Bad surroundings first.


def test_without_root_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in (host.missing() or "")


def test_missing_packages_are_named_as_apt_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(DAEMON_ENV, "PATH", "/nonexistent")
    reason = host.missing() or ""
    assert "apt-get install" in reason
    assert {"munge", "slurmctld", "slurmd", "prometheus"} <= set(reason.split())


@pytest.mark.parametrize("name", ["a b", "a%n", "a;b", "x" * 80])
def test_a_path_that_slurm_or_munge_cannot_take_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClusterError, match="absolute path"):
        layout.check_root(tmp_path / name)


def test_a_directory_that_is_not_a_clusters_is_neither_filled_nor_deleted(other_dir: Path) -> None:
    precious = other_dir / "precious"
    precious.touch()
    for command in ("up", "down"):
        done = command_line(command, other_dir)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "not a cluster's state directory" in done.stderr
    assert precious.exists()
    precious.unlink()


def test_a_place_that_job_users_cannot_reach_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ClusterError, match="job users may not pass"):
        layout.check_reachable(tmp_path / "cluster")


def test_a_planted_link_is_refused(cluster_dir: Path, other_dir: Path) -> None:
    link = Path(f"{other_dir}.link")
    link.symlink_to(cluster_dir)
    try:
        with pytest.raises(ClusterError, match="not a directory that only we can write"):
            layout.check_root(link)
    finally:
        link.unlink()


FRESH_ETC = """
set -e
mount -t tmpfs none "$1" && mkdir "$1/up" "$1/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$1/up,workdir=$1/work" none /etc
for file in passwd group; do grep -E '^(root|nobody|nogroup):' "/etc/$file" >"$1/$file"; done
cp "$1/passwd" /etc/passwd && cp "$1/group" /etc/group && rm -f /etc/shadow /etc/gshadow
shift
exec "$@"
"""
SET_UP = """
import sys
from tests.sandbox import host
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.journal import Journal
from nccl_inspector.setup.site_file import SiteFile
from nccl_inspector.setup.steps import AccountStep
assert len(host.make_accounts()) == 3
for uid in (None, 642, 999):
    step = AccountStep(SiteFile().account, uid)
    print(step.look(Host(), Journal(Host(), "node")).text)
"""


def test_on_a_fresh_machine_setup_makes_its_account_after_the_demo(tmp_path: Path) -> None:
    """A site may want any uid that Debian would give to the next service."""
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", FRESH_ETC, "sh"]
    done = subprocess.run(
        [*argv, str(tmp_path), sys.executable, "-c", SET_UP],
        env=DAEMON_ENV | {"PYTHONPATH": f"{REPO}:{REPO / 'python'}"},
        cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["account nccl-inspector: make"] * 3


@pytest.mark.long
def test_starting_twice_is_refused(cluster: Cluster) -> None:
    done = command_line("up", cluster.layout.root)
    assert done.returncode == 1
    assert done.stderr.startswith("cluster: already up in")
    assert done.stderr.count("\n") == 1


# Slurm.


def test_every_node_is_a_host_of_its_own(cluster: Cluster) -> None:
    done = cluster.run_as(JOB_USER, ["srun", "-N4", "hostname"])
    assert sorted(done.stdout.split()) == list(NODES), done.stderr


def test_tasks_of_a_node_get_different_gpus(cluster: Cluster) -> None:
    words = ["srun", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1"]
    script = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    done = cluster.run_as(JOB_USER, [*words, "sh", "-c", script])
    assert sorted(done.stdout.splitlines()) == [f"{node} {gpu}" for node in NODES for gpu in "01"]


def test_jobs_run_as_the_user_in_a_directory_of_his_own(cluster: Cluster) -> None:
    for user in (JOB_USER, OTHER_USER):
        job_id = cluster.sbatch("--wrap", "id -un; pwd", user=user)
        assert cluster.wait_for_job(job_id).state == "COMPLETED"
        printed = (cluster.home(user) / f"slurm-{job_id}.out").read_text().split()
        assert printed == [user, str(cluster.home(user))]


def test_a_failed_job_keeps_its_exit_code(cluster: Cluster) -> None:
    job = cluster.wait_for_job(cluster.sbatch("--wrap", "exit 7"))
    assert (job.state, job.exit_code) == ("FAILED", "7:0")


def test_sbatch_that_refuses_is_an_error_with_its_words(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="nowhere"):
        cluster.sbatch("--partition=nowhere", "--wrap", "true")


def test_prologs_run_as_root_on_every_node_with_slurmds_variables(cluster: Cluster) -> None:
    out = cluster.layout.root / "log"
    cluster.add_hook("prolog", "10-env", f"#!/bin/sh\n(id -u; env) >{out}/env-$SLURMD_NODENAME\n")
    words = ("-N4", "--ntasks-per-node=1", "--gpus-per-task=2")
    job_id = cluster.sbatch(*words, "--wrap", "true")
    cluster.wait_for_job(job_id)
    for node in NODES:
        lines = (out / f"env-{node}").read_text().splitlines()
        assert lines[0] == "0"
        assert {
            f"SLURM_JOB_ID={job_id}",
            f"SLURM_JOB_USER={JOB_USER}",
            "SLURM_NODELIST=n[1-4]",
            "SLURM_CLUSTER_NAME=sandbox",
            "SLURM_JOB_GPUS=0,1",
            "SLURM_JOB_RESTART_COUNT=0",
        } <= set(lines)


@pytest.mark.long
def test_the_products_hooks_can_be_taken_away_and_put_back(cluster: Cluster) -> None:
    look = ("-N1", "--wrap", "test -d /run/nccl-inspector/jobs/$SLURM_JOB_ID")
    codes = []
    for on in (True, False, True):
        cluster.set_prolog(on=on)
        codes.append(cluster.wait_for_job(cluster.sbatch(*look), 20).exit_code)
    assert codes == ["0:0", "1:0", "0:0"]


def test_a_failing_prolog_drains_its_node_and_undrain_resumes_it(cluster: Cluster) -> None:
    cluster.add_hook("prolog", "99-bad", "#!/bin/sh\nexit 1\n")
    cluster.sbatch("--nodelist=n2", "--wrap", "true")
    node = cluster.node("n2")
    wait_until(lambda: node.state().drained, 10, "n2 is drained")
    assert "Prolog error" in node.state().reason
    cluster.add_hook("prolog", "99-bad", None)
    cluster.run_as("root", ["scancel", f"--user={JOB_USER}"])
    node.undrain()
    wait_until(lambda: node.state().idle, 10, "n2 is idle")


def test_a_slurmd_can_be_restarted_in_the_same_machine(cluster: Cluster) -> None:
    node = cluster.node("n3")
    node.run(["touch", "/run/nccl-inspector/control/kept"])
    assert node.stop("slurmd")
    node.start_slurmd()
    done = cluster.run_as(JOB_USER, ["srun", "--nodelist=n3", "cat", "/proc/sys/kernel/hostname"])
    assert done.stdout == "n3\n", done.stderr
    assert "control/kept" in node.run_dir_listing()
    node.run(["rm", "/run/nccl-inspector/control/kept"])


@pytest.mark.long
def test_a_requeued_job_starts_again_within_seconds(cluster: Cluster) -> None:
    job_id = cluster.sbatch("--requeue", "--wrap", "sleep 100")
    cluster.wait_for_state(job_id, "RUNNING")
    begun = time.monotonic()
    cluster.run_as("root", ["scontrol", "requeue", str(job_id)])
    wait_until(lambda: cluster.job(job_id).restarts == 1, 60, "the job is at its second start")
    assert cluster.wait_for_state(job_id, "RUNNING", 60).restarts == 1
    assert time.monotonic() - begun < 30


# The machines.


def test_the_run_directory_is_a_bounded_tmpfs_of_the_nodes_own(cluster: Cluster) -> None:
    first, second = cluster.node("n1"), cluster.node("n2")
    first.run(["touch", "/run/nccl-inspector/control/mark"])
    assert "control/mark" in first.run_dir_listing()
    assert "control/mark" not in second.run_dir_listing()
    assert not Path("/run/nccl-inspector/control/mark").exists()
    first.run(["rm", "/run/nccl-inspector/control/mark"])
    mount = second.run(["findmnt", "-no", "FSTYPE,OPTIONS", "/run/nccl-inspector"]).stdout
    assert mount.startswith("tmpfs")
    assert {"nosuid", "nodev", "noexec", "size=262144k", "nr_inodes=20480"} <= set(
        mount.split()[1].split(",")
    )
    modes = second.run(["sh", "-c", "cd /run/nccl-inspector; stat -c '%n %U %a' *"]).stdout
    assert modes.splitlines() == [
        "control root 755", "ended root 700", "jobs root 711", "prom root 755",
    ]  # fmt: skip


def test_nodes_have_eight_gpus_in_proc_with_uuids_of_their_own(cluster: Cluster) -> None:
    seen = set()
    for name in NODES:
        path = f"/proc/driver/nvidia/gpus/{config.gpu_bus_id(3)}/information"
        text = cluster.node(name).run(["cat", path]).stdout
        fields = dict(line.split(":", 1) for line in text.splitlines())
        assert fields["Device Minor"].strip() == "3"
        assert fields["GPU UUID"].strip() == config.gpu_uuid(name, 3)
        seen.add(fields["GPU UUID"])
        listed = cluster.node(name).run(["ls", "/proc/driver/nvidia/gpus"]).stdout.split()
        assert len(listed) == 8
    assert len(seen) == len(NODES)


def test_a_changed_setting_is_what_nodes_and_login_side_read(cluster: Cluster) -> None:
    cluster.set_conf(interval="700ms")
    for machine in (cluster.node("n4"), cluster.head):
        text = machine.run(["cat", "/etc/nccl-inspector/nccl-inspector.conf"]).stdout
        assert "interval = 700ms" in text.splitlines()


def test_nothing_of_a_machine_shows_on_the_host(cluster: Cluster) -> None:
    assert str(cluster.layout.root) not in Path("/proc/self/mountinfo").read_text()
    assert os.uname().nodename not in NODES


# Monitoring.


def test_a_published_file_reaches_prometheus_and_goes_stale(cluster: Cluster) -> None:
    path = "/run/nccl-inspector/prom/sandbox_check.prom"
    text = (
        "# HELP sandbox_check A test.\n# TYPE sandbox_check gauge\n"
        'sandbox_check{cluster="sandbox",node="n2"} 42\n'
    )
    node = cluster.node("n2")
    node.run(["sh", "-c", f"cat >{path}.tmp && mv {path}.tmp {path}"], stdin=text)
    assert 'sandbox_check{cluster="sandbox",node="n2"} 42' in node.metrics()
    wait_until(lambda: bool(cluster.query("sandbox_check")), 10, "the series in Prometheus", 0.1)
    (sample,) = cluster.query("sandbox_check")
    assert sample.value == 42
    assert sample.labels == {
        "__name__": "sandbox_check", "cluster": "sandbox", "instance": "n2",
        "job": "nccl-inspector", "node": "n2",
    }  # fmt: skip
    node.run(["rm", path])
    wait_until(lambda: not cluster.query("sandbox_check"), 10, "the series is stale", 0.1)
    assert cluster.query("sandbox_check", at=sample.time) == [sample]


def test_all_exporters_are_up_and_clean(cluster: Cluster) -> None:
    wait_until(lambda: len(cluster.query("up == 1")) == 4, 10, "four targets up", 0.1)
    for node in cluster.nodes.values():
        assert "node_textfile_scrape_error 0" in node.metrics()
        assert "level=error" not in node.exporter_log()


def test_a_bad_query_is_an_error_with_prometheus_words(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="parse error"):
        cluster.query("sum(")


# Life and death, on a second cluster beside the first.


def test_down_leaves_no_process_no_mount_and_no_directory(
    cluster: Cluster, other_dir: Path
) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    second = Cluster.up(other_dir, Options(agents=False))
    assert not set(second.layout.listeners()) & set(cluster.layout.listeners())
    script = "trap '' TERM; setsid sleep 1000 & srun sleep 1000 & while :; do sleep 1; done"
    second.wait_for_state(second.sbatch("-N2", "--wrap", script), "RUNNING")
    wait_until(lambda: len(traces(other_dir)) > 25, 10, "the job's processes run")
    # An orphan, as after a crashed slurmstepd.
    for process in members(second.layout):
        if "slurmstepd" in Path(f"/proc/{process.pid}/comm").read_text():
            process.send(signal.SIGKILL)
    second.down()
    assert not other_dir.exists()
    assert traces(other_dir) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert cluster.run_as(JOB_USER, ["srun", "-N4", "true"]).returncode == 0


@pytest.mark.long
def test_down_twice_is_no_error(other_dir: Path) -> None:
    Cluster.up(other_dir, BARE).down()
    done = command_line("down", other_dir)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("step", ["machine-head", "machine-n3", "slurmctld-head", "slurmd-n4"])
def test_a_start_killed_half_way_is_cleared_by_down(other_dir: Path, step: str) -> None:
    argv = [sys.executable, "-m", "tests.sandbox", "up", "--dir", str(other_dir)]
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.DEVNULL) as starter:
        wait_until((other_dir / "pids" / step).exists, 10, f"{step} started", 0.001)
        starter.kill()
    assert traces(other_dir)
    assert command_line("down", other_dir).returncode == 0
    assert not other_dir.exists()
    assert traces(other_dir) == []


@pytest.mark.long
def test_up_after_a_crash_clears_first(other_dir: Path) -> None:
    first = Cluster.up(other_dir, BARE)
    old = set(members(first.layout))
    assert first.head.stop("slurmctld", signal.SIGKILL)
    second = Cluster.up(other_dir, BARE)
    assert not any(process.alive() for process in old)
    assert second.run_as(JOB_USER, ["srun", "-N4", "true"]).returncode == 0


def test_a_pid_that_belongs_to_another_process_now_is_not_signalled() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        Process(child.pid, start=1).send(signal.SIGKILL)
        assert child.poll() is None
        child.kill()


@pytest.mark.long
def test_a_daemon_that_does_not_start_is_named(
    other_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = config.slurm_conf
    monkeypatch.setattr(config, "slurm_conf", lambda layout: f"{good(layout)}Nonsense=1\n")
    with pytest.raises(ClusterError, match=r"slurmctld-head ended: .*Nonsense"):
        Cluster.up(other_dir, BARE)
    assert traces(other_dir) == []


def test_status_says_when_nothing_is_up(other_dir: Path) -> None:
    done = command_line("status", other_dir)
    assert done.returncode == 3
    assert done.stderr == f"no cluster runs in {other_dir}\n"


# Parsing.


def test_scontrols_line_is_read_with_values_that_have_blanks() -> None:
    line = "NodeName=n1 State=IDLE+DRAIN Reason=Prolog error [root@2026-01-01T00:00:00]"
    state = slurm.parse_nodes(line + "\n")["n1"]
    assert state.drained
    assert not state.idle
    assert state.reason == "Prolog error [root@2026-01-01T00:00:00]"
