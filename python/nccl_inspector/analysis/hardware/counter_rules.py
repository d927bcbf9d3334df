# SPDX-License-Identifier: Apache-2.0
"""What a rise of each counter, and each XID, means: how bad from how much on, and what to do."""

from dataclasses import dataclass

from nccl_inspector.model.card import CRITICAL, INFO, WARNING, Severity

CABLE = "check cable, connector and switch port"
UPSTREAM = "check the switch's other links: the packets came broken to it"
CONGESTION = "look for congestion or a slow receiver on the fabric"
HOST = "check whether the process or its CPUs were starved on this node"
COOLING = "check cooling, power supply and power limits"
RESET = "drain the node and reset the GPU"
NVLINK = "check the GPU's NVLinks, both ends, and reset the GPU if it goes on"
PCIE = "reseat or replace the GPU or its riser"
APPLICATION = "look for a fault in the application first"
NOTHING = ""


@dataclass(frozen=True, slots=True)
class CounterRule:
    """`severity` holds above so many events an hour, and above that share; else it is information.

    `share` is of the time for times, of what the port moved for all else. `alone`: only where the
    device stands out from its like, since all have some. A counter without any of these says by a
    single event that hardware failed. What a healthy fabric counts every day has a rate: a few
    retransmissions, a timeout now and then, and the marks by which congestion control works.
    """

    severity: Severity
    action: str
    per_hour: float = 0.0
    share: float = 0.0
    alone: bool = False


