# SPDX-License-Identifier: Apache-2.0
"""PCI addresses of GPUs, of which everybody has another form."""

import re

_PCI = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.[0-7])?")


def pci_address(text: str) -> str:
    """Return `0000:65:00` of what NVML, the kernel or /proc calls a GPU's place, else nothing."""
    match = _PCI.fullmatch(text)
    if match is None:
        return ""
    domain, bus, device = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}"
