"""Nodes on which the package is missing, comes, goes or is broken: jobs run, and no node drains.

On a cluster whose slurm.conf and plugstack.conf are as install.md says.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sandbox import Cluster, Options
from tests.sandbox.config import replace_text
from tests.sandbox.layout import REPO
from tests.sandbox.lifetime import wait_until
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_nothing_missing
from tests.support.sandbox.own_cluster import brought_up
from tests.support.sandbox.small_jobs import ONE_NODE, SHORT, run
from tests.tools.verified import SESSION

pytestmark = pytest.mark.long  # all of them together
PACKAGE = "usr/lib/nccl-inspector"
SECTION = "Installation"
DEADLINE_S = 5
RECONFIGURE_STARTS_ANEW = (24, 11)  # of those that are run, from this on slurmd loads its plugins


def case(words: str) -> pytest.MarkDecorator:
    return pytest.mark.case(SECTION, words)


def recommended() -> tuple[str, ...]:
    """The lines of slurm.conf that the page tells a site to have, for its nodes."""
    text = (REPO / "packaging" / "doc" / "install.md").read_text()
    section = text.partition("\n## Turn on\n")[2].partition("\n## ")[0]
    return tuple(
        re.findall(r"\b(?:Prolog|Epilog|PrologFlags|PrologEpilogTimeout)=[^\s`]+", section)
    )


@pytest.fixture(scope="module")
def site(cluster_dir: Path) -> Iterator[Cluster]:
    """A cluster with the page's lines in slurm.conf, and none for hooks besides."""
    lines = "Prolog=", "Epilog=", "PrologEpilogTimeout=20", *recommended()
    with brought_up(cluster_dir, Options(monitoring=False, slurm_lines=lines)) as cluster:
        SESSION.slurm = cluster.layout.slurm
        yield cluster


@pytest.fixture
def at_site(site: Cluster) -> Iterator[Cluster]:
    """The site's cluster; afterwards put back. No test may drain a node."""
    yield site
    drained = {name for name, state in site.node_states().items() if state.drained}
    site.reset()
    assert not drained


def restart_slurmd(cluster: Cluster, name: str) -> None:
    assert cluster.node(name).stop("slurmd")
    cluster.node(name).start_slurmd()
    cluster.wait_idle()


def slurmd_start(cluster: Cluster, name: str) -> str:
    """When the node's slurmd started, in Slurm's words (to the second)."""
    shown = cluster.run_as("root", ["scontrol", "--oneliner", "show", "node", name]).stdout
    return str(re.findall(r"\bSlurmdStartTime=(\S+)", shown)[0])


def hide_package(cluster: Cluster, name: str) -> None:
    """The node as it would be had nobody installed the package there."""
    for place in (f"/{PACKAGE}", str(cluster.layout.product_root / PACKAGE)):
        done = cluster.node(name).run(["mount", "-t", "tmpfs", "none", place])
        assert done.returncode == 0, done.stderr


def show_package(cluster: Cluster, name: str) -> None:
    for place in (f"/{PACKAGE}", str(cluster.layout.product_root / PACKAGE)):
        cluster.node(name).run(["umount", "--lazy", place])


@contextmanager
def without_package(cluster: Cluster, name: str) -> Iterator[None]:
    hide_package(cluster, name)
    try:
        yield
    finally:
        show_package(cluster, name)


def assert_unmeasured(cluster: Cluster) -> None:
    """A job that asks for metrics runs on n1 without them."""
    job_id, state = run(cluster, *ONE_NODE)
    assert (state, cluster.job(job_id).exit_code) == ("COMPLETED", "0:0")
    assert jobs.summaries(cluster, job_id) == {}
    cluster.wait_idle()


def assert_measured(cluster: Cluster) -> None:
    job_id, state = run(cluster, *ONE_NODE)
    assert state == "COMPLETED"
    assert jobs.summaries(cluster, job_id).keys() == {"n1"}


@case("every node has the package: measured, without a line in slurm.conf for hooks")
def test_jobs_are_measured_as_the_readme_says(at_site: Cluster) -> None:
    text = at_site.layout.slurm_conf.read_text()
    assert not re.search(r"(?m)^(Prolog|Epilog)=", text)
    assert_measured(at_site)


@case("a node on which the package was never installed")
def test_a_node_without_the_package_runs_jobs_and_does_not_drain(at_site: Cluster) -> None:
    with without_package(at_site, "n1"):
        restart_slurmd(at_site, "n1")
        assert_unmeasured(at_site)
        job_id, state = run(at_site, "--nodelist=n1", "--ntasks=2", "--gpus-per-task=1")
        assert (state, at_site.job(job_id).exit_code) == ("COMPLETED", "0:0")
    restart_slurmd(at_site, "n1")
    assert_measured(at_site)


@case("a job over nodes with and without the package")
def test_one_node_without_the_package_costs_only_its_own_figures(at_site: Cluster) -> None:
    with without_package(at_site, "n1"):
        restart_slurmd(at_site, "n1")
        words = "--nccl-inspector=prom", "--nodelist=n[1-2]", "--ntasks=2"
        job_id, state = run(at_site, *words, "--gpus-per-task=1")
        assert (state, at_site.job(job_id).exit_code) == ("COMPLETED", "0:0")
        assert jobs.summaries(at_site, job_id).keys() == {"n2"}
    restart_slurmd(at_site, "n1")


