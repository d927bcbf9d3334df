# SPDX-License-Identifier: Apache-2.0
"""What the log says of one process: its version, network, communicators, environment.

Each function here takes one message of level INFO. They are called for each line of a large file,
so `HANDLERS` finds them by a message's first word.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from sys import intern
from typing import Final

from nccl_inspector.nccl_log.catalogue import Version, parse_version

LAUNCHER: Final = "the launcher"  # the alias of what is no process of the job
_ITEMS_MAX = 400_000  # in all tables of all processes
_VALUE_BYTES_MAX = 200
_PAIRS_MAX = 4

_COMM = re.compile(rb"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) nranks (\d{1,7}) ")
_COMM_ID = re.compile(rb" commId (0x[0-9a-f]{1,16}) ")
_SHAPE = re.compile(rb"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) nRanks (\d{1,7}) nNodes (\d{1,6}) ")
_TIMINGS = re.compile(rb"rank (\d{1,7}) nranks (\d{1,7}) total (\d{1,7}\.\d{1,6}) \(([^()]{0,400})")
_BOOTSTRAP_S = re.compile(rb"\bbootstrap (\d{1,7}\.\d{1,6})")
_VARIABLE = re.compile(rb"(NCCL_[A-Z0-9_]{1,64}) set by environment to ([^\r\n]*)")
_HCA = re.compile(rb"\[\d{1,3}\]([\w.-]{1,32}:\d{1,3})/(IB|RoCE|\w{1,16})")
_HCA_SPEED = re.compile(
    rb"NET/IB: \[\d{1,3}\] ([\w.-]{1,32}):[^ ]{0,64} [^\r\n]{0,200}?\bspeed=(\d{1,9})\b"
)
_INTERFACE = re.compile(rb"Using (?:\[0\])?([\w.-]{1,32}):")
_ASSIGNED = re.compile(rb"Assigned (NET|COLLNET) plugin ([\w .-]{1,64}?) to comm")
_COLLNET = re.compile(rb"collnet plugin (\w{1,32})")
_DRIVER = re.compile(rb"cudaDriverVersion (\d{4,6})")
_PAIR = re.compile(rb"Channel \d{1,4}(?:/\d{1,4})? ?: (\d{1,7})\[[^\]]{1,16}\] -> (\d{1,7})\[")
_GDR = re.compile(rb"GDR (\d)")


@dataclass(slots=True)
class Room:
    """How many more things may be kept, over all processes; `refused`: how many were not."""

    left: int = _ITEMS_MAX
    refused: int = 0

    def take(self) -> bool:
        """Tell whether there is room for one more, and use it."""
        if self.left <= 0:
            self.refused += 1
            return False
        self.left -= 1
        return True


@dataclass(slots=True)
class Comm:
    """A communicator as one of its ranks tells it; numbers that are not known are 0."""

    rank: int
    nranks: int
    nodes: int = 0
    started: bool = False
    completed: bool = False
    ended: bool = False  # destroyed or aborted
    id: str = ""  # the same on all its ranks


@dataclass(frozen=True, slots=True)
class InitTime:
    """How long setting up a communicator took, and how much of it was meeting the others."""

    rank: int
    nranks: int
    total_s: float
    bootstrap_s: float | None


@dataclass(slots=True)
class ProcessLog:
    """What is known of one process; texts and tuples that are not known are empty."""

    host: str
    pid: int | None
    room: Room
    label: int | None = None  # its number by srun, torchrun or the file's name
    version: str = ""
    library: str = "NCCL"
    driver: str = ""
    network: str = ""
    collnet: str = ""
    interface: str = ""
    hcas: dict[str, str] = field(default_factory=dict)  # name:port, and its link layer
    hcas_cut: bool = False  # their list was cut
    speeds: dict[str, int] = field(default_factory=dict)  # Mb/s
    gdr_adapters: dict[str, bool] = field(default_factory=dict)
    gdr_rings: bool | None = None
    nvls: bool | None = None
    ways: Counter[str] = field(default_factory=Counter)  # of channels, without the usual ways
    host_pairs: list[str] = field(default_factory=list)  # of channels through the host's memory
    environment: dict[str, str] = field(default_factory=dict)
    comms: dict[bytes, Comm] = field(default_factory=dict)
    comms_made: int = 0
    init: InitTime | None = None  # of the largest communicator
    is_rank: bool = False  # `label` is a rank of the job
    alias: str = ""  # what its lines call it, if that is no number
    torn: bool = False  # another process's text stood before its head: `host` may not be right

    @property
    def rank(self) -> int | None:
        """Its rank in the largest communicator; None: no line says it."""
        largest = max(self.comms.values(), key=lambda one: one.nranks, default=None)
        return None if largest is None else largest.rank

    @property
    def number(self) -> int | None:
        """Its rank, else the number that the launcher gave it."""
        rank = self.rank
        return self.label if rank is None else rank

    @property
    def nodes(self) -> int:
        """The nodes of its largest communicator; 0: not known."""
        return max((one.nodes for one in self.comms.values()), default=0)

    @property
    def numbers(self) -> Version:
        """Its version for the catalogue; empty if it is not known, or not that of NVIDIA's NCCL."""
        return parse_version(self.version) if self.library == "NCCL" else ()


