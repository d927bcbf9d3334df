# SPDX-License-Identifier: Apache-2.0
"""Ports of InfiniBand and RoCE, from sysfs; a read may take as long as the firmware takes."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nccl_inspector.counters.counter_table import names_of
from nccl_inspector.counters.sample import INFINIBAND, Device, Sample
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from nccl_inspector.system.printable import printable

SYS = Path("/sys")
PORTS_MAX = 64

_TEXT_BYTES_MAX = 128
_NUMBER = re.compile(r"[0-9]{1,20}")
_WORDS = ("state", "phys_state", "rate", "link_layer")


def _text(path: Path) -> str | None:
    """Return the one line of a file; None: it does not exist, or its driver gives nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(fd, _TEXT_BYTES_MAX)
    except OSError:
        return None
    finally:
        os.close(fd)
    words = data.decode("ascii", "replace").strip()
    return printable(words)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and _NUMBER.fullmatch(text) else None


def _counters(port: Path) -> dict[str, int]:
    """Return the port's counters that are in the table; `N/A (no PMA)` and the like are ignored."""
    found = {}
    for name in names_of("port"):
        for folder in ("counters", "hw_counters"):
            value = _number(port / folder / name)
            if value is not None:
                found[name] = value
                break
    return found


def _net_device(device: Path, port: Path) -> str:
    """Return the network interface of a RoCE port; empty if it is not known."""
    if name := _text(port / "gid_attrs" / "ndevs" / "0"):
        return name
    net = device / "device" / "net"
    try:
        names = [entry.name for entry in net.iterdir()]
    except OSError:
        return ""
    found = [name for name in names if _number(net / name / "dev_port") == int(port.name) - 1]
    return found[0] if len(found) == 1 else ""


def _facts(device: Path, port: Path) -> dict[str, str]:
    facts = {name: text for name in _WORDS if (text := _text(port / name))}
    for name in ("state", "phys_state"):  # `4: ACTIVE`
        if name in facts:
            facts[name] = facts[name].partition(": ")[2] or facts[name]
    if firmware := _text(device / "fw_ver"):
        facts["firmware"] = firmware
    if (device / "device" / "physfn").exists():
        facts["virtual_function"] = "yes"
    if facts.get("link_layer") == "Ethernet" and (interface := _net_device(device, port)):
        facts["interface"] = interface
    return facts


def _ports(infiniband: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the device and port directories that exist at this moment."""
    for device in sorted(infiniband.iterdir()):
        try:
            ports = sorted((device / "ports").iterdir())
        except OSError:  # it has just been removed
            continue
        for port in ports:
            if _NUMBER.fullmatch(port.name):
                yield device, port


def _device(device: Path, port: Path, sys: Path) -> Device:
    facts = _facts(device, port)
    counters = _counters(port)
    if interface := facts.get("interface"):
        flaps = _number(sys / "class" / "net" / interface / "carrier_down_count")
        counters |= {} if flaps is None else {"carrier_down_count": flaps}
    return Device("port", f"{device.name}/{port.name}", counters, {}, facts)


def read_ports(sys: Path = SYS, clock: Clock = SYSTEM_CLOCK) -> Sample:
    """Return a sample of all ports below `sys`."""
    time_s, boot_s = clock.unix_s(), clock.boot_s()
    infiniband = sys / "class" / "infiniband"
    try:
        found = list(_ports(infiniband))
    except OSError:
        found = []
    devices = [_device(device, port, sys) for device, port in found[:PORTS_MAX]]
    devices = [one for one in devices if one.counters or one.facts]
    if not devices:
        return Sample(INFINIBAND, time_s, boot_s, (), "no port of InfiniBand or RoCE")
    problems = (
        (f"more than {PORTS_MAX} ports, the rest is left out",) if len(found) > PORTS_MAX else ()
    )
    return Sample(INFINIBAND, time_s, boot_s, tuple(devices), problems=problems)
