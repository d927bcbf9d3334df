# SPDX-License-Identifier: Apache-2.0
"""Transfers that are slow everywhere and all the time, compared with what the ports can carry."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nccl_inspector.analysis.replay.cause import COST_MIN, TOLD_MIN, TRANSFER, Cause
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.model import card, rules
from nccl_inspector.model.card import MEDIUM, Entity, Evidence, Finding, Operations
from nccl_inspector.model.transport import NVLINK as NVLINK_CLASS
from nccl_inspector.model.wording import cut_list
from nccl_inspector.report.causes import JobView, cost_evidence, saved, severity
from nccl_inspector.report.unseen_port import (
    PORTS_SHOWN,
    has_port_errors,
    kind_of,
    nodes_of,
    ports_of_all,
    replayed,
)

_QUEUED_MAX = 0.5  # share of operations that begin as soon as their stream is free
_AT_MOST = (
    " That is the most it can have cost: the ranks always wait for these transfers, so how long "
    "their own work takes is not known."
)
# Shares of what ports or links can carry: below BELOW_* a path is slow; _REACHED* is reached in
# practice. Inside nodes much depends on the platform, so what others measured is a weaker hint.
BELOW_NETWORK, BELOW_TOLD, BELOW_LINKS = 0.55, 0.85, 0.4
_REACHED, _REACHED_TOLD = 0.85, 0.92  # the second: if counters of a port speak for it


def tell_below(
    judged: Judged,
    operations: Sequence[Operations],
    transports: Mapping[str, str],
    view: JobView,
    hardware: Sequence[Finding],
) -> list[tuple[str, Finding]]:
    """Return the finding about transfers that are slow everywhere and all the time, if any.

    They can only be compared with what the ports of a node can carry. A ring is as fast as its
    slowest port; if the counters of ports that all of them pass show errors, a smaller difference
    is enough.
    """
    found = []
    ports = [one for one in hardware if has_port_errors(one)]
    for inside in (False, True):
        # If some paths are slow compared with others, the cause is these paths and not the network.
        if any(_is_located(cause, inside) for cause in judged.causes):
            continue
        rows = [
            one
            for one in replayed(operations)
            if one.expected_gbs
            and one.bus_gbs
            and not one.waiting_included
            and (transports.get(one.communicator) == NVLINK_CLASS) == inside
        ]
        busy = sum(one.count * one.time_ns for one in rows)
        told = [] if inside else _passed(rows, ports, view)
        least = BELOW_LINKS if inside else BELOW_TOLD if told else BELOW_NETWORK
        reached = _REACHED_TOLD if told else _REACHED
        slow = [one for one in rows if (one.bus_gbs or 0.0) < least * (one.expected_gbs or 0.0)]
        if not slow or sum(one.count * one.time_ns for one in slow) < busy / 2:
            continue
        factors = {
            kind_of(one): (one.bus_gbs or 0.0) / (reached * (one.expected_gbs or 1.0))
            for one in slow
        }
        share, error = judged.below(factors)
        share = view.of_job(share)
        if share < TOLD_MIN:
            continue
        worst = max(slow, key=lambda one: one.count * one.time_ns)
        kind, one = _below_finding(worst, share, error, inside, view)
        if judged.queued_share(factors) > _QUEUED_MAX:
            one = replace(one, detail=one.detail + _AT_MOST)
        if told:
            nodes = set().union(*map(nodes_of, told))
            whose = tuple(Entity("node", node) for node in sorted(nodes))
            titles = cut_list([each.title for each in told], PORTS_SHOWN)
            one = replace(one, entities=whose, title=f"{one.title}: {titles}")
        found.append((kind, one))
    return found


def _is_located(cause: Cause, inside: bool) -> bool:
    return (
        cause.kind == TRANSFER
        and cause.inside == inside
        and cause.where is not None
        and cause.whole
        and cause.cost_share >= COST_MIN
    )


def _passed(rows: Sequence[Operations], ports: Sequence[Finding], view: JobView) -> list[Finding]:
    """Return the ports with errors that explain why transfers are slow, because all pass them."""
    slow = {
        int(one.communicator, 16)
        for one in rows
        if (one.bus_gbs or 0.0) < BELOW_TOLD * (one.expected_gbs or 0.0)
    }
    return ports_of_all(ports, [comm for comm in view.communicators if comm.id in slow])


def _below_finding(
    worst: Operations, share: float, error: float, inside: bool, view: JobView
) -> tuple[str, Finding]:
    seconds = share * view.wall_s
    kind = card.NVLINK if inside else card.NETWORK
    link = "links inside of nodes" if inside else "the network"
    bus, could = worst.bus_gbs or 0.0, worst.expected_gbs or 0.0
    return kind, Finding(
        rule=(rules.SLOW_LINKS if inside else rules.SLOW_NETWORK).id,
        severity=severity(share, view.cost_min),
        confidence=MEDIUM,
        title=f"transfers over {link} reach {bus / could:.0%} of what is to be expected, "
        "everywhere and all the time",
        detail=f"{saved(share, seconds, view, error)} {worst.func} reaches {bus:.1f} GB/s, where "
        f"{could:.1f} are to be expected ({worst.expected_source}). No path is faster than others.",
        evidence=(
            Evidence("samples", f"{worst.func} bus bandwidth by T", bus, "GB/s", could),
            cost_evidence(share),
        ),
        actions=(
            "look at NCCL's settings (NCCL_DEBUG=INFO says which adapters it uses), adapters, "
            "PCIe and GPUDirect RDMA",
        ),
        cost_s=seconds,
        cost_share=share,
        cause=kind,
        next="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET srun ...",
        who=f"slow transfers over {link}",
        how=f"they reach {bus / could:.0%} of what is to be expected, everywhere and all the time",
    )
