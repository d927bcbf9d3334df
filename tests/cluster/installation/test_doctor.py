# SPDX-License-Identifier: Apache-2.0
"""The doctor on real machines: silent where all is well, and it finds what is really broken."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, Cluster, Options
from tests.sandbox.config import replace_text
from tests.sandbox.layout import HEAD, REPORT_USER
from tests.sandbox.lifetime import wait_until
from tests.sandbox.node import scontrol
from tests.support.sandbox import jobs
from tests.support.sandbox.controller_site import controlled
from tests.support.sandbox.doctors import ENV, command, doctor, found
from tests.support.sandbox.own_cluster import brought_up
from tests.support.sandbox.small_jobs import ENDLESS, controller_down

pytestmark = pytest.mark.long  # all of them together
PACKAGE = Path("usr/lib/nccl-inspector")
SPANK = "spank_nccl_inspector.so"


@pytest.fixture(scope="module")
def shared_cluster(cluster_dir: Path) -> Iterator[Cluster]:
    """A cluster for these tests alone: their faults leave errors in its logs, which others read."""
    with brought_up(cluster_dir, Options()) as own:
        yield own


def lacking(cluster: Cluster) -> set[str]:
    """What is really missing on a node: in a tree there is no pynvml for the tree's Python."""
    return {"nvml"} if cluster.layout.tree else set()


@pytest.mark.parametrize("name", ["n1", "n2", HEAD])
def test_all_is_well_on_a_healthy_cluster(healthy_cluster: Cluster, name: str) -> None:
    machine = healthy_cluster.head if name == HEAD else healthy_cluster.node(name)
    missing = lacking(healthy_cluster) if name != HEAD else set()
    assert found(machine).keys() == missing
    if not missing:
        assert doctor(machine) == (0, "all well")


def test_all_is_well_where_jobs_are_submitted(healthy_cluster: Cluster) -> None:
    assert doctor(healthy_cluster.head, "--role", "submit") == (0, "all well")


def test_a_node_whose_gpus_have_no_driver_library_is_told(healthy_cluster: Cluster) -> None:
    assert found(healthy_cluster.node("n4")).keys() == {"nvml"}


# Faults of a node, one at a time.


def run_on(cluster: Cluster, *words: str) -> None:
    done = cluster.node("n1").run([*words])
    assert done.returncode == 0, done.stderr


@contextmanager
def changed_library(cluster: Cluster, change: Callable[[bytes], bytes]) -> Iterator[None]:
    """Another SPANK plugin on n1 only. No job may run meanwhile."""
    path = cluster.layout.product_root / PACKAGE / SPANK
    other = cluster.layout.root / "other.so"
    other.write_bytes(change(path.read_bytes()))
    other.chmod(0o755)
    run_on(cluster, "mount", "--bind", str(other), str(path))
    try:
        yield
    finally:
        run_on(cluster, "umount", str(path))


def of_another_slurm(data: bytes) -> bytes:
    """The plugin with the number of another release, as Slurm reads it."""
    from nccl_inspector.doctor.elf import parse_elf

    number = parse_elf(data).numbers["plugin_version"].to_bytes(4, "little")
    assert data.count(number) >= 1
    return data.replace(number, (17 << 16 | 2 << 8).to_bytes(4, "little"))


@contextmanager
def hook_taken(cluster: Cluster) -> Iterator[None]:
    cluster.take_hook("prolog")
    yield
    cluster.set_prolog(on=True)


@contextmanager
def agent_stopped(cluster: Cluster) -> Iterator[None]:
    assert cluster.node("n1").stop("agent")
    yield
    cluster.node("n1").start_agent()


@contextmanager
def switched_off(cluster: Cluster) -> Iterator[None]:
    run_on(cluster, "sh", "-c", "echo '1 a test' >/run/nccl-inspector/control/disabled")
    yield
    run_on(cluster, "rm", "/run/nccl-inspector/control/disabled")


@contextmanager
def required(cluster: Cluster) -> Iterator[None]:
    path = cluster.layout.root / "etc" / "plugstack.conf"
    text = path.read_text()
    replace_text(path, text.replace("optional", "required"))
    yield
    replace_text(path, text)


