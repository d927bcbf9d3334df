# SPDX-License-Identifier: Apache-2.0
"""One rank's dump of PyTorch's flight recorder as records, and the strict reader of its values.

The fields are those of format 2.x (torch 2.3 and later, torchcomms), whatever the backend. A field
that came with a later minor version may be missing. Times are Unix nanoseconds, 0 if not known.
"""

import json
import re
from sys import intern
from typing import Any, NamedTuple

from nccl_inspector.flight.pickled_data import read_pickle
from nccl_inspector.system.checked_json import Checks

RECORDS_MAX = 100_000
RANK_MAX = (1 << 20) - 1
FRAMES_KEPT = 16  # of a record, from the innermost on
_FRAMES_MAX = 1024
_GROUPS_MAX = 1 << 16
_TENSORS_MAX = 1 << 16
_TENSORS_SHOWN = 3
_PATH_CHARS_MAX = 4096
_NAME_CHARS_MAX = 1024
_NUMBER_MAX = (1 << 63) - 1
_ELEMENTS_MAX = 1 << 80
_RANKS = re.compile(r"\[(?:[0-9]{1,7}(?:, ?[0-9]{1,7})*)?\]")  # "[0, 1]": a text, not a list
_OPERATION = re.compile(r"(?:(\w{1,32}):)?(\S{1,96})(?: ([0-9]{1,7})(->|<-)([0-9]{1,7}))?")
STATES = SCHEDULED, STARTED, COMPLETED = "scheduled", "started", "completed"
_CHECKS = Checks("invalid_dump")


class Frame(NamedTuple):
    """A function on the stack of the call."""

    function: str
    file: str
    line: int


class Group(NamedTuple):
    """A process group; `ranks` are global ranks in the order of the group, empty if not known."""

    name: str
    desc: str
    ranks: tuple[int, ...]


class Record(NamedTuple):
    """One operation; `source` and `target` are ranks in the group, -1 if it is no Send or Recv."""

    record_id: int
    group: str
    desc: str
    seq: int  # of the group's collectives
    p2p_seq: int
    is_p2p: bool
    backend: str
    op: str
    source: int
    target: int
    inputs: str  # shapes as text
    outputs: str
    input_elements: int
    output_elements: int
    dtypes: str
    state: str
    retired: bool  # no longer watched: it ended, or was given up
    created_ns: int
    started_ns: int
    completed_ns: int
    timeout_ms: int
    frames: tuple[Frame, ...]


class Dump(NamedTuple):
    """What one rank recorded, in the order of its calls."""

    version: str
    library: str  # the version of NCCL
    groups: tuple[Group, ...]
    records: tuple[Record, ...]


def parse_dump(data: bytes) -> Dump:
    """Return the dump in a file, which may be a pickle or JSON.

    Raises:
        RefusedError: it is neither, or its values are not those of a dump.
    """
    start = data[:64].lstrip()
    return check_dump(_CHECKS.load(data) if start.startswith(b"{") else read_pickle(data))


def check_dump(value: Any) -> Dump:
    """Return the dump that has these values.

    Raises:
        RefusedError: a value is missing, of another type or too large.
    """
    if not isinstance(value, dict) or "version" not in value:
        raise _CHECKS.refused("no dump of a flight recorder")
    rows = _CHECKS.rows(value.get("entries", []), most=RECORDS_MAX)
    frames = _Frames()
    return Dump(
        _CHECKS.text(value["version"]),
        _CHECKS.text(value.get("comm_lib_version", "")),
        _groups(value.get("pg_config", {})),
        tuple(_record(row, frames) for row in rows),
    )


def _groups(value: Any) -> tuple[Group, ...]:
    if not isinstance(value, dict) or len(value) > _GROUPS_MAX:
        raise _CHECKS.refused("pg_config")
    return tuple(_group(key, one) for key, one in value.items())


def _group(key: Any, value: Any) -> Group:
    if not isinstance(value, dict):
        raise _CHECKS.refused("pg_config")
    name = _CHECKS.text(value.get("name", key), _NAME_CHARS_MAX)
    desc = _CHECKS.text(value.get("desc", ""), _NAME_CHARS_MAX)
    return Group(name, desc, _ranks(value.get("ranks", "[]")))


def _ranks(value: Any) -> tuple[int, ...]:
    """Return the ranks of a group, which are a text such as `[0, 1]`."""
    if isinstance(value, str) and _RANKS.fullmatch(value):
        found = tuple(int(one) for one in re.findall(r"[0-9]+", value))
    elif isinstance(value, list):
        found = tuple(_CHECKS.integer(one, RANK_MAX) for one in value)
    else:
        raise _CHECKS.refused("ranks of a group")
    if any(one > RANK_MAX for one in found) or len(set(found)) != len(found):
        raise _CHECKS.refused("ranks of a group")
    return found


class _Frames:
    """Frames of records; PyTorch writes each function once, so most frames are the same object."""

    def __init__(self) -> None:
        self._known: dict[int, Frame] = {}

    def _frame(self, value: Any) -> Frame:
        found = self._known.get(id(value))
        if found is None:
            if not isinstance(value, dict):
                raise _CHECKS.refused("a frame")
            found = Frame(
                _CHECKS.text(value.get("name"), _PATH_CHARS_MAX),
                _CHECKS.text(value.get("filename"), _PATH_CHARS_MAX),
                _CHECKS.integer(value.get("line"), _NUMBER_MAX),
            )
            self._known[id(value)] = found  # the values live as long as this
        return found

    def take(self, value: Any) -> tuple[Frame, ...]:
        """Return the frames from the innermost that is not PyTorch's own on."""
        rows = [self._frame(one) for one in _CHECKS.rows(value, most=_FRAMES_MAX)]
        first = next((at for at, one in enumerate(rows) if not _is_library(one.file)), None)
        if first is None:
            first = next((at for at, one in enumerate(rows) if not _is_torch(one.file)), 0)
        return tuple(rows[first : first + FRAMES_KEPT])


