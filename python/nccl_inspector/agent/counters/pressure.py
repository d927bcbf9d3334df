# SPDX-License-Identifier: Apache-2.0
"""Pressure stall information of the node: how long tasks waited for CPU, memory or disks."""

import re
from pathlib import Path

from nccl_inspector.counters.counter_table import names_of
from nccl_inspector.counters.sample import PRESSURE, Device, Sample
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock

PROC = Path("/proc")

_TOTAL = re.compile(r"^(some|full) .*\btotal=([0-9]{1,19})$", re.MULTILINE)


def parse_pressure(what: str, text: str) -> dict[str, int]:
    """Return the totals (us) of one file that are in the table: cpu_some and so on."""
    found = {f"{what}_{kind}": int(total) for kind, total in _TOTAL.findall(text)}
    return {name: total for name, total in found.items() if name in names_of("node")}


def read_pressure(proc: Path = PROC, clock: Clock = SYSTEM_CLOCK) -> Sample:
    """Return a sample; it is empty if the kernel was built or booted without this information."""
    time_s, boot_s = clock.unix_s(), clock.boot_s()
    counters: dict[str, int] = {}
    for what in ("cpu", "memory", "io"):
        try:
            counters |= parse_pressure(what, (proc / "pressure" / what).read_text("ascii"))
        except OSError:
            continue
    if not counters:
        return Sample(PRESSURE, time_s, boot_s, (), "the kernel tells no pressure")
    return Sample(PRESSURE, time_s, boot_s, (Device("node", "", counters, {}, {}),))
