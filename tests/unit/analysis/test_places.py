# SPDX-License-Identifier: Apache-2.0
"""Every finding says where its entities are, and one command that goes there."""

from dataclasses import replace

from nccl_inspector.analysis.hardware.findings import find_hardware
from nccl_inspector.analysis.next_command import suggest
from nccl_inspector.analysis.places import Places
from nccl_inspector.counters.node_counters import (
    Change,
    Count,
    DeviceCounters,
    NodeCounters,
    XidSeen,
)
from nccl_inspector.model import rules
from nccl_inspector.model.card import INFO, WARNING, Entity, Finding, Period
from nccl_inspector.model.process import Gpu
from nccl_inspector.render.comment import make_comment, read_comment
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded
from tests.support.counter_summaries import SPANS, START_S, on
from tests.support.synthetic.jobs import flat_job

DRIVER = {"uuid": (Change(1, "GPU-7777"),), "pci": (Change(1, "0000:65:00"),)}
SEEN = DeviceCounters("gpu", "GPU3", {"ecc_uncorrected": Count(1)}, {}, DRIVER)


def places() -> Places:
    (process,) = flat_job(1, {}, 4, 1).processes()
    process = replace(process, gpus=(Gpu("GPU-7777", "", 3, "GPU3"),),
                      facts=replace(process.facts, pid=4711, procid=15))  # fmt: skip
    port = DeviceCounters("port", "mlx5_4/1", {}, {}, {})
    return Places([("n2", process)], ["rank 15"], {"n2": NodeCounters(SPANS, (SEEN, port))})


def test_a_rank_is_at_a_node_a_gpu_and_a_process() -> None:
    assert places().find(Entity("rank", "rank 15")) == Entity(
        "rank", "rank 15", "n2", "GPU3", "GPU-7777", "0000:65:00", 4711, 15
    )


def test_a_gpu_has_its_uuid_and_address_and_so_has_one_of_its_links() -> None:
    for name in ("n2 GPU3", "n2 GPU3 NVLink 5"):
        found = places().find(Entity("gpu", name))
        assert (found.name, found.node, found.gpu) == (name, "n2", "GPU3")
        assert (found.gpu_uuid, found.pci_bus_id) == ("GPU-7777", "0000:65:00")


def test_a_port_is_one_of_its_node() -> None:
    found = places().find(Entity("port", "n2 mlx5_4/1"))
    assert (found.node, found.port) == ("n2", "mlx5_4/1")


def test_what_is_not_known_stays_as_it_is() -> None:
    for one in (Entity("rank", "rank 99"), Entity("job", ""), Entity("pair", "n1 - n2")):
        assert places().find(one) == one


def test_victims_are_located_too() -> None:
    finding = Finding(
        rules.STRAGGLER.id, WARNING, "low", "", "", victims=(Entity("rank", "rank 15"),)
    )
    (found,) = places().locate([finding])
    assert found.victims[0].pid == 4711


def test_a_finding_about_hardware_has_a_command_that_shows_it() -> None:
    bad = DeviceCounters("port", "mlx5_0/1", {"link_error_recovery": Count(3)}, {}, {})
    xids = (XidSeen(START_S, "GPU3", 79),)
    found = find_hardware([on("n1", NodeCounters(SPANS, (SEEN, bad), xids))]).findings
    assert {one.rule: one.next for one in found} == {
        "hardware-gpu": "ssh n1 nvidia-smi -q -i 0000:65:00",
        "hardware-port": "ssh n1 rdma statistic show link mlx5_0/1",
        "hardware-xid": "ssh n1 nvidia-smi -q -i 0000:65:00",
    }


def test_a_name_that_is_no_name_does_not_become_part_of_a_command() -> None:
    bad = DeviceCounters("port", "x; reboot", {"link_error_recovery": Count(3)}, {}, {})
    (one,) = find_hardware([on("n1", NodeCounters(SPANS, (bad,)))]).findings
    assert one.next == "ssh n1 rdma statistic show"


def test_the_report_of_a_late_rank_names_its_process() -> None:
    job = flat_job(1, {2: 9e6}, 200, 4, sampled=True)
    card = build_card(Loaded(tuple(job.summaries()), (0,), ()))
    late = next(one for one in card.findings if one.rule == "straggler")
    rank = next(one for one in late.entities if one.kind == "rank")
    assert (rank.node, rank.gpu, rank.pid, rank.procid) == ("n1", "GPU2", 3, 2)
    assert Entity("rank", "rank 2") in read_comment(make_comment(card)).entities


def test_a_rule_that_gives_no_command_has_one_by_whom_it_names() -> None:
    rank = Entity("rank", "rank 2", node="n1", pid=7)
    late = Finding(rules.STRAGGLER.id, WARNING, "low", "", "", Period(60, 120), (rank,))
    assert suggest(late, 42).next.endswith("-w n1 py-spy dump --pid 7")
    assert (
        "journalctl --utc --no-pager --since '1970-01-01 00:00:00 UTC'" in suggest(late, None).next
    )
    pair = replace(late, rule=rules.SLOW_NETWORK.id, entities=(Entity("pair", "n1 - n2"),))
    assert suggest(pair, None).next == "ssh n1 rdma statistic show"
    lost = replace(late, rule=rules.NOT_MEASURED.id, entities=(Entity("node", "n3"),))
    assert suggest(lost, None).next == "ssh n3 nccl-inspector doctor"
    assert suggest(lost, 7).next == "ssh n3 nccl-inspector doctor --job 7"
    assert suggest(replace(late, severity=INFO), None).next == ""
    assert suggest(replace(late, next="mine"), None).next == "mine"
