"""Files that a site gets wrong, on the real cluster: plugstack.conf, the plugin, the configuration.

The job runs, its nodes stay, nothing of it is left.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, Cluster
from tests.sandbox.config import replace_text
from tests.support.repository import REPO
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_measured
from tests.support.sandbox.small_jobs import ONE_NODE, SHORT

pytestmark = pytest.mark.long  # all of them together


def case(words: str) -> pytest.MarkDecorator:
    return pytest.mark.case("Bad input", words)


# plugstack.conf.


def run_plainly(cluster: Cluster) -> tuple[int, str]:
    """A job of a user who asks for nothing: it runs as if nothing were there. Its id, its words."""
    script = "env\necho tell me\nsrun true && echo all good"
    words = "--nodelist=n1", "--output=%j.out"
    done = cluster.run_as(
        JOB_USER, ["sbatch", "--parsable", *words], stdin=f"#!/bin/sh\n{script}\n"
    )
    assert done.returncode == 0, done.stderr
    job_id = int(done.stdout)
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert cluster.job(job_id).exit_code == "0:0"
    printed = jobs.output(cluster, job_id)
    assert "all good\n" in printed
    assert not re.search("^NCCL_", printed, re.MULTILINE)
    return job_id, done.stderr + printed.partition("tell me\n")[2]


PLUGSTACK = {
    "an unknown word": (("default=prom", "speed=9"), 'unknown key "speed"'),
    "no equals sign": (("prom",), 'unknown key "prom"'),
    "a bad value": (("default=loud",), 'default="loud" is not prom, json'),
    "shell syntax": (("default=$(touch${IFS}CANARY)",), 'default="$(touch${IFS}'),
    "a word of 3 kB": (("default=prom", "x" * 3000), 'unknown key "xxx'),
    "200 words": (("default=prom", *(f"k{n}=v" for n in range(200))), 'unknown key "k0"'),
    "a missing file": (("default=prom", "conf=/"), "/: Is a directory"),
}


@pytest.mark.parametrize(("words", "reason"), PLUGSTACK.values(), ids=PLUGSTACK.keys())
@case("a line in plugstack.conf with wrong words")
def test_a_bad_plugstack_line_costs_the_metrics_and_one_line_a_step(
    healthy_cluster: Cluster, canary: Path, words: tuple[str, ...], reason: str
) -> None:
    cluster = healthy_cluster
    cluster.set_plugstack(*(word.replace("CANARY", str(canary)) for word in words))
    job_id, told = run_plainly(cluster)
    assert told == "all good\n", "who asked for nothing is told nothing"
    lines = jobs.slurmd_lines(cluster, "n1", job_id)
    assert len(lines) == 2, "the batch step and the other"
    for line in lines:
        assert "no metrics: " in line
        assert reason in line
        assert len(line) < 800


@case("a line in plugstack.conf that is too long for Slurm")
def test_a_word_of_10_kilobytes_harms_no_job(healthy_cluster: Cluster, canary: Path) -> None:
    assert not canary.exists()
    healthy_cluster.set_plugstack("default=prom", "x" * 10_000)
    run_plainly(healthy_cluster)


# The plugin itself.


def build_for_another_slurm(cluster: Cluster, target: Path) -> None:
    """Our plugin as it would be built against the headers of a Slurm that is none of these."""
    tree = cluster.layout.tree
    headers = (tree / "usr/include/slurm") if tree else Path("/usr/include/slurm")
    include = target.with_suffix(".include")
    (include / "slurm").mkdir(parents=True)
    for header in headers.glob("*.h"):
        text = re.sub(
            "(#define SLURM_VERSION_NUMBER) .*", r"\1 0x170200",
            header.read_text(errors="replace"),
        )  # fmt: skip
        (include / "slurm" / header.name).write_text(text)
    words = f"-I{include}", f"-I{REPO}/build/gen", f"-I{REPO}/spank", f"-I{REPO}/plugin"
    subprocess.run(
        ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-shared", *words, "-o", target,
         *(REPO / "spank").glob("*.c"), f"-Wl,--version-script={REPO}/spank/spank.map"],
        check=True, timeout=60,
    )  # fmt: skip


# Not a library that ends in the middle: the dynamic loader dies of it (SIGBUS) in any program.
BROKEN = ("another Slurm's", "missing", "empty", "a directory", "a text", "closed")


MESSAGES = 2  # that Slurm itself prints at most for a plugin that cannot be loaded


def broken_plugin(cluster: Cluster, kind: str) -> Path:
    """A file in the plugin's place that is no plugin."""
    etc = cluster.layout.root / "etc"
    path = etc / f"broken-{kind.split()[-1].replace(chr(39), '')}.so"
    good = cluster.layout.product_root / "usr/lib/nccl-inspector/spank_nccl_inspector.so"
    match kind:
        case "another Slurm's":
            build_for_another_slurm(cluster, path)
        case "empty":
            path.touch()
        case "a directory":
            path.mkdir()
        case "a text":
            path.write_text("#!/bin/sh\nreboot\n")
        case "closed":
            path.write_bytes(good.read_bytes())
            path.chmod(0o600)
    return path


@pytest.mark.parametrize("kind", BROKEN)
@case("a plugin of another Slurm, missing, empty, a directory, no library, or not readable")
def test_a_plugin_that_does_not_load_harms_no_job(
    healthy_cluster: Cluster, canary: Path, kind: str
) -> None:
    assert not canary.exists()
    cluster = healthy_cluster
    path = broken_plugin(cluster, kind)
    stack = cluster.layout.root / "etc" / "plugstack.conf"
    line = f"optional {path} conf={cluster.layout.product_conf} default=prom\n"
    replace_text(stack, line)
    if kind == "closed":
        # Root can read it: slurmstepd loads what the user's commands cannot.
        done = cluster.run_as(JOB_USER, ["srun", "-N1", "true"])
        assert done.returncode == 0, done.stderr
    else:
        _, told = run_plainly(cluster)
        ours = [line for line in told.splitlines() if path.name in line]
        assert len(ours) <= 2 * MESSAGES, "of sbatch and of srun"
    refused = cluster.run_as(JOB_USER, ["srun", "-N1", "--nccl-inspector=prom", "true"])
    assert refused.returncode != 0
    assert "unrecognized option" in refused.stderr
    assert "nccl-inspector=prom" in refused.stderr


# The configuration file. (Others are in test_bad_input.py.)


STRANGE = {
    "binary": bytes(range(256)) * 16,
    "UTF-16": "default = prom\n".encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbfdefault = prom\n",
    "a line of 100 kB": b"default = " + b"p" * 100_000,
    "a line of 10 kB": b"default = " + b"p" * 10_000,
    "old Mac line ends": b"default = prom\rinterval = 1s\r",
}


def make_conf(path: Path, kind: str) -> None:
    """Put something in the configuration file's place."""
    path.unlink()
    match kind:
        case "1 GB":
            with path.open("wb") as file:
                file.truncate(1 << 30)
        case "a FIFO":
            subprocess.run(["mkfifo", "-m", "0644", path], check=True, timeout=10)
        case "a device":
            path.symlink_to("/dev/zero")
        case "a link to itself":
            path.symlink_to(path.name)
        case _:
            path.write_bytes(STRANGE[kind])


CONFS = {
    "1 GB": ": larger than 64 KiB",
    "a FIFO": ": not a regular file",
    "a device": ": not a regular file",
    "a link to itself": ": Too many levels of symbolic links",
    "binary": ":1: a control character: not a text file?",
    "UTF-16": ":1: a control character: not a text file?",
    "a byte order mark": ':1: unknown key "???default"',
    "a line of 100 kB": ": larger than 64 KiB",
    "a line of 10 kB": ":1: the line is too long",
    "old Mac line ends": ':1: default="prom?interval = 1s" is not prom, json',
}


@pytest.mark.parametrize(("kind", "reason"), CONFS.items(), ids=CONFS.keys())
@case("a configuration file of 1 GB, a FIFO, a device, a link to itself, binary, or with a BOM")
def test_a_strange_configuration_file_costs_the_metrics_and_one_line_a_step(
    healthy_cluster: Cluster, canary: Path, kind: str, reason: str
) -> None:
    assert not canary.exists()
    cluster, path = healthy_cluster, healthy_cluster.layout.product_conf
    cluster.set_plugstack("default=prom")
    make_conf(path, kind)
    try:
        job_id, told = run_plainly(cluster)
        # The command for users and the agent read it too, and end with a line.
        asked = cluster.node("n1").run(["nccl-inspector", "collect"], timeout=20)
    finally:
        path.unlink()
        cluster.set_conf()
    assert told == "all good\n"
    lines = jobs.slurmd_lines(cluster, "n1", job_id)
    assert len(lines) == 2, "the batch step and the other"
    assert all(f"no metrics: {path}{reason}" in line for line in lines)
    assert asked.returncode != 0
    assert len(asked.stderr.splitlines()) == 1
    assert path.name in asked.stderr


@case("a configuration file with Windows line ends: read as any other")
def test_line_ends_of_windows_are_line_ends(healthy_cluster: Cluster, canary: Path) -> None:
    assert not canary.exists()
    cluster, path = healthy_cluster, healthy_cluster.layout.product_conf
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n") + b"default = prom\r\n")
    script = f"srun {jobs.standin(cluster, *SHORT)}"
    job_id = jobs.submit(cluster, *ONE_NODE[1:], script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert_measured(cluster, job_id)
