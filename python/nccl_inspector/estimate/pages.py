# SPDX-License-Identifier: Apache-2.0
"""Make the files of a node as they would be, from the same tables and with the same writer."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import frexp, ldexp

from nccl_inspector.agent.admission import LEFT_OUT
from nccl_inspector.agent.counters.device_series import GPU_EVENTS, PORT_EVENTS, THROTTLES
from nccl_inspector.agent.signals import STATES
from nccl_inspector.counters.sample import SOURCES
from nccl_inspector.estimate.shape import Shape, usual_metrics
from nccl_inspector.exposition.text import SeriesLine, cut_nodelist, make_series, render
from nccl_inspector.model.bandwidth import size_label
from nccl_inspector.model.hostlist import compress
from nccl_inspector.model.process import DROP_REASONS, FUNCS

_SMALLEST_CLASS = 16  # 64 to 128 KiB
_GBS = (38.3, 171.7, 352.6)  # bus bandwidths, used in turns
_HOUR_S = 3600.0
_PROM = "/run/nccl-inspector/prom"
MTIME_SERIES = 2  # node_exporter's own series, one for each file
_COLLECTIVES = FUNCS[1:9]
_P2P = FUNCS[9:]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a node with one job. `page` is the result of scraping them."""

    raw: bytes  # of one process, as the plugin writes it
    published: bytes
    agent: bytes
    page: bytes
    series: tuple[SeriesLine, ...]  # of the page


def go_number(value: float) -> str:
    """Return a number as node_exporter writes it: Go's shortest form, with `e` from 10^6 on."""
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    at = len(digits) + int(exponent) - 1
    if value == 0 or -5 < at < 6:
        return f"{Decimal(repr(value)).normalize():f}"
    words = "".join(map(str, digits))
    point = "." if len(words) > 1 else ""
    return f"{words[0]}{point}{words[1:]}e{'+' if at >= 0 else '-'}{abs(at):02d}"


def _round_binary(value: float, bits: int) -> float:
    """Return the nearest number with so many binary digits, as plugin/prom/rounding.h does."""
    mantissa, exponent = frexp(value)
    return ldexp(round(ldexp(mantissa, bits)), exponent - bits)


def _values(shape: Shape, kind: int) -> dict[str, float]:
    """Return plausible values of a kind after an hour, by the end of a metric's name."""
    size = (1 << _SMALLEST_CLASS + kind % shape.sizes) * 1.5
    gbs = _GBS[kind % len(_GBS)]
    busy_s = _HOUR_S / 2 / max(1, shape.kinds)
    ops = max(1, int(busy_s / (size / gbs / 1e9)))
    return {
        "_gbs": _round_binary(gbs * (1 + kind / 1000), 9),
        "_microseconds": _round_binary(size / gbs / 1e3, 11),
        "_operations_total": ops,
        "_bytes_total": ops * int(size),
        "_seconds_total": int(busy_s * (1 + kind / 1000) * 1024) / 1024,
    }


def _text(value: float) -> str:
    """Return a value in the form in which the plugin writes it."""
    return f"{value:.17g}"


def _of_kinds(shape: Shape, labels: dict[str, str]) -> Iterator[SeriesLine]:
    own = shape.collectives + shape.p2p
    for kind in range(shape.kinds_shown):
        values = _values(shape, kind)
        place = kind // shape.sizes
        func = place % own
        group = "collective" if func < shape.collectives else "p2p"
        more = {
            "comm": f"0x{0x9E3779B97F4A7C15 + place // own:x}",
            "message_size": size_label(_SMALLEST_CLASS + kind % shape.sizes),
            "collective": _COLLECTIVES[func % len(_COLLECTIVES)],
            "p2p_operation": _P2P[(func - shape.collectives) % len(_P2P)],
            "algo_proto": "RING_SIMPLE",
        }
        for metric in usual_metrics(group):
            value = next(value for end, value in values.items() if metric.name.endswith(end))
            yield make_series(metric.name, labels | more, _text(value))


def _process_value(name: str) -> str:
    if name.endswith("_timestamp_seconds"):
        return "1763723456.789"
    if name.endswith(("_self_seconds_total", "_hot_seconds_total")):
        return _text(3 + 517 / 1024)
    return "1" if name.endswith("_ratio") else "0"


