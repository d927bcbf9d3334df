# SPDX-License-Identifier: Apache-2.0
"""Which variables of a process SPANK has set, by the names and hashes in its marker."""

from collections.abc import Mapping

MARKER = "NCCL_INSPECTOR_SET_BY_SLURM"


def fnv1a(value: str) -> str:
    """Return the hash that the SPANK plugin writes into the marker: FNV-1a, 64 bits."""
    found = 0xCBF29CE484222325
    for byte in value.encode("utf-8", "surrogateescape"):
        found = (found ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{found:016x}"


def marked(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the hash of each variable that SPANK set in the step of a process."""
    words = environ.get(MARKER, "").split(" ")[1:]
    return dict(word.split(":", 1) for word in words if ":" in word)


def is_ours(environ: Mapping[str, str], name: str) -> bool:
    """Tell whether a variable still has the value that SPANK gave it."""
    value = environ.get(name)
    return value is not None and marked(environ).get(name) == fnv1a(value)