def _is_torch(path: str) -> bool:
    return "/torch/" in path or "/torchcomms/" in path


def _is_library(path: str) -> bool:
    """Tell whether a file is of Python or of an installed package, and not the user's own."""
    inside = "/site-packages/" in path or "/dist-packages/" in path or "/lib/python3" in path
    return inside or _is_torch(path) or path.startswith("<")


def _signed(value: Any) -> int:
    """Return a number from -1 on; PyTorch has -1 for a count that is not known."""
    return -1 if type(value) is int and value == -1 else _CHECKS.integer(value, _NUMBER_MAX)


def _time(value: Any) -> int:
    return 0 if value is None else _CHECKS.integer(value, _NUMBER_MAX)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _CHECKS.refused("invalid flag")
    return value


def _shapes(value: Any) -> tuple[str, int]:
    """Return tensors' shapes as text (`4x256, 8`), and how many elements they have together."""
    rows = [_CHECKS.rows(one, most=64) for one in _CHECKS.rows(value, most=_TENSORS_MAX)]
    words: list[str] = []
    total = 0
    for row in rows:
        elements = 1
        for side in row:
            elements *= _CHECKS.integer(side, _NUMBER_MAX)
            if elements > _ELEMENTS_MAX:
                raise _CHECKS.refused("a tensor is too large")
        total += elements
        if len(words) < _TENSORS_SHOWN:
            words.append("x".join(map(str, row)) or "scalar")
    more = f" and {len(rows) - len(words)} more" if len(rows) > len(words) else ""
    return ", ".join(words) + more, total


def _dtypes(value: Any) -> str:
    rows = _CHECKS.rows(value, most=_TENSORS_MAX)
    return ", ".join(sorted({_CHECKS.text(one) for one in rows}))[:_NAME_CHARS_MAX]


def _operation(value: Any) -> tuple[str, str, int, int]:
    """Return backend, name, source and target of `nccl:all_reduce`, `nccl:recv 1<-0`."""
    text = _CHECKS.text(value, _NAME_CHARS_MAX)
    match = _OPERATION.fullmatch(text)
    if match is None:
        return "", text.replace(" ", "_"), -1, -1
    backend, name, first, arrow, second = match.groups()
    if first is None:
        return backend or "", name, -1, -1
    ends = (int(first), int(second)) if arrow == "->" else (int(second), int(first))
    return backend or "", name, *ends


def _record(row: Any, frames: _Frames) -> Record:
    if not isinstance(row, dict):
        raise _CHECKS.refused("an entry")
    group, desc = _CHECKS.rows(row.get("process_group"), 2)
    backend, op, source, target = _operation(row.get("profiling_name"))
    inputs, input_elements = _shapes(row.get("input_sizes", []))
    outputs, output_elements = _shapes(row.get("output_sizes", []))
    state = row.get("state")
    if state not in STATES:
        raise _CHECKS.refused("the state of an entry")
    return Record(
        record_id=_CHECKS.integer(row.get("record_id"), _NUMBER_MAX),
        group=_CHECKS.text(group, _NAME_CHARS_MAX),
        desc=_CHECKS.text(desc, _NAME_CHARS_MAX),
        seq=_signed(row.get("collective_seq_id")),
        p2p_seq=_signed(row.get("p2p_seq_id", 0)),
        is_p2p=_flag(row.get("is_p2p", False)),
        backend=backend,
        op=op,
        source=source,
        target=target,
        inputs=inputs,
        outputs=outputs,
        input_elements=input_elements,
        output_elements=output_elements,
        dtypes=_dtypes(row.get("input_dtypes", [])),
        state=state,
        retired=_flag(row.get("retired", False)),
        created_ns=_time(row.get("time_created_ns")),
        started_ns=_time(row.get("time_discovered_started_ns")),
        completed_ns=_time(row.get("time_discovered_completed_ns")),
        timeout_ms=_signed(row.get("timeout_ms", -1)),
        frames=frames.take(row.get("frames", [])),
    )


# Between the child that reads a file and its parent.


def to_wire(dump: Dump) -> bytes:
    """Return a dump as JSON, a list for each tuple."""
    return json.dumps(dump, separators=(",", ":")).encode("ascii")


def from_wire(data: bytes) -> Dump:
    """Return what `to_wire` was given; equal texts and stacks are kept once."""
    version, library, groups, records = json.loads(data)
    stacks: dict[str, tuple[Frame, ...]] = {}

    def record(row: list[Any]) -> Record:
        *plain, frames = (intern(one) if isinstance(one, str) else one for one in row)
        key = str(frames)
        if key not in stacks:
            stacks[key] = tuple(Frame(*one) for one in frames)
        return Record._make([*plain, stacks[key]])

    return Dump(
        version,
        library,
        tuple(Group(name, desc, tuple(ranks)) for name, desc, ranks in groups),
        tuple(map(record, records)),
    )