def _text(value: bytes) -> str:
    return value[:_VALUE_BYTES_MAX].decode("utf-8", "replace").strip()


def set_version(process: ProcessLog, message: bytes) -> None:
    """Take `2.30.7+cuda13.0`, what follows the word `version`."""
    text = _text(message).removeprefix(":").strip().split(" ")[0]
    if parse_version(text):
        process.version = text
        if "hip" in text:
            process.library = "RCCL"


def _version(process: ProcessLog, message: bytes) -> None:
    library, word, rest = message.partition(b" version ")
    if word:
        process.library = _text(library)[:8]
        set_version(process, rest)


def _comm(process: ProcessLog, message: bytes) -> None:
    message = message.rstrip()
    if (match := _SHAPE.search(message)) is not None:
        comm = _known(process, match[1], int(match[2]), int(match[3]))
        if comm is not None:
            comm.nodes = int(match[4])
        return
    match = _COMM.search(message)
    if match is None:
        return
    if message.endswith(b"Init START"):
        comm = _known(process, match[1], int(match[2]), int(match[3]), new=True)
        if comm is not None:
            comm.started = True
            id_ = _COMM_ID.search(message)
            comm.id = intern(_text(id_[1])) if id_ else ""
    elif message.endswith(b"Init COMPLETE"):
        comm = _known(process, match[1], int(match[2]), int(match[3]))
        if comm is not None:
            comm.completed = True
    elif message.endswith((b"Destroy COMPLETE", b"Abort COMPLETE")) and (
        comm := process.comms.get(match[1])
    ):
        comm.ended = True


def _known(
    process: ProcessLog, address: bytes, rank: int, nranks: int, *, new: bool = False
) -> Comm | None:
    """Return the communicator of an address, which another one may have had before."""
    comm = process.comms.get(address)
    if comm is not None and not (new and (comm.completed or comm.ended)):
        return comm
    process.comms_made += 1
    if comm is None and not process.room.take():
        return None
    comm = process.comms[address] = Comm(rank, nranks)
    return comm


def _timings(process: ProcessLog, message: bytes) -> None:
    match = _TIMINGS.search(message)
    if match is None:
        return
    nranks = int(match[2])
    if process.init is None or nranks >= process.init.nranks:
        part = _BOOTSTRAP_S.search(match[4])
        process.init = InitTime(
            int(match[1]), nranks, float(match[3]), float(part[1]) if part else None
        )


def _channel(process: ProcessLog, message: bytes) -> None:
    at = message.rfind(b" via ")
    if at < 0:
        return
    way = _WAYS.get(message[at + 5 :])
    if way is None:
        way = _way(message[at + 5 :])
    if way in process.ways or process.room.take():
        process.ways[way] += 1
    if way == "SHM" and len(process.host_pairs) < _PAIRS_MAX:
        pair = _PAIR.match(message)
        if pair is not None:
            words = f"{int(pair[1])} -> {int(pair[2])}"
            if words not in process.host_pairs:
                process.host_pairs.append(words)


_WAYS: dict[bytes, str] = {}
_WAYS_MAX = 4096


