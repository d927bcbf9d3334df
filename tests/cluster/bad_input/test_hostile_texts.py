"""Texts that users choose, on the real cluster.

Whatever they are: the job runs, its nodes stay, nothing of it is left, and nothing else is touched.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.agent.manifest import parse_manifest
from tests.sandbox import JOB_USER, Cluster, wait_until
from tests.support import exposition
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_exporter_is_well, assert_measured
from tests.support.sandbox.small_jobs import ENDLESS, ONE_NODE, SHORT, hook_script

pytestmark = pytest.mark.long  # all of them together
BAD_INPUT = "Bad input"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL"}


def case(words: str) -> pytest.MarkDecorator:
    return pytest.mark.case(BAD_INPUT, words)


def evil(canary: Path) -> str:
    """All that a shell, a line format, a terminal or printf could trip over."""
    return (
        f"x; touch {canary}; $(touch {canary}) `touch {canary}` | touch {canary} & "
        f"'q' \"d\" \\ %s%n * ~ $HOME ${{IFS}}\nend\nuid=0\nmode=off\n\x1b]0;x\x07\x1b[31m\ttab"
    )


def finish(cluster: Cluster, job_id: int) -> str:
    """The state that the job ended in, however it is called: scontrol prints its name verbatim."""
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T"]

    def state() -> str:
        return cluster.run_as("root", argv).stdout.strip()

    wait_until(lambda: state() in ENDED, 30, f"job {job_id} has ended", 0.1)
    jobs.wait_until_clean(cluster, job_id)
    return state()


# What a user's own plugin tells the hooks.

INJECTOR = r"""
#include <stdlib.h>
#include <slurm/spank.h>
SPANK_PLUGIN(injector, 1)
int slurm_spank_init_post_opt(spank_t spank, int ac, char **av)
{
	(void)ac, (void)av;
	spank_job_control_setenv(spank, "PATH", "/nowhere", 1);
	spank_job_control_setenv(spank, "NCCL_INSPECTOR_RUN_DIR", "/nowhere", 1);
	return spank_job_control_setenv(spank, "NCCL_INSPECTOR", getenv("INJECTED"), 1);
}
"""
INJECTED = {
    "quotes": "'prom' \"prom\"",
    "a newline": "prom\noff",
    "a newline at its end": "off\n",
    "a blank at its end": "off ",
    "100 KB": "p" * 100_000,
    "a command": "$(touch CANARY)",
    "backquotes": "`touch CANARY`",
    "a second command": "prom;touch CANARY",
    "a path": "../..",
    "an absolute path": "/etc/passwd",
    "an option": "--help",
    "a pattern": "*",
    "ESC": "\x1b]0;x\x07\x1b[31moff",
    "a format": "%s%n%s%n",
    "capitals": "OFF",
}


@pytest.fixture(scope="module")
def injecting_conf(shared_cluster: Cluster) -> Path:
    """A slurm.conf of the user's own, whose plugin tells the hooks what $INJECTED says."""
    cluster, home = shared_cluster, shared_cluster.home()
    plugin, stack, conf = (home / name for name in ("said.so", "said-stack.conf", "said.conf"))
    subprocess.run(
        ["gcc", *cluster.layout.slurm_cflags, "-shared", "-fPIC", "-x", "c", "-o", plugin, "-"],
        input=INJECTOR, text=True, check=True, timeout=20,
    )  # fmt: skip
    stack.write_text(f"required {plugin}\n")
    usual = cluster.layout.slurm_conf.read_text()
    conf.write_text(re.sub("(?m)^PlugStackConfig=.*", f"PlugStackConfig={stack}", usual))
    return conf


@pytest.mark.parametrize("word", INJECTED.values(), ids=INJECTED.keys())
@case("a user's own plugin tells the hooks a made-up mode")
def test_an_injected_word_costs_only_the_metrics_of_its_job(
    healthy_cluster: Cluster, canary: Path, injecting_conf: Path, word: str
) -> None:
    cluster = healthy_cluster
    note = cluster.layout.root / "log" / "said"
    cluster.take_hook("prolog")
    cluster.add_hook("prolog", "50-noted.sh", hook_script(cluster, "prolog", note))
    word = word.replace("CANARY", str(canary))
    env = {"SLURM_CONF": str(injecting_conf), "INJECTED": word, "SLURM_NCCL_INSPECTOR": "prom"}
    words = "--export=SLURM_NCCL_INSPECTOR", "--nodelist=n1"
    job_id = jobs.submit(cluster, *words, script="true", env=env)
    assert cluster.wait_for_job(job_id).exit_code == "0:0"
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    said, status = Path(f"{note}-{job_id}").read_text().split("\n", 1)
    assert f"job {job_id}: unknown SPANK_NCCL_INSPECTOR: {word[:1]}"[:-1] in said
    assert len(said) < 500
    assert said.isprintable()
    assert status == "status 0\n"
    assert jobs.summaries(cluster, job_id) == {}


# What a user says of his job.


def directory(cluster: Cluster, kind: str, canary: Path) -> Path:
    """A working directory of this kind."""
    names = {
        "blanks": "  two  blanks ",
        "newlines": "line\nend\nuid=0\nmode=off\nend\n",
        "a command": f"$(touch {canary})",
        "control characters": "\x1b[31m\x07\x7f",
        "quotes": "'\"`\\",
        "missing": "none",
        "unreadable": "closed",
    }
    path = Path(f"{cluster.home()}/{names[kind]}")
    if kind == "unreadable":
        path.mkdir(mode=0)
    elif kind != "missing":
        made = cluster.run_as(JOB_USER, ["mkdir", "-p", str(path)])
        assert made.returncode == 0, made.stderr
    return path


