# SPDX-License-Identifier: Apache-2.0
"""PCI addresses of GPUs; NVML, the kernel and /proc each write them in another form."""

import re

_PCI = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.[0-7])?")


def pci_address(text: str) -> str:
    """Return the address as `0000:65:00`, or an empty text if `text` is not a PCI address."""
    match = _PCI.fullmatch(text)
    if match is None:
        return ""
    domain, bus, device = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}"