def _way(via: bytes) -> str:
    """Return the kind of a channel's path, without numbers of adapters and peers."""
    parts = _text(via).split("/")
    first, second = parts[0], parts[1] if len(parts) > 1 else ""
    if first == "NET":
        found = f"NET/{second.split('(')[0]}" + ("/GDRDMA" if "GDRDMA" in parts else "")
    elif first == "P2P":
        found = f"P2P/{second}" if second else "P2P"
    else:
        found = first
    found = found[:32]
    if len(_WAYS) < _WAYS_MAX and len(via) < 64:
        _WAYS[via] = found
    return found


def _network(process: ProcessLog, message: bytes) -> None:
    if message.startswith(b"Using network "):
        process.network = _text(message[14:])[:64]


def _assigned(process: ProcessLog, message: bytes) -> None:
    match = _ASSIGNED.match(message)
    if match is None:
        return
    if match[1] == b"NET":
        process.network = _text(match[2])
    else:
        process.collnet = _text(match[2])


def _bootstrap(process: ProcessLog, message: bytes) -> None:
    match = _INTERFACE.search(message)
    if match is not None and not process.interface:
        process.interface = _text(match[1])


def _net_ib(process: ProcessLog, message: bytes) -> None:
    if b"GPU Direct RDMA " in message:
        name = _text(message.rpartition(b"HCA ")[2])[:64]
        if name in process.gdr_adapters or process.room.take():
            process.gdr_adapters[name] = b" Enabled " in message
    elif (speed := _HCA_SPEED.match(message)) is not None:
        name = _text(speed[1])
        if name in process.speeds or process.room.take():
            process.speeds[name] = int(speed[2])
    elif b": Using " in message and not process.hcas:
        for match in _HCA.finditer(message):
            if process.room.take():
                process.hcas[_text(match[1])] = _text(match[2])


def _plugin(process: ProcessLog, message: bytes) -> None:
    match = _COLLNET.search(message)
    if match is not None:
        process.collnet = _text(match[1])


def _rings(process: ProcessLog, message: bytes) -> None:
    match = _GDR.search(message)
    if match is not None and message.startswith(b"Connected all rings"):
        process.gdr_rings = match[1] != b"0"


def _nvls(process: ProcessLog, message: bytes) -> None:
    if message.startswith(b"NVLS multicast support is "):
        process.nvls = b"is available" in message


def _driver(process: ProcessLog, message: bytes) -> None:
    match = _DRIVER.match(message)
    if match is not None:
        number = int(match[1])
        process.driver = f"{number // 1000}.{number % 1000 // 10}"


def set_variable(process: ProcessLog, message: bytes) -> None:
    """Take `NCCL_X set by environment to Y.`."""
    match = _VARIABLE.match(message)
    if match is None:
        return
    name = intern(_text(match[1]))
    if name in process.environment or process.room.take():
        # Thousands of ranks have the same values.
        process.environment[name] = intern(_text(match[2]).removesuffix("."))


Handler = Callable[[ProcessLog, bytes], None]

# By the first word of a message.
HANDLERS: Final[dict[bytes, Handler]] = {
    b"NCCL": _version,
    b"RCCL": _version,
    b"NCCLX": _version,
    b"comm": _comm,
    b"[Rank": _comm,
    b"ncclCommInitRank": _comm,
    b"ncclCommInitRankConfig": _comm,
    b"ncclCommInitRankScalable": _comm,
    b"ncclCommSplit": _comm,
    b"ncclCommInitAll": _comm,
    b"Init": _timings,
    b"Channel": _channel,
    b"Using": _network,
    b"Assigned": _assigned,
    b"Bootstrap": _bootstrap,
    b"Bootstrap:": _bootstrap,
    b"NET/IB": _net_ib,
    b"NET/IB:": _net_ib,
    b"NET/Plugin:": _plugin,
    b"NET/Plugin": _plugin,
    b"Loaded": _plugin,
    b"Connected": _rings,
    b"NVLS": _nvls,
    b"cudaDriverVersion": _driver,
}
# Their messages are looked up in the catalogue, too.
LOOKED_UP: Final = frozenset({b"NET/IB", b"NET/IB:", b"NET/Plugin:", b"NET/Plugin", b"comm"})
