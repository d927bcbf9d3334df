# SPDX-License-Identifier: Apache-2.0
"""Expand and compress Slurm's node list syntax, such as `n[1-4,07],m01`."""

import re
from collections.abc import Iterable

from nccl_inspector.errors import InspectorError

NODES_MAX = 65536
_TEXT_MAX = 1 << 20
_NAME_MAX = 255  # bounds the memory
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_NUMBERED = re.compile(r"(.*[^0-9\n])?([0-9]+)([^0-9]*)")
_DIGITS_MAX = 18  # of a node's number; digits before these belong to the name
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def is_host(name: str) -> bool:
    """Tell whether a name may become an argument, a target or a part of a command or URL.

    Names of nodes may come from a capture, a log or an answer, and `-oProxyCommand=x` is one, too.
    """
    return _HOST.fullmatch(name) is not None


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
        if high < low:
            raise InspectorError("node list: a range that counts down")
        if len(numbers) + high - low >= NODES_MAX:
            raise InspectorError("node list: too many nodes")
        numbers += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return numbers


def _expand(piece: str) -> list[str]:
    names = [""]
    for plain, ranges in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", piece):
        tails = _numbers(ranges) if ranges else [""]
        if len(names) * len(tails) > NODES_MAX:
            raise InspectorError("node list: too many nodes")
        if sum(max(map(len, one), default=0) for one in (names, [plain], tails)) > _NAME_MAX:
            raise InspectorError("node list: a name is too long")
        names = [f"{name}{plain}{tail}" for name in names for tail in tails]
    return names


def expand(nodelist: str) -> list[str]:
    """Return the node names in order; an empty list for an empty text.

    Raises:
        InspectorError: not a node list, or more than NODES_MAX nodes.
    """
    if len(nodelist) > _TEXT_MAX:
        raise InspectorError("node list: too long")
    if any(map(str.isspace, nodelist)):
        raise InspectorError("node list: a blank")
    if "[]" in nodelist:
        raise InspectorError("node list: not a range of numbers")
    nodes: list[str] = []
    for piece in _pieces(nodelist):
        nodes += _expand(piece)
        if len(nodes) > NODES_MAX:
            raise InspectorError("node list: too many nodes")
    return [node for node in nodes if node]


def _follows(number: str, first: str, last: str) -> bool:
    """Tell whether a number is the next one of a range."""
    return number == str(int(last) + 1).zfill(len(first))


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first}-{last}"


def _ranges(numbers: Iterable[str]) -> str:
    """Return `1-4,07`; a range holds only numbers that `_numbers` expands to the same texts."""
    runs: list[list[str]] = []
    for text in sorted(numbers, key=lambda one: (int(one), len(one))):
        if runs and _follows(text, runs[-1][0], runs[-1][-1]):
            runs[-1].append(text)
        else:
            runs.append([text])
    return ",".join(_range(run[0], run[-1]) for run in runs)


def _parts(node: str) -> tuple[str, str, str]:
    """Return the text before the node's last number, the number, and the text after it."""
    match = _NUMBERED.fullmatch(node)
    if not match:
        return node, "", ""
    prefix, number, suffix = match[1] or "", match[2], match[3]
    return prefix + number[:-_DIGITS_MAX], number[-_DIGITS_MAX:], suffix


def compress(nodes: Iterable[str]) -> str:
    """Return a node list of these names, each once; ranges are of a name's last number."""
    return _text(map(_parts, nodes))


def _text(names: Iterable[tuple[str, str, str]]) -> str:
    groups: dict[tuple[str, str], set[str]] = {}
    for prefix, number, suffix in names:
        groups.setdefault((prefix, suffix), set()).add(number)
    pieces = []
    for (prefix, suffix), numbers in groups.items():
        if "" in numbers:
            pieces.append(prefix + suffix)
            numbers.discard("")
        if len(numbers) == 1:
            pieces.append(f"{prefix}{numbers.pop()}{suffix}")
        elif numbers:
            pieces.append(f"{prefix}[{_ranges(numbers)}]{suffix}")
    return ",".join(pieces)


def _natural(parts: tuple[str, str, str]) -> tuple[str, str, int, int]:
    prefix, number, suffix = parts
    return prefix, suffix, int(number or -1), len(number)


def _fitting(names: Iterable[tuple[str, str, str]], chars: int) -> int:
    """Return how many of the names, from the first on, fit into a node list of `chars` characters.

    `names` are parts (`_parts`) in natural order; each name makes the list longer.
    """
    size = fitting = before = numbers = closed = 0  # closed: length of all ranges but the last
    first = last = ""
    group: tuple[str, str, bool] | None = None
    for prefix, number, suffix in names:
        if group != (group := (prefix, suffix, bool(number))):
            before = size + bool(size)  # a comma
            numbers = closed = 0
            first = last = ""
        if first and _follows(number, first, last):
            last = number
        else:
            closed += len(_range(first, last)) + 1 if first else 0
            first = last = number
        numbers += 1
        inner = closed + len(_range(first, last)) + (2 if numbers > 1 else 0)
        size = before + len(prefix) + inner + len(suffix)
        if size > chars:
            break
        fitting += 1
    return fitting


def compress_within(nodes: Iterable[str], chars: int) -> tuple[str, int]:
    """Return a node list of the first names that fit into `chars`, and how many are left out."""
    parts = sorted(map(_parts, set(nodes)), key=_natural)
    fitting = _fitting(parts, chars)
    return _text(parts[:fitting]), len(parts) - fitting
