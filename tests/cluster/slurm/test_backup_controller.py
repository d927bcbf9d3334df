# SPDX-License-Identifier: Apache-2.0
"""A site with two slurmctld: which of them works decides which controller service works."""

from pathlib import Path

import pytest

from nccl_inspector.controller.slurmctld_turn import controllers_of
from tests.sandbox import Cluster, Options, wait_until
from tests.sandbox.layout import HEAD
from tests.support.sandbox.own_cluster import brought_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]


def said(cluster: Cluster) -> tuple[tuple[str, ...], str]:
    return controllers_of(cluster.run_as("root", ["scontrol", "ping"]).stdout)


def test_the_controller_that_works_is_known_by_scontrol_ping(cluster_dir: Path) -> None:
    with brought_up(cluster_dir, Options(agents=False, monitoring=False)) as cluster:
        assert said(cluster) == ((HEAD,), HEAD)
        conf, both = cluster.layout.slurm_conf, (HEAD, "n1")
        first = f"SlurmctldHost={HEAD}({cluster.layout.address(HEAD)})\n"
        second = f"SlurmctldHost=n1({cluster.layout.address('n1')})\n"
        conf.write_text(conf.read_text().replace(first, first + second))
        argv = ["slurmctld", "-D", "-f", str(conf)]
        cluster.head.stop("slurmctld")  # it must know that it has a backup
        cluster.head.start("slurmctld", argv)
        wait_until(lambda: said(cluster) == (both, HEAD), 30, "the head answers")
        # The machines share their process ids: with one file n1's would kill the head's.
        own = conf.with_name("slurm-n1.conf")
        own.write_text(f"{conf.read_text()}SlurmctldPidFile={conf.parent}/n1.pid\n")
        cluster.node("n1").start("slurmctld", [*argv[:-1], str(own)])
        up = "(backup) at n1 is UP"
        wait_until(
            lambda: up in cluster.run_as("root", ["scontrol", "ping"]).stdout, 30, "n1 answers"
        )
        assert said(cluster) == (both, HEAD)
        cluster.head.stop("slurmctld")
        wait_until(lambda: said(cluster) == (both, "n1"), 30, "it is n1's turn")
        cluster.head.start("slurmctld", argv)
        wait_until(lambda: said(cluster) == (both, HEAD), 30, "it is the head's turn again")