@contextmanager
def no_line(cluster: Cluster) -> Iterator[None]:
    path = cluster.layout.root / "etc" / "plugstack.conf"
    text = path.read_text()
    replace_text(path, "")
    yield
    replace_text(path, text)


@contextmanager
def slurmd_before_the_plugin(cluster: Cluster) -> Iterator[None]:
    node = cluster.node("n1")

    def started() -> str:
        words = scontrol(cluster.layout, "show", "node", "n1").split()
        return next((word for word in words if word.startswith("SlurmdStartTime=")), "")

    before = started()
    with no_line(cluster):
        node.stop("slurmd")
        node.start_slurmd()
        wait_until(lambda: started() != before, 30, "slurmd has started without the plugin", 0.2)
        cluster.wait_idle()
    yield
    node.stop("slurmd")
    node.start_slurmd()
    cluster.wait_idle()


@contextmanager
def exporter_elsewhere(cluster: Cluster) -> Iterator[None]:
    node = cluster.node("n1")
    assert node.stop("node_exporter")
    address = cluster.layout.exporter_url("n1").removeprefix("http://")
    node.start(
        "node_exporter",
        ["prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
         "--collector.textfile.directory=/var/lib/other", f"--web.listen-address={address}"],
    )  # fmt: skip
    yield
    node.stop("node_exporter")
    node.start_exporter()


@contextmanager
def exporter_hidden(cluster: Cluster) -> Iterator[None]:
    """node_exporter has the right flag, and may not read the directory."""
    run_on(cluster, "chmod", "0700", "/run/nccl-inspector/prom")
    assert cluster.node("n1").stop("agent")  # it would mend that
    yield
    run_on(cluster, "chmod", "0755", "/run/nccl-inspector/prom")
    cluster.node("n1").start_agent()


@contextmanager
def open_ended(cluster: Cluster) -> Iterator[None]:
    run_on(cluster, "chmod", "0777", "/run/nccl-inspector/ended")
    yield
    run_on(cluster, "chmod", "0700", "/run/nccl-inspector/ended")


@contextmanager
def closed_reports(cluster: Cluster) -> Iterator[None]:
    """The shared storage takes nothing from the service account."""
    reports = cluster.layout.reports
    status = reports.stat()
    shutil.chown(reports, "root", "root")
    reports.chmod(0o711)
    yield
    shutil.chown(reports, status.st_uid, status.st_gid)
    reports.chmod(status.st_mode & 0o7777)


@contextmanager
def drained(cluster: Cluster) -> Iterator[None]:
    words = "nodename=n1", "state=drain", "reason=Prolog error"
    scontrol(cluster.layout, "update", *words)
    yield
    cluster.node("n1").undrain()


@contextmanager
def broken_settings(cluster: Cluster) -> Iterator[None]:
    cluster.write_conf("colour = red\n")
    yield
    cluster.set_conf()


@contextmanager
def unknown_word(cluster: Cluster) -> Iterator[None]:
    cluster.set_plugstack("colour=red")
    yield
    cluster.set_plugstack()


@contextmanager
def no_profiler(cluster: Cluster) -> Iterator[None]:
    cluster.set_conf(profiler="/usr/lib/nccl-inspector/none.so")
    yield
    cluster.set_conf()


@contextmanager
def no_account(cluster: Cluster) -> Iterator[None]:
    cluster.set_conf(report_user="no-such-account")
    yield
    cluster.set_conf()


