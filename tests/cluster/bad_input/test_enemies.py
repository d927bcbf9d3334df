"""What a job's user can do to files on the real cluster: it stays his own trouble."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.sandbox import OTHER_USER, Cluster, ClusterError, Node, lifetime, wait_until
from tests.support import exposition
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_exporter_is_well, ranks, series, wait_for_ranks
from tests.support.sandbox.small_jobs import ENDLESS, SHARED

pytestmark = pytest.mark.long  # all of them together
OPERATIONS = "nccl_collective_operations_total"
REJECTED = "nccl_inspector_agent_rejected_files_total"
# A file of the living process: whatever it holds, the agent looks at it.
EVIL = "$raw/nccl_inspector_metrics_evil${n}_${stem}.prom"
GAUGE = (
    'nccl_collective_inflight_seconds{cluster="c",slurm_job_id="VICTIM",node="n2",gpu="GPU0",'
    'rank="0",comm="0x1",comm_name="world"} 12345'
)


def write(text: str) -> str:
    """A command that writes a file of ours with this text."""
    return f'n=$((n+1)); printf "%s\\n" {shlex.quote(text)} "# EOF" > "{EVIL}"'


def link(target: str) -> str:
    return f'n=$((n+1)); ln -s {target} "{EVIL}"'


RUN = "/run/nccl-inspector"
# By the words of ecosystem.md: what is done, and the reason that the agent gives for it.
ATTACKS = {
    "a node's own metric": (write("node_load1 9999"), "syntax"),
    "up": (write('up{job="node"} 0'), "unknown_metric"),
    "the scrape's own error": (write('node_textfile_scrape_error{a="b"} 0'), "unknown_metric"),
    "a label that ends node_exporter": (
        write('nccl_bus_bandwidth_gbs{__name__="up"} 0'), "unknown_label",
    ),
    "a sample without a name": (write('{host="a"} 1'), "syntax"),
    "a type that ends node_exporter": (write("# TYPE m gaugehistogram"), "comment"),
    "a timestamp": (write(f"{GAUGE} 1700000000000"), "timestamp"),
    "a label of 1 MB": (
        f'n=$((n+1)); head -c 1000000 /dev/zero | tr "\\0" x > "{EVIL}"', "too_big",
    ),
    "a FIFO": (f'n=$((n+1)); mkfifo "{EVIL}"', "not_regular"),
    "a directory": (f'n=$((n+1)); mkdir "{EVIL}"', "not_regular"),
    "a link to a secret": (link("/etc/shadow"), "link"),
    "a link to another job's file": (link(f"{RUN}/jobs/VICTIM/manifest"), "link"),
    "a file of 100 MB": (f'n=$((n+1)); truncate -s 100M "{EVIL}"', "too_big"),
    "half a file": (f'n=$((n+1)); printf "nccl_bus" > "{EVIL}"', "torn"),
    "10,000 files": (
        'i=0; while [ $i -lt 10000 ]; do : > "$raw/x$i" || break; i=$((i+1)); done; '
        'i=0; while [ $i -lt 10000 ]; do rm -f "$raw/x$i"; i=$((i+1)); done',
        "too_many_files",
    ),
    "a file that grows": (
        f'n=$((n+1)); i=0; while [ $i -lt 3000 ]; do echo "{"y" * 90}" >> "{EVIL}"; '
        'i=$((i+1)); done', "torn",
    ),
}  # fmt: skip
# What must not work at all.
FORBIDDEN = (
    f"echo x > {RUN}/prom/1.prom", f"rm -f {RUN}/prom/*.prom", f"mv {RUN}/jobs/VICTIM /tmp/",
    f"ls {RUN}/jobs/VICTIM/raw", f"touch {RUN}/jobs/VICTIM/raw/x", f"touch {RUN}/control/disabled",
    f"rm -rf {RUN}/jobs/$SLURM_JOB_ID/manifest", f"ls {RUN}/ended", f"rmdir $raw {RUN}/jobs/*",
    "mv $raw $raw.old", f"cat {RUN}/control/at_work",
)  # fmt: skip


@dataclass
class Battle:
    """A victim's job and an enemy's, side by side on n1."""

    cluster: Cluster
    node: Node
    victim: int
    enemy: int

    def rejected(self) -> dict[str, float]:
        """The agent's counts by reason."""
        found = exposition.read_prom(self.node.metrics())
        return {one.labels["reason"]: one.value for one in found if one.name == REJECTED}

    def attack(self, name: str, command: str) -> None:
        """Do something as the enemy, in his job's place."""
        prepare = (
            f"raw={RUN}/jobs/{self.enemy}/raw; n={abs(hash(name)) % 10**9}; "
            "stem=$(ls $raw | sed -n 's/^nccl_inspector_\\([0-9x]*_[0-9]*\\)\\.box$/\\1/p' "
            "| head -1); "
        )
        command = command.replace("VICTIM", str(self.victim))
        env = {"SLURM_JOB_ID": str(self.enemy)}
        argv = ["env", *(f"{key}={value}" for key, value in env.items()), "sh", "-c"]
        done = self.node.run([*argv, prepare + command], user=OTHER_USER, timeout=60)
        assert done.returncode == 0, done.stderr

    def clear(self) -> None:
        """Take the enemy's files away again."""
        self.attack("clear", "chmod 700 $raw; rm -rf $raw/*evil* $raw/x*; true")


