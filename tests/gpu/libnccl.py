# SPDX-License-Identifier: Apache-2.0
"""As much of NCCL as a rank needs. Prototypes and layouts: nccl.h of 2.27.3, the same in 2.32.3."""

import sys
from collections.abc import Iterator, Sequence
from ctypes import (
    Structure,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
    sizeof,
)
from pathlib import Path
from typing import Any

from tests.gpu.sharedlib import Library

NAMED_SINCE = 22700  # ncclConfig_t has commName from 2.27 on
SUM = 0  # ncclSum
# ncclDataType_t, and how many bytes one is.
TYPES = {"uint8": (1, 1), "float32": (7, 4)}

_MAGIC = 0xCAFEBEEF
_UNDEFINED = -(1 << 31)  # NCCL_CONFIG_UNDEF_INT


class UniqueId(Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("internal", c_char * 128)]


class Config(Structure):
    """ncclConfig_t of 2.27. Later ones have members behind these and take a shorter one."""

    _fields_ = [
        ("size", c_size_t), ("magic", c_uint), ("version", c_uint),
        ("blocking", c_int), ("cga_cluster_size", c_int), ("min_ctas", c_int), ("max_ctas", c_int),
        ("net_name", c_char_p), ("split_share", c_int), ("traffic_class", c_int),
        ("comm_name", c_char_p), ("collnet_enable", c_int), ("cta_policy", c_int),
        ("shrink_share", c_int), ("nvls_ctas", c_int),
    ]  # fmt: skip


def named(name: str) -> Config:
    """Return a configuration with nothing but a communicator's name; the caller keeps it."""
    words = {field: _UNDEFINED for field, kind, *_ in Config._fields_ if kind is c_int}
    return Config(
        size=sizeof(Config), magic=_MAGIC, version=NAMED_SINCE, comm_name=name.encode(), **words
    )


_OUT, _COMM, _STREAM, _BUFFER = c_void_p, c_void_p, c_void_p, c_uint64

PROTOTYPES: dict[str, Sequence[Any]] = {
    "ncclGetVersion": (_OUT,),
    "ncclGetUniqueId": (_OUT,),
    "ncclCommInitRank": (_OUT, c_int, UniqueId, c_int),
    "ncclCommInitRankConfig": (_OUT, c_int, UniqueId, c_int, c_void_p),
    "ncclCommSplit": (_COMM, c_int, c_int, _OUT, c_void_p),
    "ncclCommDestroy": (_COMM,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    # Buffers, count, type, then: operation or root, communicator, stream.
    "ncclAllReduce": (_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclReduceScatter": (_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclReduce": (_BUFFER, _BUFFER, c_size_t, c_int, c_int, c_int, _COMM, _STREAM),
    "ncclBroadcast": (_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclAllGather": (_BUFFER, _BUFFER, c_size_t, c_int, _COMM, _STREAM),
    "ncclSend": (_BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclRecv": (_BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM),
}


class Nccl(Library):
    """One libnccl.so.2."""

    def __init__(self, path: str) -> None:
        """Load it; needs no GPU.

        Raises:
            OSError: it cannot be loaded, or is too old (before 2.18) to have all of PROTOTYPES.
        """
        super().__init__(path, PROTOTYPES)
        self.c.ncclGetErrorString.restype = c_char_p
        self.c.ncclGetErrorString.argtypes = [c_int]

    def reason(self, code: int) -> str:
        """Return NCCL's words for an error."""
        return f"{self.c.ncclGetErrorString(code).decode()} ({code})"

    def version(self) -> int:
        """Return 22703 for 2.27.3."""
        found = c_int()
        self.call("ncclGetVersion", byref(found))
        return found.value

    def unique_id(self) -> bytes:
        """Return what all ranks of a new communicator must be given."""
        found = UniqueId()
        self.call("ncclGetUniqueId", byref(found))
        return bytes(found)

    def init(self, nranks: int, unique_id: bytes, rank: int, name: str) -> int:
        """Return a new communicator; before 2.27 it has no name."""
        comm, who = c_void_p(), UniqueId.from_buffer_copy(unique_id)
        if self.version() < NAMED_SINCE:
            self.call("ncclCommInitRank", byref(comm), nranks, who, rank)
        else:
            config = named(name)
            self.call("ncclCommInitRankConfig", byref(comm), nranks, who, rank, byref(config))
        return comm.value or 0

    def split(self, comm: int, color: int, key: int, name: str) -> int:
        """Return a communicator of those ranks of another that give the same colour."""
        child, config = c_void_p(), named(name)
        given = byref(config) if self.version() >= NAMED_SINCE else None
        self.call("ncclCommSplit", comm, color, key, byref(child), given)
        return child.value or 0

    def destroy(self, comm: int) -> None:
        """Destroy a communicator whose operations are done."""
        self.call("ncclCommDestroy", comm)


def spell(version: int) -> str:
    """Return `2.27.3` for 22703."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _candidates() -> Iterator[str]:
    for place in sys.path:
        path = Path(place or ".") / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if path.is_file():
            yield str(path.resolve())
    yield "libnccl.so.2"


def find_libraries(given: str) -> list[str]:
    """Return the paths in `given` (colons between), else the first that this machine has.

    That is the one of PyTorch's wheels beside this Python, then the system's.

    Raises:
        OSError: there is none, or one that is given cannot be loaded.
    """
    if given:
        paths = [str(Path(path).resolve()) for path in given.split(":") if path]
        for path in paths:
            Nccl(path)
        return paths
    tried = []
    for path in _candidates():
        try:
            return [Nccl(path).path]
        except OSError as err:
            tried.append(str(err))
    raise OSError("; ".join(tried))
