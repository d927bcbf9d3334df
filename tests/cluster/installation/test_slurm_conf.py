# SPDX-License-Identifier: Apache-2.0
"""What must be restarted after a change of slurm.conf, as packaging/doc/operate.md says."""

from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, Cluster, Options, wait_until
from tests.support.sandbox.own_cluster import brought_up
from tests.support.sandbox.small_jobs import controller_down

pytestmark = pytest.mark.long
HOOKS = ("Prolog", "Epilog")
LAST_WITHOUT_RECONFIGURE = (22, 5)


def add_scripts(cluster: Cluster, place: Path) -> None:
    """Name scripts in slurm.conf that leave a mark; the last line of a name counts."""
    text = cluster.layout.slurm_conf.read_text()
    for name in (*HOOKS, "EpilogSlurmctld"):
        script = place / f"{name}.sh"
        script.write_text(f"#!/bin/sh\necho x >>{place}/{name}.mark\n")
        script.chmod(0o755)
        text += f"\n{name}={script}\n"
    cluster.layout.slurm_conf.write_text(text)


def run_job(cluster: Cluster) -> None:
    def ran() -> bool:
        return cluster.run_as(JOB_USER, ["srun", "-N1", "true"]).returncode == 0

    wait_until(ran, 60, "a job runs", 0.5)


def release(cluster: Cluster) -> tuple[int, ...]:
    words = cluster.run_as("root", ["scontrol", "--version"]).stdout.split()[-1]
    return tuple(map(int, words.split(".")[:2]))


def test_a_reconfigure_is_enough_for_hooks_and_a_restart_of_slurmctld_for_its_epilog(
    open_path: Path, cluster_dir: Path
) -> None:
    open_path.chmod(0o777)
    with brought_up(cluster_dir, Options(monitoring=False)) as cluster:
        add_scripts(cluster, open_path)
        assert cluster.run_as("root", ["scontrol", "reconfigure"]).returncode == 0
        run_job(cluster)
        hooks = {open_path / f"{name}.mark" for name in HOOKS}
        epilog = open_path / "EpilogSlurmctld.mark"
        wait_until(lambda: hooks <= set(open_path.glob("*.mark")), 30, "the hooks run", 0.2)
        if release(cluster) > LAST_WITHOUT_RECONFIGURE:
            wait_until(epilog.exists, 30, "the controller's epilog runs", 0.2)
            return
        assert not epilog.exists(), "then the page need not ask for a restart"
        with controller_down(cluster):
            pass
        run_job(cluster)
        wait_until(epilog.exists, 30, "the controller's epilog runs after a restart", 0.2)