@pytest.fixture(scope="module")
def battle(shared_cluster: Cluster) -> Iterator[Battle]:
    cluster = shared_cluster
    cluster.set_plugstack("default=prom")
    command = f"srun {jobs.standin(cluster, *ENDLESS)}"
    node = cluster.node("n1")
    words = (*SHARED, "--ntasks=2")
    victim = jobs.submit(cluster, *words, script=command)
    enemy = jobs.submit(cluster, *words, script=command, user=OTHER_USER)
    try:
        for job_id in (victim, enemy):
            wait_for_ranks(node, job_id, 2)
        yield Battle(cluster, node, victim, enemy)
        assert not [name for name, state in cluster.node_states().items() if state.drained]
    finally:
        cluster.reset()


def identities(node: Node, job_id: int) -> set[str]:
    """Names and labels of the job's series, but for those that come and go with an interval."""
    lasting = [one for one in series(node, job_id) if one.name.endswith(("_total", "_info"))]
    return {f"{one.name}{sorted(one.labels.items())}" for one in lasting}


def progress(node: Node, job_id: int) -> float:
    return sum(one.value for one in series(node, job_id) if one.name == OPERATIONS)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_enemys_files_are_refused_with_a_reason_and_change_nothing_of_others(
    battle: Battle, name: str
) -> None:
    command, reason = ATTACKS[name]
    node, before = battle.node, battle.rejected().get(reason, 0)
    names = identities(node, battle.victim)
    done = progress(node, battle.victim)
    battle.attack(name, command)
    wait_until(lambda: battle.rejected().get(reason, 0) > before, 15, f"a refusal: {reason}", 0.1)
    assert_exporter_is_well(node)
    text = node.metrics()
    assert not re.search("^(up|node_load1|ALERTS)[ {]", text, re.MULTILINE)
    assert not re.search("} 12345( |$)", text, re.MULTILINE)
    assert "gaugehistogram" not in text
    wait_until(lambda: progress(node, battle.victim) > done, 15, "the victim goes on", 0.1)
    assert names <= identities(node, battle.victim)
    battle.clear()


def test_a_forged_identity_is_the_enemys_own(battle: Battle) -> None:
    node = battle.node
    battle.attack("forged", write(GAUGE))
    name = "nccl_collective_inflight_seconds"

    def forged() -> list[exposition.Series]:
        found = exposition.read_prom(node.metrics())
        return [one for one in found if one.name == name and one.value == 12345]

    wait_until(lambda: bool(forged()), 15, "the forged series", 0.1)
    (one,) = forged()
    assert (one.labels["slurm_job_id"], one.labels["node"]) == (str(battle.enemy), "n1")
    assert one.labels["cluster"] == "sandbox"
    assert_exporter_is_well(node)
    battle.clear()


@pytest.mark.parametrize("command", FORBIDDEN)
def test_what_is_not_his_he_cannot_touch(battle: Battle, command: str) -> None:
    listing = set(battle.node.run_dir_listing())
    battle.attack(command, f"if {command}; then echo it worked >&2; exit 9; fi")
    kept = {path for path in listing if path.startswith((f"jobs/{battle.victim}/", "control/"))}
    assert kept - {path for path in kept if ".tmp" in path} <= set(battle.node.run_dir_listing())
    assert ranks(battle.node, battle.victim)


