# SPDX-License-Identifier: Apache-2.0
"""Expand Slurm's node list syntax, such as `n[1-4,07],m01`."""

import re

from nccl_inspector.errors import InspectorError

NODES_MAX = 65536
_TEXT_MAX = 1 << 20
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def _pieces(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    pieces, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise InspectorError("node list: brackets do not match")
        if char == "," and depth == 0:
            pieces.append(text[start:at])
            start = at + 1
    if depth:
        raise InspectorError("node list: brackets do not match")
    return [*pieces, text[start:]]


def _numbers(ranges: str) -> list[str]:
    """Expand `1-4,07`; numbers keep the width of the range's first."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise InspectorError("node list: not a range of numbers")
        low, high = int(match[1]), int(match[2] or match[1])
        if high - low >= NODES_MAX or len(numbers) + high - low >= NODES_MAX:
            raise InspectorError("node list: too many nodes")
        numbers += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return numbers


def _expand(piece: str) -> list[str]:
    names = [""]
    for plain, ranges in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", piece):
        tails = _numbers(ranges) if ranges else [""]
        if len(names) * len(tails) > NODES_MAX:
            raise InspectorError("node list: too many nodes")
        names = [f"{name}{plain}{tail}" for name in names for tail in tails]
    return names


def expand(nodelist: str) -> list[str]:
    """Return the nodes in order; none for an empty list.

    Raises:
        InspectorError: not a node list, or one of more than NODES_MAX nodes.
    """
    if len(nodelist) > _TEXT_MAX:
        raise InspectorError("node list: too long")
    if "[]" in nodelist:
        raise InspectorError("node list: not a range of numbers")
    nodes: list[str] = []
    for piece in _pieces(nodelist):
        nodes += _expand(piece)
        if len(nodes) > NODES_MAX:
            raise InspectorError("node list: too many nodes")
    return [node for node in nodes if node]