FAULTS: dict[str, tuple[Callable[[Cluster], object], set[str]]] = {
    "a hook is missing": (hook_taken, {"hook-missing"}),
    "the agent does not run": (agent_stopped, {"agent-missing"}),
    "the kill switch is on": (switched_off, {"disabled"}),
    "plugstack.conf says required": (required, {"plugstack-required"}),
    "plugstack.conf has no line": (no_line, {"plugstack-line"}),
    "plugstack.conf has an unknown word": (unknown_word, {"plugstack-words"}),
    "slurmd is older than the plugin": (slurmd_before_the_plugin, {"slurmd-without-plugin"}),
    "the plugin is of another Slurm": (
        lambda cluster: changed_library(cluster, of_another_slurm), {"spank-other-slurm"}
    ),
    "the plugin was cut short": (
        lambda cluster: changed_library(cluster, lambda data: data[:20_000]), {"spank-broken"}
    ),
    "node_exporter reads another directory": (exporter_elsewhere, {"exporter-directory"}),
    "node_exporter may not read": (
        exporter_hidden, {"exporter-group", "agent-missing", "run-dir-modes", "scrape-error"}
    ),
    "a directory is open to all": (open_ended, {"run-dir-modes"}),
    # An ACL cannot be tried there.
    "report_dir takes nothing": (closed_reports, {"report-dir", "report-dir-acl"}),
    "the node was drained by a prolog": (drained, {"node-drained"}),
    "the settings have a mistake": (broken_settings, {"settings-refused", "plugstack-words"}),
    "the profiler is missing": (no_profiler, {"profiler-missing"}),
    # The agent still has the other one.
    "the account is missing": (no_account, {"account-missing", "agent-settings"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_really_there_is_found_and_no_other(cluster: Cluster, fault: str) -> None:
    plant, expected = FAULTS[fault]
    with plant(cluster):  # type: ignore[attr-defined]
        seen = found(cluster.node("n1")).keys() - lacking(cluster)
    if "settings-refused" in expected:  # then it looks where the defaults say
        assert expected <= seen
    else:
        assert seen == expected
    missing = lacking(cluster)
    wait_until(lambda: found(cluster.node("n1")).keys() == missing, 30, "all is well again")


def test_a_changed_setting_is_named_until_the_agent_has_read_it(cluster: Cluster) -> None:
    node, missing = cluster.node("n1"), lacking(cluster)
    agent = node.process("agent")
    assert agent
    cluster.set_conf(sweep_after="20m")
    seen = found(node)
    assert seen.keys() - missing == {"agent-settings"}
    assert seen["agent-settings"] == "sweep_after: it runs with 600s, configured is 1200s"
    agent.send(signal.SIGHUP)
    wait_until(lambda: found(node).keys() == missing, 30, "it is in force")
    cluster.set_conf()
    assert found(node).keys() - missing == {"agent-settings"}
    node.restart_agent()
    wait_until(lambda: found(node).keys() == missing, 30, "all is well again")


def test_a_node_that_prometheus_does_not_scrape_is_found(cluster: Cluster) -> None:
    node, words = cluster.node("n1"), ("--prometheus", cluster.layout.prometheus_url())
    missing = lacking(cluster)
    wait_until(lambda: found(node, *words).keys() == missing, 30, "the node is scraped")
    assert node.stop("node_exporter")
    wait_until(
        lambda: found(node, *words).keys() - missing == {"prometheus-scrape"}, 30, "it is not"
    )


def test_lines_of_slurm_conf_that_drain_or_break_are_found(cluster_dir: Path) -> None:
    lines = "Prolog=/usr/lib/nccl-inspector/prolog/*", "PrologEpilogTimeout=5"
    options = Options(monitoring=False, prolog_flags="", slurm_lines=lines)
    with brought_up(cluster_dir, options) as cluster:
        seen = found(cluster.node("n1")).keys() - lacking(cluster)
    # There is no node_exporter, unless another cluster has one.
    assert seen - {"exporter-missing"} == {"hook-below-package", "prolog-flags", "prolog-timeout"}


def test_a_slurmctld_that_does_not_answer_is_told_in_time(cluster: Cluster) -> None:
    with controller_down(cluster):
        status, text = doctor(cluster.node("n1"))
    assert status == 1
    assert "cannot tell: " in text


# Jobs.


@contextmanager
def running(cluster: Cluster, *words: str, **env: str) -> Iterator[int]:
    """A job of two ranks on n1 with some operations behind it."""
    job_id = jobs.submit(
        cluster, "--nodelist=n1", "--ntasks=2", "--gpus-per-task=1", *words,
        script=f"srun {jobs.standin(cluster, *ENDLESS)}", env=env,
    )  # fmt: skip
    jobs.wait_for_operations(cluster, job_id, 2)
    try:
        yield job_id
    finally:
        cluster.run_as("root", ["scancel", str(job_id)])
        cluster.wait_for_job(job_id)


def test_a_measured_job_is_well(healthy_cluster: Cluster) -> None:
    with running(healthy_cluster, "--nccl-inspector=prom") as job_id:
        assert doctor(healthy_cluster.node("n1"), "--job", str(job_id)) == (0, "all well")


def test_what_a_job_sets_itself_is_found(healthy_cluster: Cluster) -> None:
    own = str(healthy_cluster.tool("recorder.so"))
    env = {"NCCL_PROFILER_PLUGIN": own, "NCCL_RAS_ENABLE": "0", "NCCL_CONF_FILE": "/none"}
    with running(healthy_cluster, "--nccl-inspector=prom", **env) as job_id:
        seen = found(healthy_cluster.node("n1"), "--job", str(job_id))
    assert {"job-other-profiler", "job-ras-off", "job-nccl-conf-file"} <= seen.keys()
    assert own in seen["job-other-profiler"]


def test_one_variable_that_a_job_changed_is_named(healthy_cluster: Cluster) -> None:
    env = {"NCCL_INSPECTOR_ENABLE_P2P": "0"}
    with running(healthy_cluster, "--nccl-inspector=prom", **env) as job_id:
        seen = found(healthy_cluster.node("n1"), "--job", str(job_id))
    assert seen == {}, "a variable that the user set first is the user's, and not marked"


def test_a_job_that_was_not_to_be_measured_is_told(healthy_cluster: Cluster) -> None:
    with running(healthy_cluster, "--nccl-inspector=off") as job_id:
        seen = found(healthy_cluster.node("n1"), "--job", str(job_id))
    assert {"job-directory", "job-no-variables"} <= seen.keys()


def inside(cluster: Cluster, job_id: int, **env: str) -> dict[str, str]:
    """What the doctor does not find well in a step of the job, as the job's user."""
    program = command(cluster.head)
    if cluster.run_as(JOB_USER, [*program, "--version"], env=ENV).returncode:
        pytest.skip("users may not run this interpreter; those of the trees may be run")
    step = "srun", f"--jobid={job_id}", "--overlap", "-n1", "--gres=none", "--nccl-inspector=prom"
    done = cluster.run_as(JOB_USER, [*step, *program, "doctor", "--job", "--json"], env=ENV | env)
    checks = json.loads(done.stdout)["checks"]
    return {one["id"]: one["evidence"] for one in checks if one["outcome"] != "well"}


def test_inside_a_measured_job_its_user_sees_that_all_is_well(healthy_cluster: Cluster) -> None:
    with running(healthy_cluster, "--nccl-inspector=prom") as job_id:
        assert inside(healthy_cluster, job_id) == {}


def test_inside_a_job_what_its_user_set_is_found(healthy_cluster: Cluster) -> None:
    home = healthy_cluster.home()
    conf = home / ".nccl.conf"
    conf.write_text("NCCL_RAS_ENABLE=0\n")
    try:
        with running(healthy_cluster, "--nccl-inspector=prom") as job_id:
            seen = inside(healthy_cluster, job_id, NCCL_PROFILER_PLUGIN="/nowhere/own.so")
    finally:
        conf.unlink()
    assert seen.keys() == {"job-other-profiler", "job-plugin-hidden", "job-nccl-conf"}
    assert "NCCL_RAS_ENABLE=0" in seen["job-nccl-conf"]


# The controller.


def test_the_controller_service_is_well_and_its_faults_are_found(cluster_dir: Path) -> None:
    with controlled(cluster_dir.parent) as service:
        service.start()
        head, words = service.cluster.head, ("--role", "controller", "--conf", str(service.conf))
        status = service.folder / "state" / "status.json"
        wait_until(status.exists, 30, "the service has written its status")
        assert doctor(head, *words) == (0, "all well")
        (service.folder / "failed" / "7.1.u1000").touch()
        assert found(head, *words).keys() == {"reports-set-aside"}
        (service.folder / "failed" / "7.1.u1000").unlink()
        shutil.chown(service.store, "root", "root")
        assert found(head, *words).keys() == {"store-dir"}
        shutil.chown(service.store, REPORT_USER, REPORT_USER)
        service.stop()
        (service.folder / "queue").chmod(0o700)
        assert found(head, *words).keys() == {"queue-modes"}
        (service.folder / "queue").rmdir()
        assert found(head, *words).keys() == {"queue-missing"}
