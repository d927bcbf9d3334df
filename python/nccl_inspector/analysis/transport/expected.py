# SPDX-License-Identifier: Apache-2.0
"""The bus bandwidth that large messages reach on known platforms, each with its source.

A row is only for the shape that its source measured: a guessed expectation would make good links
look bad. The best comparison is the same script's earlier jobs.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nccl_inspector.analysis.kinds import algo_family
from nccl_inspector.model.transport import MIXED, NET, NVLINK

MIB = 1 << 20
# From FIRM_BYTES on an expectation is shown, from GREY_BYTES on in grey, below not at all.
FIRM_BYTES, GREY_BYTES = 64 * MIB, 4 * MIB
RING_FUNCS = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
_RING, _NVLS = "RING", "NVLS"


@dataclass(frozen=True, slots=True)
class Expected:
    """A bus bandwidth in GB/s; `firm` False: the message may be too small to reach it."""

    gbs: float
    source: str
    firm: bool


@dataclass(frozen=True, slots=True)
class _Platform:
    """One row: GPUs that are all joined by NVLink; `algo` is the family that NCCL chose."""

    model: re.Pattern[str]
    nranks: int
    algo: str
    gbs: float
    from_bytes: int
    source: str


def _row(model: str, nranks: int, algo: str, gbs: float, from_mib: int, source: str) -> _Platform:
    return _Platform(re.compile(model), nranks, algo, gbs, from_mib * MIB, source)


# The first row that fits is used; for one shape, the row for the largest messages comes first.
_PLATFORMS = (
    _row(r"A100-SXM", 8, _RING, 200, 0, "8 x A100 SXM with NVSwitch: NVIDIA/nccl-tests#149"),
    _row(r"A800-SXM", 8, _RING, 160, 0, "8 x A800: NVIDIA/nccl#412"),
    _row(r"H800$", 8, _NVLS, 215, 256, "8 x H800: NVIDIA/nccl#1374"),
    _row(r"(H100.*HBM3|H200$)", 8, _NVLS, 475, 256, "8 x H100/H200, NVLS: NVIDIA/nccl-tests#290"),
    _row(r"(H100.*HBM3|H200$)", 8, _RING, 370, 0, "8 x H100/H200: NVIDIA/nccl-tests#212"),
    _row(r"\bB200$", 8, _NVLS, 830, 256, "8 x B200: NVIDIA/nccl#1807"),
    _row(r"\bGB200", 72, _NVLS, 835, 4096, "GB200 NVL72: coreweave/nccl-tests pull 43"),
    _row(r"\bGB200", 72, _NVLS, 577, 512, "GB200 NVL72: coreweave/nccl-tests pull 43"),
)

# By the rate of a port in Gb/s: what one such port carries in GB/s.
_PORTS = {100: 12.0, 200: 24.0, 400: 47.0}
_PORTS_SOURCE = "NVIDIA/nccl-tests#119, #290"
_WIDER_TIMES = 3.0  # NVLink must exceed all ports by this factor, so that the ports are the limit
_RATE = re.compile(r"([0-9]+)(?:\.[0-9]+)? Gb/sec")


def port_gbps(rate: str) -> int | None:
    """Return Gb/s from sysfs's text for a port, as `400 Gb/sec (4X NDR)`; None: not understood."""
    match = _RATE.match(rate)
    return int(match[1]) if match else None


def _of_platform(model: str, nranks: int, algo: str, size_bytes: int) -> _Platform | None:
    """Return the row of a shape; rows of NVLS are for AllReduce only."""
    for row in _PLATFORMS:
        fits = (row.nranks, row.algo) == (nranks, algo) and size_bytes >= row.from_bytes
        if fits and row.model.search(model):
            return row
    return None


def _wider(model: str, gbs: float) -> _Platform | None:
    """Return a row of a model that reaches far more inside a node than the ports carry, or None.

    Then the ports limit a ring over all GPUs of the nodes, however many GPUs a node has.
    """
    rows = (one for one in _PLATFORMS if one.algo == _RING and one.model.search(model))
    return next((row for row in rows if row.gbs >= _WIDER_TIMES * gbs), None)


def _of_ports(ports_gbps: Sequence[int]) -> tuple[float, str] | None:
    """Return what the ports of a node carry together (GB/s), and their text; None: not known."""
    if not ports_gbps or any(rate not in _PORTS for rate in ports_gbps):
        return None
    words = " + ".join(f"{n} x {rate} Gb/s" for rate, n in sorted(Counter(ports_gbps).items()))
    return sum(_PORTS[rate] for rate in ports_gbps), words


def _one_port(ports_gbps: Sequence[int]) -> float:
    """Return what the fastest port carries: NCCL gives each GPU one port, of however many."""
    return max(_PORTS[rate] for rate in ports_gbps)


def expected(
    transport: str,
    func: str,
    algo_proto: str,
    nranks: int,
    nnodes: int,
    size_bytes: float,
    model: str,
    ports_gbps: Sequence[int] = (),
    gpus: int = 0,
) -> Expected | None:
    """Return what operations of one kind should reach; None: not known.

    `size_bytes`: the message as NCCL counts it for the bandwidth (for AllGather and ReduceScatter,
    the shares of all ranks together). `ports_gbps`: the active ports of one node; if nodes differ,
    of the slowest. `gpus`: the number of GPUs of that node.
    """
    size = int(size_bytes)
    if size < GREY_BYTES or func not in RING_FUNCS:
        return None
    firm, algo = size >= FIRM_BYTES, algo_family(algo_proto)
    if algo == _NVLS and func != "AllReduce" and transport == NVLINK:
        algo = _RING  # NVLS does not make these faster, so their row is the ring's
    if transport == NVLINK:
        row = _of_platform(model, nranks, algo, size)
        return Expected(row.gbs, row.source, firm) if row else None
    ports = _of_ports(ports_gbps)
    if ports is None or algo != _RING:
        return None
    carried_gbs, words = ports
    if transport == NET and gpus:
        share = f"{words} for {gpus} GPUs"
        gbs = min(carried_gbs / gpus, _one_port(ports_gbps))
        return Expected(gbs, f"{share}: {_PORTS_SOURCE}", firm)
    if transport == MIXED and nranks % nnodes == 0:
        gbs = min(carried_gbs, nranks // nnodes * _one_port(ports_gbps))
        row = _of_platform(model, nranks // nnodes, _RING, size)
        if row is None and nranks // nnodes == gpus:
            row = _wider(model, gbs)
        if row is None:
            return None
        return Expected(min(gbs, row.gbs), f"derived: {row.source}; {words}: {_PORTS_SOURCE}", firm)
    return None
