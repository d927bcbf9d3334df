# SPDX-License-Identifier: Apache-2.0
"""What a rise of each counter, and each XID, means: when it is bad, and what to do."""

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
class Rule:
    """`severity` applies above `per_hour` events an hour and `share`; below it is information.

    `share` is of the time for counters of time, and of the packets that the port moved for all
    others. `alone`: only if the device stands out from its like, because all devices have some. A
    counter without these limits says by a single event that hardware failed. Counters that also
    rise on a healthy fabric have a limit: a few retransmissions, a timeout now and then, and the
    marks of congestion control.
    """

    severity: Severity
    action: str
    per_hour: float = 0.0
    share: float = 0.0
    alone: bool = False


_PORT = {
    "link_downed": Rule(CRITICAL, CABLE),
    "carrier_down_count": Rule(CRITICAL, CABLE),
    "link_error_recovery": Rule(WARNING, CABLE),
    "symbol_error": Rule(WARNING, CABLE, per_hour=10),
    "port_rcv_errors": Rule(WARNING, CABLE, per_hour=10),
    "local_link_integrity_errors": Rule(WARNING, CABLE, per_hour=10),
    "excessive_buffer_overrun_errors": Rule(WARNING, CABLE, per_hour=10),
    "port_rcv_remote_physical_errors": Rule(WARNING, UPSTREAM, per_hour=10),
    "port_xmit_discards": Rule(WARNING, CONGESTION, per_hour=60, share=1e-6),
    # In ticks of unknown length, some nanoseconds each.
    "port_xmit_wait": Rule(WARNING, CONGESTION, per_hour=10e6, alone=True),
    "out_of_sequence": Rule(WARNING, CONGESTION, per_hour=60, share=1e-6, alone=True),
    "packet_seq_err": Rule(WARNING, CONGESTION, per_hour=60, share=1e-6),
    "implied_nak_seq_err": Rule(WARNING, CONGESTION, per_hour=60, share=1e-6),
    # Each one is a stall of milliseconds to seconds.
    "local_ack_timeout_err": Rule(WARNING, CABLE, per_hour=10),
    "rnr_nak_retry_err": Rule(WARNING, HOST, per_hour=60, share=1e-6),
    "out_of_buffer": Rule(WARNING, HOST, per_hour=60, share=1e-6),
    "req_transport_retries_exceeded": Rule(CRITICAL, CABLE),
    "req_rnr_retries_exceeded": Rule(CRITICAL, HOST),
    # A killed process causes some of these three.
    "req_remote_access_errors": Rule(WARNING, APPLICATION, per_hour=100),
    "resp_remote_access_errors": Rule(WARNING, APPLICATION, per_hour=100),
    "req_cqe_error": Rule(WARNING, CABLE, per_hour=100),
    "roce_adp_retrans": Rule(WARNING, CONGESTION, per_hour=60, share=1e-6),
    "roce_adp_retrans_to": Rule(WARNING, CONGESTION, per_hour=10),
    # A lossless fabric slows its senders by these marks; only a port with trouble of its own has
    # far more of them than other ports.
    "np_ecn_marked_roce_packets": Rule(WARNING, CONGESTION, share=0.05, alone=True),
    "rp_cnp_ignored": Rule(WARNING, CONGESTION, per_hour=100),
    "rx_icrc_encapsulated": Rule(WARNING, CABLE, per_hour=10),
}
_GPU = {
    "ecc_uncorrected": Rule(CRITICAL, RESET),
    "remapped_rows_uncorrected": Rule(CRITICAL, RESET),
    "nvlink_crc_flit": Rule(WARNING, NVLINK, per_hour=100),
    "nvlink_crc_data": Rule(WARNING, NVLINK, per_hour=10),
    "nvlink_replay": Rule(WARNING, NVLINK, per_hour=100),
    "nvlink_recovery": Rule(WARNING, NVLINK),
    "nvlink_ecc_data": Rule(WARNING, NVLINK, per_hour=10),
    "pcie_replay": Rule(WARNING, PCIE, per_hour=1000),
    "pcie_non_fatal": Rule(WARNING, PCIE, per_hour=10),
    "pcie_fatal": Rule(CRITICAL, PCIE),
    "power_cap": Rule(WARNING, COOLING, share=0.05, alone=True),
    "thermal": Rule(WARNING, COOLING, share=0.01),
    "sw_thermal": Rule(WARNING, COOLING, share=0.01),
    "hw_thermal": Rule(WARNING, COOLING, share=0.01),
    "power_brake": Rule(WARNING, COOLING, share=0.01),
    "c2c_interrupts": Rule(WARNING, RESET, per_hour=10),
}
_NVLINK = {
    "replay": Rule(WARNING, NVLINK, per_hour=100),
    "recovery": Rule(WARNING, NVLINK),
    "crc": Rule(WARNING, NVLINK, per_hour=100),
    "malformed_packets": Rule(WARNING, NVLINK),
    "buffer_overruns": Rule(WARNING, NVLINK),
    "rcv_errors": Rule(WARNING, NVLINK),
    "rcv_remote_errors": Rule(WARNING, NVLINK),
    "rcv_general_errors": Rule(WARNING, NVLINK),
    "link_integrity_errors": Rule(WARNING, NVLINK),
    "xmit_discards": Rule(WARNING, NVLINK, per_hour=10),
    "recovery_failed": Rule(CRITICAL, NVLINK),
    "recoveries": Rule(WARNING, NVLINK),
}
RULES = {
    (kind, name): rule
    for kind, rules in (("port", _PORT), ("gpu", _GPU), ("nvlink", _NVLINK))
    for name, rule in rules.items()
}
# Reasons that hold down the clocks of a GPU, so that it computes later than others.
THROTTLES = ("thermal", "sw_thermal", "hw_thermal", "power_brake")


@dataclass(frozen=True, slots=True)
class XidRule:
    """What an XID means, how bad it is, and what to do."""

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
