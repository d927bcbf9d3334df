# SPDX-License-Identifier: Apache-2.0
"""Sizes in powers of two, as text and from text."""

import re

from nccl_inspector.errors import InspectorError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)(?:i?B)?")


def size_words(size_bytes: int) -> str:
    """Return `64 MiB`; a size that is no whole number of a unit is said in a smaller one."""
    at = 0
    while at + 1 < len(_UNITS) and size_bytes and size_bytes % 1024 == 0:
        size_bytes //= 1024
        at += 1
    return f"{size_bytes:,} {_UNITS[at]}"


def parse_size(text: str) -> int:
    """Return the bytes of a text like `64M`, `64MiB` or `4096`.

    Raises:
        InspectorError: it is no such text.
    """
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise InspectorError(f"not a size like 64M: {text[:40]}")
    return int(match[1]) << (10 * ("", "K", "M", "G", "T").index(match[2]))
