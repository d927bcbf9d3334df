# SPDX-License-Identifier: Apache-2.0
"""Jobs that stand still for minutes: nobody is in an operation, or all are in one that stopped."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nccl_inspector.agent.manifest import parse_manifest
from nccl_inspector.model.card import HUNG, Card
from nccl_inspector.render.json import card_from_json
from tests.sandbox import JOB_USER, Cluster, wait_until
from tests.sandbox.config import gpu_bus_id
from tests.support import fake_hardware
from tests.support.repository import REPO
from tests.support.sandbox import jobs

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LOGS = REPO / "tests" / "unit" / "nccl_log" / "logs"
SLOW = ("--ops", "allreduce", "--sizes", "64K", "--comms", "world", "--compute-ms", "400")
ENDLESS = ("--steps", "100000", "--timeout", "0")
CUT = ("--no-barrier", "--throttle", "all:0:30")
# Of the first, over two minutes of steps and then nothing: what is usual must be known before.
JOBS = {
    "outside": ("n[3-4]", ("--hang", "all:330"), "one-rank-never-came.log"),
    "network": ("n[2-3]", CUT, "cascade.log"),
    "GPU": ("n[1-2]", CUT, "no-driver.log"),
}
XID_NODE, PORT_NODE = "n1", "n3"
STOPPED_S = 345  # over five minutes


@pytest.fixture(scope="module")
def kernel_log(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What n1's agent reads as the kernel log."""
    node, log = shared_cluster.node(XID_NODE), tmp_path_factory.mktemp("kernel") / "kmsg"
    log.touch()
    assert node.run(["mount", "--bind", str(log), "/dev/kmsg"]).returncode == 0
    try:
        node.restart_agent()
        yield log
    finally:
        node.run(["umount", "/dev/kmsg"])
        node.restart_agent()


def _boot_us() -> int:
    return int(float(Path("/proc/uptime").read_text().split()[0]) * 1e6)


def _gpu_of(cluster: Cluster, job_id: int) -> int:
    """The number of a GPU of the node with the XID that the job has."""
    path = f"/run/nccl-inspector/jobs/{job_id}/manifest"
    manifest = parse_manifest(cluster.node(XID_NODE).run(["cat", path]).stdout.encode())
    return int(manifest.gpus.split(",")[0])


def _card(cluster: Cluster, job_id: int, *words: str) -> Card:
    """The report as root makes it; root reads no job's output unless it is told to."""
    return card_from_json(cluster.report(job_id, "--json", *words).stdout.encode())


def _wait_for_both(cluster: Cluster, job_id: int) -> None:
    wait_until(lambda: len(jobs.summaries(cluster, job_id)) == 2, 30, "both nodes' summaries")


def _submit(cluster: Cluster, where: str, words: tuple[str, ...], log: str) -> int:
    return jobs.submit(
        cluster, "--nccl-inspector=report", "--gpus-per-task=1", "--mem=400", "-N2", "-w", where,
        "--ntasks-per-node=2",
        script=f"cat {LOGS / log}\nsrun {jobs.standin(cluster, *SLOW, *ENDLESS, *words)}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def cards(shared_cluster: Cluster, kernel_log: Path) -> Mapping[str, tuple[Card, Card]]:
    """The cards of all, without and with what NCCL wrote."""
    cluster = shared_cluster
    cluster.reset()
    port = cluster.layout.sys(PORT_NODE) / "class/infiniband/mlx5_0/ports/1"
    try:
        ids = {name: _submit(cluster, *what) for name, what in JOBS.items()}
        for job_id in ids.values():
            jobs.wait_for_operations(cluster, job_id, 4, 20)
        pci = gpu_bus_id(_gpu_of(cluster, ids["GPU"])).removesuffix(".0")
        began_us = _boot_us()
        wait_until(lambda: _boot_us() > began_us + 40_000_000, 60, "the links are cut", 1)
        kernel_log.write_text(f"4,1,{_boot_us()},-;NVRM: Xid (PCI:{pci}): 79, pid=1\n")
        fake_hardware.write(port / "counters/link_downed", 1)
        hung = "hangs in step 330"
        wait_until(lambda: hung in jobs.output(cluster, ids["outside"]), 300, "all hang", 1)
        stopped_us = _boot_us()
        wait_until(
            lambda: _boot_us() > stopped_us + STOPPED_S * 1_000_000, STOPPED_S + 60, "time", 1
        )
        found = {}
        for name, job_id in ids.items():
            cluster.run_as("root", ["scancel", str(job_id)])
            jobs.finish(cluster, job_id, 60)
            _wait_for_both(cluster, job_id)
            output = str(cluster.home(JOB_USER) / f"{job_id}.out")
            found[name] = _card(cluster, job_id), _card(cluster, job_id, "--output", output)
        return found
    finally:
        fake_hardware.write(port / "counters/link_downed", 0)
        cluster.reset()


def rules(card: Card) -> set[str]:
    return {finding.rule for finding in card.findings}


def test_what_nccl_wrote_never_changes_a_verdict(cards: Mapping[str, tuple[Card, Card]]) -> None:
    for alone, with_words in cards.values():
        assert with_words.verdict == alone.verdict
        assert rules(with_words) > rules(alone)


def test_a_job_of_which_no_rank_is_in_an_operation_is_stuck_outside_of_nccl(
    cards: Mapping[str, tuple[Card, Card]],
) -> None:
    card, with_words = cards["outside"]
    assert "hang-outside" in rules(card), card.findings
    assert not card.hangs
    # The GPU of another job on its nodes, and the port of one of them, are not held against it.
    assert not {rule for rule in rules(card) if rule.startswith("hardware-xid")}
    assert any("did not finish" in f"{one.title} {one.detail}" for one in with_words.findings), (
        with_words.findings
    )


def test_an_operation_that_stops_on_the_network_accuses_no_rank(
    cards: Mapping[str, tuple[Card, Card]],
) -> None:
    card, _ = cards["network"]
    assert card.verdict.status == HUNG, card.findings
    (hang,) = card.hangs
    assert (hang.verdict, hang.roots, hang.never_issued) == ("transport", (), ())
    downed = [one for one in card.findings if "link_downed" in f"{one.title} {one.detail}"]
    assert [PORT_NODE in one.title for one in downed] == [True], card.findings


def test_an_operation_that_stops_with_an_xid_stands_beside_that_gpu(
    cards: Mapping[str, tuple[Card, Card]],
) -> None:
    card, _ = cards["GPU"]
    assert card.verdict.status == HUNG, card.findings
    assert [hang.verdict for hang in card.hangs] == ["transport"]
    (xid,) = [one for one in card.findings if one.rule == "hardware-xid"]
    assert "XID 79" in xid.title
    assert XID_NODE in xid.title
