# SPDX-License-Identifier: Apache-2.0
"""Links and GPUs where there are none: trees of sysfs, and what the stand-in for NVML says."""

from collections.abc import Mapping, Sequence
from ctypes import CDLL
from pathlib import Path

from nccl_inspector.agent.counters.gpu import read_gpus
from nccl_inspector.counters.sample import Sample
from tests.support.repository import BUILD

FAKE_NVML = BUILD / "fakenvml" / "libnvidia-ml.so.1"
STATE = "libnvidia-ml.state"
PORT = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
# As on a port of mlx5 on which nothing has happened yet.
COUNTERS = {
    "link_downed": 0, "link_error_recovery": 0, "symbol_error": 0, "port_rcv_errors": 0,
    "port_xmit_discards": 0, "port_xmit_wait": 10, "port_xmit_data": 1000, "port_rcv_data": 2000,
}  # fmt: skip
HW_COUNTERS = {"local_ack_timeout_err": 0, "out_of_sequence": 0, "np_cnp_sent": 0, "lifespan": 10}


def write(path: Path, value: object) -> None:
    """Write a file of sysfs, with the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def make_port(
    sys: Path,
    name: str = "mlx5_0",
    port: int = 1,
    *,
    link_layer: str = "InfiniBand",
    counters: Mapping[str, object] | None = None,
    hw_counters: Mapping[str, object] | None = None,
) -> Path:
    """Make a port of an adapter below `sys`; return its directory."""
    device = sys / "class" / "infiniband" / name
    write(device / "fw_ver", "28.39.1002")
    folder = device / "ports" / str(port)
    for key, word in {**PORT, "link_layer": link_layer}.items():
        write(folder / key, word)
    for kind, values in (
        ("counters", COUNTERS if counters is None else counters),
        ("hw_counters", HW_COUNTERS if hw_counters is None else hw_counters),
    ):
        for key, value in values.items():
            write(folder / kind / key, value)
    return folder


def gpu_lines(index: int, uuid: str, *, links: int = 2) -> list[str]:
    """What NVML says of a healthy GPU whose minor number and bus follow its index."""
    words = {
        "uuid": uuid, "minor": index, "pci": f"00000000:{0x10 + index:02X}:00.0",
        "name": "NVIDIA H100 80GB HBM3", "clock": 1980, "max_clock": 1980, "temperature": 40,
        "reasons": 0, "generation": 5, "max_generation": 5, "width": 16, "max_width": 16,
        "field.91.0": links,
    }  # fmt: skip
    words |= {f"field.{number}.0": 0 for number in (3, 4, 52, 59, 75, 94, 143, 144, 145, 270)}
    for link in range(links):
        words[f"link.{link}"] = 1
        words |= {f"field.{number}.{link}": 0 for number in (161, 162, 163)}
        words[f"field.164.{link}"] = 26562
    return [f"{index} {word} {value}" for word, value in words.items()]


def write_nvml(folder: Path, lines: Sequence[str], gpus: int) -> Path:
    """Put the stand-in for NVML and what it says into a folder; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / FAKE_NVML.name
    if not library.exists():
        library.write_bytes(FAKE_NVML.read_bytes())
    part = folder / f".{STATE}"
    part.write_text("".join(f"{line}\n" for line in (f"gpus {gpus}", *lines)))
    part.replace(folder / STATE)
    return library


def read_fake_gpus(library: Path) -> Sample:
    """What `read_gpus` says with this library; only in a child, where it stays loaded."""
    CDLL(str(library))  # the loader then has one of this name
    return read_gpus()
