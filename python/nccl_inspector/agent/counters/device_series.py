# SPDX-License-Identifier: Apache-2.0
"""The metrics of links and GPUs: only what our alerts need and usual exporters lack.

The values are the hardware's own counts, so that an agent's restart or absence causes no rise.
"""

from collections.abc import Iterator, Mapping

from nccl_inspector.agent.counters.job_counters import INTERVAL_S
from nccl_inspector.agent.counters.sampling_times import CounterWatch
from nccl_inspector.counters.sample import GPU, INFINIBAND, SOURCES, Device, Sample
from nccl_inspector.exposition.text import SeriesLine, make_series

# A sample older than this many intervals is not published.
OLD_INTERVALS = 3

# The value of the label `event`, and the counters that it is the sum of.
PORT_EVENTS = {
    "link_downed": ("link_downed", "carrier_down_count"),
    "link_error_recovery": ("link_error_recovery",),
    "symbol_error": ("symbol_error",),
    "receive_error": ("port_rcv_errors",),
    "transmit_discard": ("port_xmit_discards",),
    "ack_timeout": ("local_ack_timeout_err",),
    "sequence_error": ("packet_seq_err",),
    "out_of_sequence": ("out_of_sequence",),
    "receiver_not_ready": ("rnr_nak_retry_err",),
    "out_of_buffer": ("out_of_buffer",),
    "retries_exceeded": ("req_transport_retries_exceeded", "req_rnr_retries_exceeded"),
    "adaptive_retransmission": ("roce_adp_retrans",),
    "ecn_marked": ("np_ecn_marked_roce_packets",),
    "cnp_handled": ("rp_cnp_handled",),
}
GPU_EVENTS = {
    "nvlink_replay": ("nvlink_replay",),
    "nvlink_recovery": ("nvlink_recovery",),
    "nvlink_crc": ("nvlink_crc_flit", "nvlink_crc_data"),
    "pcie_replay": ("pcie_replay",),
    "ecc_corrected": ("ecc_corrected",),
    "ecc_uncorrected": ("ecc_uncorrected",),
}
# Sums over the links; used if the GPU itself does not count the event.
LINK_EVENTS = {
    "nvlink_replay": ("replay",),
    "nvlink_recovery": ("recovery", "recoveries"),
    "nvlink_crc": ("crc",),
}
THROTTLES = ("power_cap", "thermal", "sw_thermal", "hw_thermal", "power_brake")


def _sum(counters: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    found = [counters[name] for name in names if name in counters]
    return sum(found) if found else None


def _of_links(devices: tuple[Device, ...], gpu: str, names: tuple[str, ...]) -> int | None:
    sums = [
        _sum(one.counters, names)
        for one in devices
        if one.kind == "nvlink" and one.name.startswith(f"{gpu}/")
    ]
    found = [value for value in sums if value is not None]
    return sum(found) if found else None


def _port(device: Device, who: dict[str, str]) -> Iterator[SeriesLine]:
    name, _, port = device.name.partition("/")
    labels = who | {"device": name, "port": port}
    for event, names in PORT_EVENTS.items():
        value = _sum(device.counters, names)
        if value is not None:
            yield make_series("nccl_node_port_events_total", labels | {"event": event}, str(value))


def _gpu(device: Device, devices: tuple[Device, ...], who: dict[str, str]) -> Iterator[SeriesLine]:
    labels = who | {"gpu": device.name}
    for event, names in GPU_EVENTS.items():
        value = _sum(device.counters, names)
        if value is None and event in LINK_EVENTS:
            value = _of_links(devices, device.name, LINK_EVENTS[event])
        if value is not None:
            yield make_series("nccl_node_gpu_events_total", labels | {"event": event}, str(value))
    for reason in THROTTLES:
        if reason in device.counters:
            yield make_series(
                "nccl_node_gpu_throttled_seconds_total",
                labels | {"reason": reason},
                f"{device.counters[reason] / 1e9:.3f}",
            )
    if "nvlinks_active" in device.levels:
        active = str(device.levels["nvlinks_active"])
        yield make_series("nccl_node_gpu_nvlinks_active", labels, active)


def sample_series(sample: Sample, who: dict[str, str]) -> Iterator[SeriesLine]:
    """Yield the series of one sample; `who`: the labels of the node."""
    for device in sample.devices:
        if device.kind == "port":
            yield from _port(device, who)
        elif device.kind == "gpu":
            yield from _gpu(device, sample.devices, who)


def _health(watch: CounterWatch, who: dict[str, str]) -> Iterator[SeriesLine]:
    sources = watch.sources
    for name in SOURCES:
        sample, trouble = sources.latest.get(name), sources.trouble(name)
        if watch.is_idle or (sample is None and not trouble):
            continue
        labels = who | {"source": name}
        up = str(int(not trouble))
        yield make_series("nccl_inspector_agent_counters_up", labels, up)
        if sample:
            yield make_series(
                "nccl_inspector_agent_counters_seconds", labels, f"{sample.took_s:.3f}"
            )
    for (name, reason), count in sorted(sources.failures.items()):
        labels = who | {"source": name, "reason": reason}
        yield make_series("nccl_inspector_agent_counters_failures_total", labels, str(count))


def counters_series(watch: CounterWatch, labels: dict[str, str]) -> list[SeriesLine]:
    """Return the node's series of counters, without values that are no longer renewed.

    `labels`: cluster and node, as in the agent's own series.
    """
    found = list(_health(watch, labels))
    oldest_s = watch.boot_s() - OLD_INTERVALS * INTERVAL_S
    for name in (INFINIBAND, GPU):
        sample = watch.sources.latest.get(name)
        if sample and not watch.is_idle and sample.boot_s >= oldest_s:
            found += sample_series(sample, labels)
    latest = {(one.xid.gpu, one.xid.number): one.xid.time_s for one in watch.recent}
    for (gpu, number), time_s in latest.items():
        words = labels | {"gpu": gpu, "xid": str(number)}
        found.append(make_series("nccl_node_gpu_xid_timestamp_seconds", words, str(time_s)))
    return found