_PORT = {
    "link_downed": CounterRule(CRITICAL, CABLE),
    "carrier_down_count": CounterRule(CRITICAL, CABLE),
    "link_error_recovery": CounterRule(WARNING, CABLE),
    "symbol_error": CounterRule(WARNING, CABLE, per_hour=10),
    "port_rcv_errors": CounterRule(WARNING, CABLE, per_hour=10),
    "local_link_integrity_errors": CounterRule(WARNING, CABLE, per_hour=10),
    "excessive_buffer_overrun_errors": CounterRule(WARNING, CABLE, per_hour=10),
    "port_rcv_remote_physical_errors": CounterRule(WARNING, UPSTREAM, per_hour=10),
    "port_xmit_discards": CounterRule(WARNING, CONGESTION, per_hour=60, share=1e-6),
    # In ticks of unknown length, some nanoseconds each.
    "port_xmit_wait": CounterRule(WARNING, CONGESTION, per_hour=10e6, alone=True),
    "out_of_sequence": CounterRule(WARNING, CONGESTION, per_hour=60, share=1e-6, alone=True),
    "packet_seq_err": CounterRule(WARNING, CONGESTION, per_hour=60, share=1e-6),
    "implied_nak_seq_err": CounterRule(WARNING, CONGESTION, per_hour=60, share=1e-6),
    # Each is a stall of some milliseconds up to seconds.
    "local_ack_timeout_err": CounterRule(WARNING, CABLE, per_hour=10),
    "rnr_nak_retry_err": CounterRule(WARNING, HOST, per_hour=60, share=1e-6),
    "out_of_buffer": CounterRule(WARNING, HOST, per_hour=60, share=1e-6),
    "req_transport_retries_exceeded": CounterRule(CRITICAL, CABLE),
    "req_rnr_retries_exceeded": CounterRule(CRITICAL, HOST),
    # A process that is killed leaves some of these three.
    "req_remote_access_errors": CounterRule(WARNING, APPLICATION, per_hour=100),
    "resp_remote_access_errors": CounterRule(WARNING, APPLICATION, per_hour=100),
    "req_cqe_error": CounterRule(WARNING, CABLE, per_hour=100),
    "roce_adp_retrans": CounterRule(WARNING, CONGESTION, per_hour=60, share=1e-6),
    "roce_adp_retrans_to": CounterRule(WARNING, CONGESTION, per_hour=10),
    # The marks are how a lossless fabric slows its senders down: only a port of its own kind of
    # trouble has far more of them than its like.
    "np_ecn_marked_roce_packets": CounterRule(WARNING, CONGESTION, share=0.05, alone=True),
    "rp_cnp_ignored": CounterRule(WARNING, CONGESTION, per_hour=100),
    "rx_icrc_encapsulated": CounterRule(WARNING, CABLE, per_hour=10),
}
_GPU = {
    "ecc_uncorrected": CounterRule(CRITICAL, RESET),
    "remapped_rows_uncorrected": CounterRule(CRITICAL, RESET),
    "nvlink_crc_flit": CounterRule(WARNING, NVLINK, per_hour=100),
    "nvlink_crc_data": CounterRule(WARNING, NVLINK, per_hour=10),
    "nvlink_replay": CounterRule(WARNING, NVLINK, per_hour=100),
    "nvlink_recovery": CounterRule(WARNING, NVLINK),
    "nvlink_ecc_data": CounterRule(WARNING, NVLINK, per_hour=10),
    "pcie_replay": CounterRule(WARNING, PCIE, per_hour=1000),
    "pcie_non_fatal": CounterRule(WARNING, PCIE, per_hour=10),
    "pcie_fatal": CounterRule(CRITICAL, PCIE),
    "power_cap": CounterRule(WARNING, COOLING, share=0.05, alone=True),
    "thermal": CounterRule(WARNING, COOLING, share=0.01),
    "sw_thermal": CounterRule(WARNING, COOLING, share=0.01),
    "hw_thermal": CounterRule(WARNING, COOLING, share=0.01),
    "power_brake": CounterRule(WARNING, COOLING, share=0.01),
    "c2c_interrupts": CounterRule(WARNING, RESET, per_hour=10),
}
_NVLINK = {
    "replay": CounterRule(WARNING, NVLINK, per_hour=100),
    "recovery": CounterRule(WARNING, NVLINK),
    "crc": CounterRule(WARNING, NVLINK, per_hour=100),
    "malformed_packets": CounterRule(WARNING, NVLINK),
    "buffer_overruns": CounterRule(WARNING, NVLINK),
    "rcv_errors": CounterRule(WARNING, NVLINK),
    "rcv_remote_errors": CounterRule(WARNING, NVLINK),
    "rcv_general_errors": CounterRule(WARNING, NVLINK),
    "link_integrity_errors": CounterRule(WARNING, NVLINK),
    "xmit_discards": CounterRule(WARNING, NVLINK, per_hour=10),
    "recovery_failed": CounterRule(CRITICAL, NVLINK),
    "recoveries": CounterRule(WARNING, NVLINK),
}
RULES = {
    (kind, name): rule
    for kind, rules in (("port", _PORT), ("gpu", _GPU), ("nvlink", _NVLINK))
    for name, rule in rules.items()
}
# What holds the clocks of a GPU, so that it computes later than the others.
THROTTLES = ("thermal", "sw_thermal", "hw_thermal", "power_brake")


@dataclass(frozen=True, slots=True)
class XidRule:
    """What an XID is in words, how bad, and what to do."""

    severity: Severity
    words: str
    action: str


XIDS = {
    **dict.fromkeys((13, 31, 43), XidRule(INFO, "fault of a kernel or its memory", APPLICATION)),
    45: XidRule(INFO, "channels taken down after another error or a kill", NOTHING),
    **dict.fromkeys((48, 94, 95, 140), XidRule(CRITICAL, "memory error not corrected", RESET)),
    63: XidRule(WARNING, "row of memory remapped", "reset the GPU when the job is over"),
    64: XidRule(CRITICAL, "remapping a row of memory failed", RESET),
    **dict.fromkeys((62, 109, 119, 120), XidRule(CRITICAL, "firmware does not answer", RESET)),
    **dict.fromkeys((74, *range(144, 151)), XidRule(CRITICAL, "NVLink error", NVLINK)),
    79: XidRule(CRITICAL, "GPU fell off the bus", "drain the node and power-cycle it"),
    121: XidRule(WARNING, "error of the link between CPU and GPU", RESET),
    137: XidRule(INFO, "NVLink access refused, often after a peer's death", NOTHING),
    154: XidRule(WARNING, "the driver asks for a recovery action", "do what nvidia-smi -q says"),
}
OTHER_XID = XidRule(WARNING, "error of the GPU or its driver", "look it up in NVIDIA's catalogue")
