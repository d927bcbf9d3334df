"""The sandbox cluster in other shapes: host names, prolog flags, lines of slurm.conf."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, NODES, Cluster, ClusterError, Options, given, tree, wait_until
from tests.sandbox.config import merged
from tests.support.sandbox.own_cluster import brought_up

BARE = Options(agents=False, monitoring=False)


def directories(cluster: Cluster, job_id: int) -> list[str]:
    """The nodes on which the prolog has made the job's directory."""
    return [
        name for name, node in cluster.nodes.items() if f"jobs/{job_id}/" in node.run_dir_listing()
    ]


# Host names.


@pytest.mark.long
def test_a_hosts_name_may_differ_from_its_node_name(cluster_dir: Path) -> None:
    with brought_up(cluster_dir, replace(BARE, host_prefix="gpu-host-")) as cluster:
        script = "echo $SLURMD_NODENAME $(uname -n) $(hostname)"
        done = cluster.run_as(JOB_USER, ["srun", "-N4", "sh", "-c", script])
        assert sorted(done.stdout.splitlines()) == [
            f"{name} gpu-host-{name} gpu-host-{name}" for name in NODES
        ]
        assert set(cluster.node_states()) == set(NODES)
        job_id = cluster.sbatch("--nodelist=n2", "--wrap", "sleep 100")
        cluster.wait_for_state(job_id, "RUNNING")
        assert directories(cluster, job_id) == ["n2"]


# Prolog flags.


def test_with_the_flag_alloc_every_node_has_had_its_prolog(cluster: Cluster) -> None:
    assert "PrologFlags=Alloc\n" in cluster.layout.slurm_conf.read_text()
    job_id = cluster.sbatch("-N2", "--wrap", "sleep 100")
    cluster.wait_for_state(job_id, "RUNNING")
    assert directories(cluster, job_id) == ["n1", "n2"]


@pytest.mark.long
def test_without_flags_a_node_without_a_step_has_had_none(cluster_dir: Path) -> None:
    with brought_up(cluster_dir, replace(BARE, prolog_flags="")) as cluster:
        job_id = cluster.sbatch("-N2", "--wrap", "srun -N1 -n1 touch ran; sleep 100")
        wait_until((cluster.home() / "ran").exists, 20, "the step ran")
        assert directories(cluster, job_id) == ["n1"]


@pytest.mark.long
def test_with_the_flag_contain_every_node_has_had_its_prolog(cluster_dir: Path) -> None:
    with brought_up(cluster_dir, replace(BARE, prolog_flags="Contain")) as cluster:
        job_id = cluster.sbatch("-N2", "--wrap", "sleep 100")
        cluster.wait_for_state(job_id, "RUNNING")
        assert directories(cluster, job_id) == ["n1", "n2"]


# slurm.conf.


def test_there_is_a_second_partition(cluster: Cluster) -> None:
    words = ["srun", "-N1", "-p", "cpu", "sh", "-c", "echo $SLURM_JOB_PARTITION"]
    assert cluster.run_as(JOB_USER, words).stdout == "cpu\n"
    assert cluster.run_as(JOB_USER, [*words[:2], *words[4:]]).stdout == "gpu\n"


@pytest.mark.long
def test_a_submit_plugin_in_lua_may_change_jobs(cluster_dir: Path) -> None:
    script = (
        "function slurm_job_submit(job, partitions, uid)\n"
        "  job.partition = 'cpu'\n  return slurm.SUCCESS\nend\n"
        "function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end\n"
    )
    files = (("job_submit.lua", script),)
    options = replace(BARE, slurm_lines=("JobSubmitPlugins=lua",), etc_files=files)
    with brought_up(cluster_dir, options) as cluster:
        words = ["srun", "-N1", "sh", "-c", "echo $SLURM_JOB_PARTITION"]
        assert cluster.run_as(JOB_USER, words).stdout == "cpu\n"
        assert Cluster.attach(cluster.layout.root).layout == cluster.layout


def test_a_line_replaces_the_line_of_its_key_and_of_no_other() -> None:
    lines = ["KillWait=5", "PartitionName=gpu Nodes=ALL", "PartitionName=cpu Nodes=ALL"]
    changes = ["KillWait=9", "PartitionName=cpu Nodes=n1", "PartitionName=big Nodes=n2"]
    assert merged(lines, changes) == ["KillWait=9", lines[1], *changes[1:]]


# Trees.


@pytest.fixture
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of trees."""
    monkeypatch.setenv("NCCL_INSPECTOR_TREES", str(tmp_path / "trees"))
    return tmp_path / "trees"


@pytest.mark.usefixtures("trees", "cluster_dir")
def test_a_release_that_no_mirror_has_is_one_error_with_the_reason() -> None:
    with pytest.raises(ClusterError, match=r"^nosuchsuite is not available: ") as caught:
        tree.make("nosuchsuite")
    assert "\n" not in str(caught.value)
    assert tree.find("nosuchsuite") is None


@pytest.mark.usefixtures("cluster_dir")
def test_a_folder_of_trees_that_others_can_write_is_refused(trees: Path) -> None:
    trees.mkdir()
    trees.chmod(0o777)
    with pytest.raises(ClusterError, match="not a directory that only we can write"):
        tree.make("trixie")


def test_a_tree_of_another_making_is_none(trees: Path) -> None:
    (trees / "trixie").mkdir(parents=True)
    assert tree.find("trixie") is None
    (trees / "trixie" / "nccl-inspector-tree.json").write_text('{"slurm": "1.2", "packages": []}')
    assert tree.find("trixie") is None


def test_the_mirror_is_the_one_of_the_hosts_own_suite() -> None:
    targets = (
        "http://tools.example.net/apt nodistro\n"
        "http://mirror.example.net/debian-security/ bookworm-security\n"
        "http://mirror.example.net/debian/ bookworm\n"
    )
    assert tree.pick_mirror(targets, "bookworm") == "http://mirror.example.net/debian/"
    with pytest.raises(ClusterError, match="apt takes jammy from no"):
        tree.pick_mirror(targets, "jammy")


def test_how_the_host_reaches_a_mirror_is_taken_and_nothing_else() -> None:
    dump = (
        'APT::Install-Recommends "1";\n'
        'Acquire::http "";\n'
        'Acquire::http::Proxy "http://proxy.example.net:3128";\n'
        'Acquire::http::Proxy-Auto-Detect "/usr/bin/detect";\n'
        'Acquire::Check-Valid-Until "true";\n'
        'Acquire::IndexTargets::deb::Packages::Optional "0";\n'
    )
    assert dict(tree.transport(dump)) == {
        "Acquire::Retries": "3",
        "Acquire::http::Proxy": "http://proxy.example.net:3128",
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Languages": "none",
    }


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [("slurm", "must be the absolute path"), ("/usr", "must be"), ("/usr/local", "must be"),
     ("/opt/no/slurm", "there is no /opt/no/slurm/sbin/slurmctld")],
)  # fmt: skip
def test_a_prefix_that_has_no_slurm_of_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch, prefix: str, reason: str
) -> None:
    monkeypatch.setenv("SLURM_PREFIX", prefix)
    assert given.releases() == (*tree.SUITES, "given")
    with pytest.raises(ClusterError, match=reason):
        given.release("given")


def test_without_a_prefix_there_is_no_given_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_PREFIX", raising=False)
    assert given.releases() == tree.SUITES
    with pytest.raises(ClusterError, match="SLURM_PREFIX must be"):
        given.release("given")