def _of_process(shape: Shape, labels: dict[str, str], json: bool) -> Iterator[SeriesLine]:
    yield from _of_kinds(shape, labels)
    for comm in range(shape.comms_shown):
        more = {"comm": f"0x{0x9E3779B97F4A7C15 + comm:x}"}
        for metric in usual_metrics("communicator"):
            value = "123456" if metric.type == "counter" else _process_value(metric.name)
            yield make_series(metric.name, labels | more, value)
    for metric in usual_metrics("gpu_info"):
        yield make_series(metric.name, labels, "1")
    for metric in usual_metrics("process", json):
        yield make_series(metric.name, labels, _process_value(metric.name))
    for metric in usual_metrics("process_reason"):
        for reason in DROP_REASONS:
            yield make_series(metric.name, labels | {"reason": reason}, "0")


def _nodelist(shape: Shape) -> str:
    """Return the job's node list as Slurm writes it, if the nodes are numbered from 1."""
    stem = shape.node.rstrip("0123456789")
    digits = len(shape.node) - len(stem) or len(str(shape.nodes))
    names = [f"{stem}{number:0{digits}d}" for number in range(1, shape.nodes + 1)]
    return cut_nodelist(compress(names))


def _labels(shape: Shape, gpu: int) -> dict[str, str]:
    return {
        "version": "v7.1", "cluster": shape.cluster, "slurm_job_id": str(shape.job_id),
        "slurm_nodelist": _nodelist(shape), "node": shape.node, "gpu": f"GPU{gpu}",
        "rank": str(gpu * shape.nodes % shape.ranks), "comm_name": shape.comm_name,
        "n_nodes": str(shape.nodes), "nranks": str(shape.ranks), "process": f"0_{1234567 + gpu}",
        "gpu_uuid": "GPU-" + "1" * 36, "pci_bus_id": "0000:1b:00.0", "user": "username",
        "account": "account", "partition": "partition", "plugin_version": "0.1.0",
        "nccl_version": "2.30.7",
    }  # fmt: skip


def _of_hardware(shape: Shape, labels: dict[str, str]) -> Iterator[SeriesLine]:
    """Yield the series of counters, for hardware that has all the counters that we ask for."""
    if not shape.counters:
        return
    for source in SOURCES:
        for metric in usual_metrics("agent_source"):
            yield make_series(metric.name, labels | {"source": source}, "0.123")
    for port in range(shape.ports):
        device = labels | {"device": f"mlx5_{port}", "port": "1"}
        for event in PORT_EVENTS:
            yield make_series("nccl_node_port_events_total", device | {"event": event}, "0")
    for gpu in range(shape.gpus_per_node):
        own = labels | {"gpu": f"GPU{gpu}"}
        for event in GPU_EVENTS:
            yield make_series("nccl_node_gpu_events_total", own | {"event": event}, "0")
        for reason in THROTTLES:
            name = "nccl_node_gpu_throttled_seconds_total"
            yield make_series(name, own | {"reason": reason}, "1234.567")
        yield make_series("nccl_node_gpu_nvlinks_active", own, "18")


def _of_agent(labels: dict[str, str]) -> list[SeriesLine]:
    found = [make_series(metric.name, labels, "0.123456") for metric in usual_metrics("agent")]
    for group in ("build", "job"):
        found += [make_series(metric.name, labels, "1") for metric in usual_metrics(group)]
    for metric in usual_metrics("job_state"):
        found += [make_series(metric.name, labels | {"state": state}, "0") for state in STATES]
    for metric in usual_metrics("job_reason"):
        found += [make_series(metric.name, labels | {"reason": why}, "0") for why in LEFT_OUT]
    return found


def make_files(shape: Shape) -> Files:
    """Return the files of a node that is full of one job's processes."""
    first = _labels(shape, 0)
    here = min(shape.ranks, shape.gpus_per_node)
    job = [make_series(metric.name, first, "1") for metric in usual_metrics("job_info")]
    for gpu in range(shape.shown(here)):
        job += _of_process(shape, _labels(shape, gpu), shape.json)
    agent = [*_of_agent(first), *_of_hardware(shape, first)]
    build = [make_series(metric.name, first, "1") for metric in usual_metrics("build")]
    raw = render([*_of_process(shape, first, shape.json), *build]) + b"# EOF\n"
    together = [one._replace(value=go_number(float(one.value))) for one in (*job, *agent)]
    mtimes = "".join(
        f'node_textfile_mtime_seconds{{file="{name}"}} 1.763723456e+09\n'
        for name in (f"{_PROM}/{shape.job_id}.prom", f"{_PROM}/nccl_inspector_agent.prom")
    )
    page = render(together) + mtimes.encode()
    return Files(raw, render(job), render(agent), page, tuple(together))