@case("the package is removed while slurmd runs, and while a job runs")
def test_a_package_that_is_removed_while_a_job_runs_drains_nothing(at_site: Cluster) -> None:
    barrier = at_site.layout.root / "log" / "removed"
    wait = f"while [ ! -e {barrier} ]; do sleep 0.1; done"
    job_id = jobs.submit(at_site, *ONE_NODE, script=f"echo up; {wait}; true")
    at_site.wait_for_state(job_id, "RUNNING")
    with without_package(at_site, "n1"):
        barrier.touch()
        ended = at_site.wait_for_job(job_id)
        assert (ended.state, ended.exit_code) == ("COMPLETED", "0:0")
        at_site.wait_idle()
        assert_unmeasured(at_site)
    assert_measured(at_site)
    at_site.node("n1").run(["rm", "-r", f"/run/nccl-inspector/jobs/{job_id}"])


@case("the package is installed while a job runs: measured after a restart of slurmd")
def test_a_package_that_is_installed_while_slurmd_runs_waits_for_its_restart(
    at_site: Cluster,
) -> None:
    cluster = at_site
    with without_package(cluster, "n1"):
        restart_slurmd(cluster, "n1")
        job_id = jobs.submit(cluster, "--nodelist=n1", script="sleep 2; srun true")
        cluster.wait_for_state(job_id, "RUNNING")
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert_unmeasured(cluster)
    if cluster.layout.release >= RECONFIGURE_STARTS_ANEW:
        started = slurmd_start(cluster, "n1")
        assert cluster.run_as("root", ["scontrol", "reconfigure"]).returncode == 0
        wait_until(lambda: slurmd_start(cluster, "n1") != started, 30, "slurmd starts anew")
        cluster.wait_idle()
    else:
        restart_slurmd(cluster, "n1")
    assert_measured(cluster)


@case("the line in plugstack.conf is removed while slurmd runs")
def test_without_its_line_the_plugin_is_gone_and_nothing_drains(at_site: Cluster) -> None:
    stack = at_site.layout.root / "etc" / "plugstack.conf"
    replace_text(stack, "")
    job_id = jobs.submit(at_site, "--nodelist=n1", script="srun true")
    assert jobs.finish(at_site, job_id) == "COMPLETED"
    stack.unlink()
    job_id = jobs.submit(at_site, "--nodelist=n1", script="srun true")
    assert jobs.finish(at_site, job_id) == "COMPLETED"


# The hooks themselves.


BROKEN = {
    "missing": "rm -f $1",
    "a dangling link": "ln -sf /nonexistent/hook $1",
    "not executable": "rm -f $1; echo '#!/bin/sh' >$1",
    "a directory": "rm -f $1; mkdir $1",
    "without its interpreter": "rm -f $1; echo '#!/nonexistent' >$1; chmod 755 $1",
    "exit 1": "rm -f $1; printf '#!/bin/sh\\nexit 1\\n' >$1; chmod 755 $1",
    "killed": "rm -f $1; printf '#!/bin/sh\\nkill -9 $$\\n' >$1; chmod 755 $1",
}


@contextmanager
def broken_hooks(cluster: Cluster, how: str) -> Iterator[None]:
    """Both hooks, on all nodes, replaced in this way."""
    hooks = [cluster.layout.hooks / kind / "50-nccl-inspector.sh" for kind in ("prolog", "epilog")]
    for hook in hooks:
        cluster.head.run(["sh", "-ec", how, "sh", str(hook)])
    try:
        yield
    finally:
        for hook in hooks:
            cluster.head.run(["rm", "-rf", str(hook)])
        cluster.set_prolog(on=True)


@pytest.mark.parametrize("how", BROKEN.values(), ids=BROKEN.keys())
@case("a hook is missing, a dangling link, a directory, not executable, fails, is killed")
def test_a_broken_hook_costs_the_metrics_and_drains_nothing(at_site: Cluster, how: str) -> None:
    with broken_hooks(at_site, how):
        assert_unmeasured(at_site)
    assert_measured(at_site)


HANG = "rm -f $1; printf '#!/bin/sh\\ntrap \"\" TERM\\nsleep 600 &\\nwait\\n' >$1; chmod 755 $1"


@case("a hook that hangs: killed after five seconds")
def test_a_hook_that_hangs_costs_seconds_and_drains_nothing(at_site: Cluster) -> None:
    with broken_hooks(at_site, HANG):
        job_id = jobs.submit(at_site, "--nodelist=n1", script="srun true")
        begun = time.monotonic()
        assert at_site.wait_for_job(job_id).state == "COMPLETED"
        at_site.wait_idle()
        assert time.monotonic() - begun > 2 * DEADLINE_S
        log = at_site.node("n1").slurmd_log()
        for kind in ("prolog", "epilog"):
            assert f"job {job_id}: the {kind} hook was killed after 5 s" in log
    assert_measured(at_site)


# Both ways at once, and the other way alone.


@case("callbacks and slurm.conf's Prolog together: the hooks run twice")
def test_hooks_that_run_twice_make_one_directory_and_one_report(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    jobs.set_stub(cluster)
    job_id, state = run(cluster, *ONE_NODE)
    assert state == "COMPLETED"
    assert jobs.summaries(cluster, job_id).keys() == {"n1"}
    assert_nothing_missing(jobs.report(cluster, job_id))
    jobs.wait_until_clean(cluster, job_id)
    assert not [line for line in jobs.slurmd_lines(cluster, "n1", job_id) if "hook" in line]


@case("nccl-inspector-hook as Prolog and Epilog, on nodes with and without the package")
def test_the_stub_measures_with_the_package_and_does_nothing_without(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    cluster.set_prolog(on=False)
    assert_unmeasured(cluster)
    jobs.set_stub(cluster)
    assert_measured(cluster)
    with without_package(cluster, "n1"):
        job_id = jobs.submit(
            cluster, "--nodelist=n1", script=f"srun {jobs.standin(cluster, *SHORT)}"
        )
        assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert_measured(cluster)
