# SPDX-License-Identifier: Apache-2.0
"""A site with two slurmctld and no database: Slurm decides which controller service works."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from nccl_inspector.controller.sign_of_life import OLD_S
from nccl_inspector.controller.slurm_ping import ASK_S, Answer, parse_ping
from nccl_inspector.controller.slurmctld_turn import SURE_S
from tests.sandbox import Cluster, wait_until
from tests.sandbox.layout import HEAD
from tests.support.sandbox.controller_site import Service, controlled
from tests.support.sandbox.small_jobs import TWO_NODES, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

BACKUP = "n1"
TAKEN_OVER_S = 30.0
# A service that works looks every 5 s, and on a machine with other work that takes longer.
MOVED_S = SURE_S + 2 * ASK_S + 15


def said(cluster: Cluster) -> Answer | None:
    done = cluster.run_as("root", ["scontrol", "ping"])
    return parse_ping(done.stdout) if done.returncode == 0 else None


@dataclass
class Site:
    """Two slurmctld and two services; those of the head work."""

    first: Service
    second: Service

    @property
    def cluster(self) -> Cluster:
        return self.first.cluster

    def start_slurmctld(self) -> None:
        argv = ["slurmctld", "-D", "-f", str(self.cluster.layout.slurm_conf)]
        self.cluster.head.start("slurmctld", argv)

    def until_works(self, machine: str, seconds: float, what: str) -> float:
        """After how long its service works; what it took is printed."""
        began_s = time.monotonic()
        wait_until(lambda: self.first.at_work() == machine, seconds, f"{what}: {machine} works")
        took_s = time.monotonic() - began_s
        print(f"{what}: the service on {machine} works after {took_s:.1f} s")
        return took_s


def add_backup(cluster: Cluster) -> None:
    """Give the cluster a second slurmctld on n1."""
    conf, address = cluster.layout.slurm_conf, cluster.layout.address
    first = f"SlurmctldHost={HEAD}({address(HEAD)})\n"
    conf.write_text(
        conf.read_text().replace(first, f"{first}SlurmctldHost={BACKUP}({address(BACKUP)})\n")
    )
    argv = ["slurmctld", "-D", "-f", str(conf)]
    cluster.head.stop("slurmctld")  # it must know that it has a backup
    cluster.head.start("slurmctld", argv)
    wait_until(lambda: said(cluster) == Answer((HEAD, BACKUP), HEAD), 30, "the head answers")
    # The machines share their process ids: with one file n1's would kill the head's.
    own = conf.with_name("slurm-n1.conf")
    own.write_text(f"{conf.read_text()}SlurmctldPidFile={conf.parent}/n1.pid\n")
    cluster.node(BACKUP).start("slurmctld", [*argv[:-1], str(own)])
    up = f"(backup) at {BACKUP} is UP"
    wait_until(lambda: up in cluster.run_as("root", ["scontrol", "ping"]).stdout, 30, "n1 answers")


@pytest.fixture
def site(cluster_dir: Path) -> Iterator[Site]:
    with controlled(cluster_dir.parent) as first:
        add_backup(first.cluster)
        found = Site(first, replace(first, machine=BACKUP))
        first.start()
        found.until_works(HEAD, 20, "both start")
        found.second.start()
        yield found
        for one in (found.first, found.second):
            if one.process:
                with suppress(AssertionError):
                    print(one.stop())


def test_the_service_on_the_host_where_slurmctld_works_works(site: Site) -> None:
    job, _ = run(site.cluster, *TWO_NODES)
    site.first.wait_stored(job)

    # A standby that answers is not the one that works.
    assert said(site.cluster) == Answer((HEAD, BACKUP), HEAD)
    time.sleep(2 * ASK_S)
    assert site.first.at_work() == HEAD

    site.cluster.head.stop("slurmctld", SIGKILL)
    site.until_works(BACKUP, MOVED_S, "slurmctld is killed")
    site.start_slurmctld()
    wait_until(lambda: said(site.cluster) == Answer((HEAD, BACKUP), HEAD), 30, "the head answers")
    site.until_works(HEAD, MOVED_S, "slurmctld is back")

    site.first.stop(kill=True)
    took_s = site.until_works(BACKUP, TAKEN_OVER_S, "the service is killed, and slurmctld works")
    assert took_s > OLD_S / 2
    job, _ = run(site.cluster, *TWO_NODES)
    site.second.wait_stored(job)
    site.first.start()
    site.until_works(HEAD, TAKEN_OVER_S, "the service is back")


def test_a_slurmctld_that_starts_again_moves_no_work(site: Site) -> None:
    site.cluster.head.stop("slurmctld")
    wait_until(lambda: said(site.cluster) == Answer((HEAD, BACKUP), BACKUP), 10, "it is down")
    time.sleep(ASK_S + 2)  # both services have asked once
    site.start_slurmctld()
    until_s = time.monotonic() + MOVED_S
    while time.monotonic() < until_s:
        assert site.first.at_work() == HEAD
        time.sleep(0.2)


def test_a_host_that_answers_slowly_is_waited_for(site: Site) -> None:
    slurmctld = site.cluster.head.process("slurmctld")
    assert slurmctld
    slurmctld.send(SIGSTOP)
    try:
        began_s = time.monotonic()
        assert said(site.cluster) == Answer((HEAD, BACKUP), BACKUP)
        print(f"scontrol ping took {time.monotonic() - began_s:.1f} s")
        site.until_works(BACKUP, 3 * MOVED_S, "slurmctld hangs")
    finally:
        slurmctld.send(SIGCONT)
