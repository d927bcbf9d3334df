"""The whole way on each Slurm release that sites run, each in a Debian tree of its own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, NODES, Cluster, ClusterError, Options, given, wait_until
from tests.sandbox.processes import members
from tests.support.sandbox import jobs

# The first test of a release may have to make its tree.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
GPUS = "--gpus-per-task=1"
ENDLESS = ("--steps", "100000", *jobs.QUICK)


def on_release(suite: str, cluster_dir: Path, prolog_flags: str = "Alloc") -> Cluster:
    """A cluster of that release, or a skipped test where no mirror gives it."""
    try:
        given.release(suite)
    except ClusterError as err:
        pytest.skip(str(err))
    root = Path(tempfile.mkdtemp(prefix="nccl-inspector-test-", dir=cluster_dir.parent))
    options = Options(monitoring=False, tree=suite, prolog_flags=prolog_flags)
    return Cluster.up(root, options)


@pytest.fixture(scope="module", params=given.releases())
def release_cluster(request: pytest.FixtureRequest, cluster_dir: Path) -> Iterator[Cluster]:
    cluster = on_release(request.param, cluster_dir)
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def release(release_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster of each release; afterwards as after its start, and no node drained by the test."""
    yield release_cluster
    drained = [name for name, state in release_cluster.node_states().items() if state.drained]
    release_cluster.reset()
    assert not drained


def test_the_version_is_the_trees_and_every_node_a_host(
    release: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    version = release.run_as(JOB_USER, ["srun", "-V"]).stdout.split()[-1]
    with capsys.disabled():
        print(f" Slurm {version} ", end="")
    assert version == release.layout.slurm
    assert release.layout.release >= (24, 11)
    done = release.run_as(JOB_USER, ["srun", "-N4", "hostname"])
    assert sorted(done.stdout.split()) == list(NODES), done.stderr
    release.wait_idle()


def test_our_option_is_taken_on_every_node(release: Cluster) -> None:
    words = ["srun", "-N4", "--nccl-inspector=prom", "printenv", "NCCL_PROFILER_PLUGIN"]
    done = release.run_as(JOB_USER, words)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == len(NODES)
    assert len(set(done.stdout.split())) == 1


def measure(cluster: Cluster, *words: str) -> int:
    """A job of four ranks on four nodes, measured to its end."""
    script = f"srun {jobs.standin(cluster, '--steps', '5', *jobs.QUICK)}"
    asked = "--nccl-inspector=prom,interval=100ms", "-N4", "-n4"
    job_id = jobs.submit(cluster, *asked, *words, script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED", jobs.output(cluster, job_id)
    return job_id


def test_a_measured_job_is_collected_and_nothing_of_it_is_left(release: Cluster) -> None:
    job_id = measure(release, GPUS)
    found = jobs.summaries(release, job_id)
    assert found.keys() == set(NODES)
    operations = [
        sum(key.ops for key in process.keys)
        for summary in found.values()
        for process in summary.processes
    ]
    assert operations == [5 * 3] * 4
    assert "4 ranks" in jobs.report(release, job_id)
    release.wait_idle()
    assert jobs.traces(release, job_id) == []
    assert jobs.tasks(release) == []


@pytest.mark.parametrize("suite", given.releases())
def test_a_prolog_that_runs_inside_the_job_is_no_obstacle(suite: str, cluster_dir: Path) -> None:
    cluster = on_release(suite, cluster_dir, "RunInJob")
    try:
        jobs.set_stub(cluster)  # slurmd does not run a plugin's job_prolog there
        # No GPUs: with them 24.11.5 leaves the job in its prolog for ever, also without our hooks.
        assert jobs.summaries(cluster, measure(cluster)).keys() == set(NODES)
        cluster.wait_idle()
    finally:
        cluster.down()


def test_the_agent_is_run_by_the_trees_own_python(release: Cluster) -> None:
    version = release.node("n1").run(["python3", "-V"]).stdout
    assert version.split()[1].split(".") > ["3", "11"]
    agent = release.node("n1").process("agent")
    assert agent
    assert Path(f"/proc/{agent.pid}/root/etc/os-release").read_bytes() != (
        Path("/etc/os-release").read_bytes()
    )


def test_a_machine_changes_neither_its_tree_nor_the_repository(release: Cluster) -> None:
    assert release.layout.tree
    release.node("n1").run(["touch", "/usr/lib/planted"])
    assert not (release.layout.tree / "usr" / "lib" / "planted").exists()
    written = release.node("n1").run(["touch", f"{Path(__file__).parent}/planted"])
    assert "Read-only" in written.stderr


@pytest.mark.parametrize("suite", given.releases())
def test_down_ends_everything_in_a_tree(suite: str, cluster_dir: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    cluster = on_release(suite, cluster_dir)
    jobs.submit(cluster, "-N2", "-n2", GPUS, script=f"srun {jobs.standin(cluster, *ENDLESS)}")
    wait_until(lambda: len(jobs.tasks(cluster)) == 2, 10, "the job runs")
    before = members(cluster.layout)
    cluster.down()
    assert not any(process.alive() for process in before)
    assert not cluster.layout.root.exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts
