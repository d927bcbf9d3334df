"""What is wrong is refused where it is submitted, or costs the metrics and never the job."""

import re

import pytest

from tests.sandbox import JOB_USER, Cluster, wait_until
from tests.support.sandbox import jobs

MODES = "modes: prom, json, prom+json, report, off"
KEYS = (
    "keys: interval, p2p, min_size, verbose, dir, gzip, json_max, json_min_size, phases, "
    "host_time, broadcasts, net, debug, ras, fr, fr_pipe"
)
BAD_VALUES = {
    "bogus": ("bogus", 'unknown mode "bogus"', MODES),
    "negative": ("prom,interval=-3", 'interval="-3" is not a number', KEYS),
    "unknown key": ("prom,speed=9", 'unknown key "speed"', KEYS),
    "10 kB": ("p" * 10_000, "more than 1024 bytes", MODES),
    "control characters": ("prom\x1b[31m\n2", 'unknown mode "prom?[31m?2"', MODES),
    "nothing": ("", 'unknown mode ""', MODES),
    "json+prom": ("json+prom", 'unknown mode "json+prom"', MODES),
    "a bare dir": ("json,dir", "dir needs a value: dir=...", KEYS),
}
COMMANDS = {
    "sbatch": ["--wrap", "true"],
    "srun": ["true"],
    "salloc": ["true"],
}


def known_jobs(cluster: Cluster) -> set[str]:
    """Every job that Slurm has heard of, ended ones too."""
    argv = ["squeue", "--noheader", "--states=all", "--format=%A"]
    return set(cluster.run_as("root", argv).stdout.split())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("value", "problem", "good"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
@pytest.mark.case("Bad input", "a bad value of the option is refused at submit")
def test_a_bad_value_is_refused_in_one_line_with_the_good_ones(
    healthy_cluster: Cluster, command: str, value: str, problem: str, good: str
) -> None:
    before = known_jobs(healthy_cluster)
    argv = [command, f"--nccl-inspector={value}", *COMMANDS[command]]
    done = healthy_cluster.run_as(JOB_USER, argv)
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = (line for line in done.stderr.split("\n") if ": nccl-inspector: " in line)
    assert line.startswith(f"{command}: error: nccl-inspector: ")
    assert problem in line
    assert line.endswith(good)
    assert len(line) < 300
    assert line.isprintable()
    assert known_jobs(healthy_cluster) == before


@pytest.mark.case("Bad input", "a bad value of the option is refused at submit")
def test_a_bad_line_in_the_script_is_refused(healthy_cluster: Cluster) -> None:
    before = known_jobs(healthy_cluster)
    script = "#!/bin/sh\n#SBATCH --nccl-inspector=bogus\ntrue\n"
    done = healthy_cluster.run_as(JOB_USER, ["sbatch"], stdin=script)
    assert done.returncode != 0
    assert f'unknown mode "bogus"; {MODES}' in done.stderr
    assert known_jobs(healthy_cluster) == before


# A broken configuration file.

AGENT_SERIES = "nccl_inspector_agent_last_pass_timestamp_seconds"


def wait_for_agents(cluster: Cluster) -> None:
    """They keep what they have read; one that begins with a broken file does not run."""

    def all_work() -> bool:
        return all(AGENT_SERIES in node.metrics() for node in cluster.nodes.values())

    wait_until(all_work, 15, "the agents work")


def assert_no_metrics(cluster: Cluster, reason: str) -> None:
    """A job of the site's default runs as if nothing were there; slurmd's log has one line why."""
    done = cluster.run_as(JOB_USER, ["srun", "-N1", "sh", "-c", "echo job $SLURM_JOB_ID; env"])
    assert done.returncode == 0, done.stderr
    assert "nccl-inspector" not in done.stderr, "who asked for nothing is told nothing"
    assert not re.search("^NCCL_", done.stdout, re.MULTILINE)
    found = re.search(r"^job (\d+)$", done.stdout, re.MULTILINE)
    assert found
    (line,) = jobs.slurmd_lines(cluster, "n1", int(found[1]))
    assert f"no metrics: {cluster.layout.product_conf}{reason}" in line
    jobs.finish(cluster, int(found[1]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "reason"),
    {
        "unknown key": ("interval = 1s\nspeed = 9\n", r':2: unknown key "speed"; keys: default, '),
        "bad value": ("# site\n\ninterval = soon\n", r':3: interval="soon" is not a number'),
        "not a pair": ("default prom\n", r':1: "default prom" is not `key = value'),
        "twice": ("p2p = 1\np2p = 0\n", r":2: p2p is set in line 1 already"),
        "not a text": ("default = prom\n\x01\x02\n", r":2: a control character"),
    }.values(),
    ids=["unknown key", "bad value", "not a pair", "twice", "not a text"],
)
@pytest.mark.case("Bad input", "a configuration file with a mistake")
def test_a_broken_file_costs_the_metrics_and_one_line_with_file_line_and_reason(
    healthy_cluster: Cluster, text: str, reason: str
) -> None:
    cluster = healthy_cluster
    cluster.set_plugstack("default=prom")
    wait_for_agents(cluster)
    cluster.write_conf(text)
    assert_no_metrics(cluster, reason)


@pytest.mark.case("Bad input", "a configuration file that is a directory, not readable, or missing")
def test_a_directory_in_the_files_place_costs_the_metrics_and_one_line(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    cluster.set_plugstack("default=prom")
    path = cluster.layout.product_conf
    wait_for_agents(cluster)
    path.unlink()
    path.mkdir()
    try:
        assert_no_metrics(cluster, ": Is a directory")
    finally:
        path.rmdir()


@pytest.mark.case("Bad input", "a configuration file that is a directory, not readable, or missing")
def test_a_file_that_users_cannot_read_costs_the_metrics_and_one_line(
    healthy_cluster: Cluster,
) -> None:
    healthy_cluster.set_plugstack("default=prom")
    healthy_cluster.layout.product_conf.chmod(0o600)
    assert_no_metrics(healthy_cluster, ": Permission denied")


@pytest.mark.case("Bad input", "a configuration file with a mistake")
def test_who_asked_is_told_of_a_broken_file_on_his_terminal(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.write_conf("speed = 9\n")
    done = cluster.run_as(JOB_USER, ["srun", "-N1", "--nccl-inspector=prom", "true"])
    assert done.returncode == 0
    assert f'{cluster.layout.product_conf}:1: unknown key "speed"' in done.stderr


@pytest.mark.case("Bad input", "a configuration file that is a directory, not readable, or missing")
def test_without_a_file_the_defaults_hold(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.layout.product_conf.unlink()
    argv = ["srun", "-N1", "--nccl-inspector=prom", "env"]
    said = cluster.run_as(JOB_USER, argv).stdout
    assert "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=30000000\n" in said