DIRECTORIES = (
    "blanks", "newlines", "a command", "control characters", "quotes", "missing", "unreadable",
)  # fmt: skip
TEXTS = ("comment", "job-name", "account", "wckey")


def run_measured(cluster: Cluster, *words: str) -> int:
    """A short measured job to its end; it leaves a copy of its manifest."""
    home = cluster.home()
    copy = f"cp /run/nccl-inspector/jobs/$SLURM_JOB_ID/manifest {home}/$SLURM_JOB_ID.manifest"
    run = f"srun --chdir={home} {jobs.standin(cluster, *SHORT)}"
    script = f"{copy} && cd {home} && exec {run}"
    job_id = jobs.submit(cluster, *ONE_NODE, f"--output={home}/%j.out", *words, script=script)
    assert finish(cluster, job_id) == "COMPLETED", jobs.output(cluster, job_id)
    return job_id


def manifest_of(cluster: Cluster, job_id: int) -> bytes:
    return (cluster.home() / f"{job_id}.manifest").read_bytes()


def masked(text: str) -> str:
    """A text as the manifest has it."""
    return re.sub(r"[\x00-\x1f\x7f]", "?", text)


@pytest.mark.parametrize("text", TEXTS)
@case("job comments, names and accounts with shell syntax, newlines or escapes")
def test_a_hostile_text_costs_nothing(healthy_cluster: Cluster, canary: Path, text: str) -> None:
    cluster = healthy_cluster
    job_id = run_measured(cluster, f"--{text}={evil(canary)}")
    manifest = parse_manifest(manifest_of(cluster, job_id))
    assert (manifest.job_id, manifest.user, manifest.mode) == (job_id, JOB_USER, "prom")
    assert manifest.uid > 0
    assert_measured(cluster, job_id)


@pytest.mark.parametrize("kind", DIRECTORIES)
@case("working directories with blanks, newlines or shell syntax, or missing, or not readable")
def test_a_hostile_working_directory_costs_nothing(
    healthy_cluster: Cluster, canary: Path, kind: str
) -> None:
    cluster = healthy_cluster
    path = directory(cluster, kind, canary)
    try:
        job_id = run_measured(cluster, f"--chdir={path}")
    finally:
        if kind == "unreadable":
            path.rmdir()
    manifest = parse_manifest(manifest_of(cluster, job_id))
    assert (manifest.job_id, manifest.user, manifest.mode) == (job_id, JOB_USER, "prom")
    assert manifest.work_dir.strip() == masked(str(path)).strip()
    assert_measured(cluster, job_id)


# Accounts whose names are no names.

USER_NAMES = {
    "a blank": "odd user",
    "shell syntax": "$(touch${IFS}CANARY);`touch${IFS}CANARY`&",
    "quotes": "o'd\"d\\",
    "capitals and a dot": "Odd.User@example.org",
    "a pattern": "*",
    "not ASCII": "jürgen",
}
ODD_UID = 58_231


@pytest.fixture
def odd_name(
    healthy_cluster: Cluster, canary: Path, request: pytest.FixtureRequest
) -> Iterator[str]:
    """An account of this name on the cluster's machines, and nowhere else."""
    name = str(request.param).replace("CANARY", str(canary))
    cluster = healthy_cluster
    passwd = cluster.layout.root / "etc" / "odd-passwd"
    home = cluster.layout.root / "home" / "odd"
    home.mkdir(exist_ok=True)
    home.chmod(0o777)
    line = f"{name}:x:{ODD_UID}:{ODD_UID}::{home}:/bin/sh\n"
    passwd.write_text(Path("/etc/passwd").read_text() + line)
    machines = [cluster.head, *cluster.nodes.values()]
    for machine in machines:
        mounted = machine.run(["mount", "--bind", str(passwd), "/etc/passwd"])
        assert mounted.returncode == 0, mounted.stderr
    yield name
    for machine in machines:
        assert machine.run(["umount", "/etc/passwd"]).returncode == 0


def submit_as_odd(cluster: Cluster, script: str) -> int:
    home = cluster.layout.root / "home" / "odd"
    become = ["setpriv", f"--reuid={ODD_UID}", f"--regid={ODD_UID}", "--clear-groups", "--"]
    words = ["sbatch", "--parsable", "--output=%j.out", *ONE_NODE]
    done = cluster.run_as(
        "root", [*become, *words], env=jobs.fake_gpus(cluster), cwd=home,
        stdin=f"#!/bin/sh\n{script}\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("odd_name", USER_NAMES.values(), ids=USER_NAMES.keys(), indirect=True)
@case("user names with blanks, quotes or shell syntax")
def test_a_user_of_any_name_is_measured(healthy_cluster: Cluster, odd_name: str) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    job_id = submit_as_odd(cluster, f"srun {jobs.standin(cluster, *ENDLESS)}")

    def infos() -> list[exposition.Series]:
        found = exposition.read_prom(node.metrics())
        return [one for one in found if one.name == "nccl_inspector_job_info"]

    wait_until(lambda: bool(infos()), 15, "the job's series", 0.1)
    (info,) = infos()
    assert info.labels["slurm_job_id"] == str(job_id)
    assert_exporter_is_well(node)
    cluster.run_as("root", ["scancel", str(job_id)])
    assert finish(cluster, job_id) == "CANCELLED"
    (summary,) = jobs.summaries(cluster, job_id).values()
    assert (summary.head.uid, summary.head.user) == (ODD_UID, odd_name)
    assert {process.facts.procid for process in summary.processes} == {0, 1}
    assert "NCCL JOB REPORT" in jobs.report(cluster, job_id)