@pytest.mark.parametrize("mode", ["000", "777"])
def test_the_mode_of_his_directory_is_his_own_matter(battle: Battle, mode: str) -> None:
    battle.attack("mode", f"chmod {mode} $raw")
    done = progress(battle.node, battle.victim)
    wait_until(lambda: progress(battle.node, battle.victim) > done, 15, "the victim goes on", 0.1)
    assert_exporter_is_well(battle.node)
    battle.clear()


def assert_goes_on(node: Node, job_id: int) -> None:
    done = progress(node, job_id)
    wait_until(lambda: progress(node, job_id) > done, 15, f"job {job_id} goes on", 0.1)


FILL = (
    'for size in 1M 4k 1; do dd if=/dev/zero bs=$size >>"$raw/xfill$size" 2>/dev/null; done; '
    'seq 30000 | sed "s|^|$raw/x|" | xargs touch 2>/dev/null; true'
)


def files_of_others(battle: Battle) -> set[str]:
    """What node_exporter reads, but for the enemy's own file, which he may lose by what he does."""
    found = exposition.read_prom(battle.node.metrics())
    read = {one.labels["file"] for one in found if one.name == "node_textfile_mtime_seconds"}
    return {path for path in read if not path.endswith(f"/{battle.enemy}.prom")}


def unwritten(node: Node) -> list[str]:
    """What the agent could not write of what is live; counters wait for their next minute."""
    lines = node.agent_log().splitlines()
    return [one for one in lines if "cannot be written" in one and "its counters" not in one]


@pytest.mark.case("Bad input", "a user who fills the tmpfs ends no series of other users")
def test_who_fills_the_tmpfs_ends_nobody_elses_series(battle: Battle) -> None:
    node, names = battle.node, identities(battle.node, battle.victim)
    files = files_of_others(battle)
    failed = unwritten(node)
    battle.attack("fill", FILL)
    try:
        # With a quota (Linux 6.6) there is room left, and he is at its end.
        left = node.run(["stat", "--file-system", "--format=%f %d", RUN]).stdout.split()
        quota = "usrquota" in node.run(["grep", f" {RUN} ", "/proc/mounts"]).stdout
        assert left == ["0", "0"] or quota
        for _ in range(3):
            assert_goes_on(node, battle.victim)
            assert identities(node, battle.victim) == names
            assert files_of_others(battle) == files
            assert_exporter_is_well(node)
        assert unwritten(node) == failed
        done = node.run(["sh", "-c", f"echo 0 >{RUN}/control/x && rm {RUN}/control/x"])
        assert done.returncode == 0, "the kill switch has room of its own"
    finally:
        battle.clear()


# Restarts of what is around the agent.


def restart_exporter(node: Node) -> None:
    node.stop("node_exporter")
    node.start_exporter()


def restart_slurmd(node: Node) -> None:
    node.stop("slurmd")
    node.start_slurmd()


@pytest.mark.parametrize("restart", [restart_exporter, restart_slurmd])
def test_the_agent_survives_restarts_around_it(
    battle: Battle, restart: Callable[[Node], None]
) -> None:
    agent = battle.node.process("agent")
    assert agent
    done = progress(battle.node, battle.victim)
    restart(battle.node)

    def goes_on() -> bool:
        try:
            return progress(battle.node, battle.victim) > done
        except ClusterError:
            return False

    wait_until(goes_on, 20, "the victim's series go on", 0.2)
    again = battle.node.process("agent")
    assert again
    assert again.pid == agent.pid


def test_the_agent_survives_a_restart_of_prometheus(battle: Battle) -> None:
    cluster, selector = battle.cluster, f'{OPERATIONS}{{slurm_job_id="{battle.victim}"}}'

    def known() -> bool:
        try:
            return bool(cluster.query(selector))
        except ClusterError:
            return False

    wait_until(known, 20, "series in Prometheus", 0.2)
    before = battle.node.process("agent")
    cluster.head.stop("prometheus")
    assert not known()
    lifetime.start_prometheus(cluster.layout)
    wait_until(known, 20, "series in Prometheus again", 0.2)
    assert before == battle.node.process("agent")
