# SPDX-License-Identifier: Apache-2.0
"""libnccl.so.2 with a played CUDA runtime in it, and what one rank calls of it."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL, byref, c_char_p, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.libnccl import PROTOTYPES, SUM, TYPES, Nccl
from tests.nccl.box import Called, find_box, in_flight
from tests.support.repository import BUILD

PLAYED = BUILD / "nccl-played" / "libplayed-cuda.so"
STREAM = 0x5CA0
BUFFER_BYTES = 1 << 24
DECOMPOSED_SINCE = 22800
WIDE_FIFO_SINCE = 23100
SETTLE_S, LOOK_S = 10.0, 0.01
SWITCHED_S = 2.5  # the plugin looks at its switch once a second
# One call of which NCCL makes Sends and Recvs.
_DECOMPOSED = {
    "AlltoAll": PROTOTYPES["ncclAllGather"],
    "Gather": PROTOTYPES["ncclBroadcast"],
    "Scatter": PROTOTYPES["ncclBroadcast"],
}


class PlayedNccl(Nccl):
    """A release of NCCL on a played GPU, as one rank calls it."""

    def __init__(self, path: str, boxes: Path) -> None:
        """Load it; `boxes`: where the plugin puts its own.

        Raises:
            OSError: it cannot be loaded, or its CUDA runtime cannot be replaced.
        """
        super().__init__(path)
        self.called: list[Called] = []
        self.unseen: Counter[str] = Counter()  # calls while the plugin is silent, by function
        self.boxes = boxes
        self.patience_s = SETTLE_S
        self.played = CDLL(str(PLAYED))
        self.played.patch_cuda.argtypes = [c_char_p]
        if self.played.patch_cuda(path.encode()) <= 0:
            raise OSError(f"{path}: its CUDA runtime cannot be replaced")
        if self.version() >= DECOMPOSED_SINCE:
            for func, arguments in _DECOMPOSED.items():
                getattr(self.c, f"nccl{func}").argtypes = list(arguments)
        place = c_void_p()
        self.played.cudaMalloc(byref(place), c_size_t(BUFFER_BYTES))
        self.buffer = place.value or 0

    def wait(self) -> None:
        """Wait until all kernels are over."""
        self.played.cudaDeviceSynchronize()

    def settle(self) -> None:
        """Wait until the plugin was told so of all, too; not for ever: it may never be."""
        self.wait()
        end = time.monotonic() + self.patience_s
        while time.monotonic() < end:
            process = find_box(self.boxes, os.getpid())
            if process and not any(in_flight(comm) for comm in process.comms):
                return
            time.sleep(LOOK_S)
        self.patience_s = 0.0  # something is counted wrongly: the end of the run says what

    def batch_ns(self, duration_ns: int) -> None:
        """Let each operation of later kernels last so long."""
        self.played.played_batch_ns(duration_ns)

    def network_begin(self) -> None:
        """Play the GPU's side of connections over the network."""
        self.played.played_net_begin(32 if self.version() >= WIDE_FIFO_SINCE else 24)

    def network_end(self) -> int:
        """Return how many pieces NCCL has sent."""
        self.played.played_net_end.restype = c_uint64
        return int(self.played.played_net_end())

    @contextmanager
    def capture(self, launches: int, between: Callable[[], None] | None = None) -> Iterator[None]:
        """Capture the calls inside into a graph, launch it so often, and destroy it.

        `between` is called after each launch.
        """
        before = len(self.called)
        self.played.played_capture_begin()
        yield
        self.played.played_capture_end()
        once = self.called[before:]
        for _ in range(launches):
            self.played.played_graph_launch()
            self.settle()
            if between:
                between()
        self.called += once * (launches - 1)
        self.played.played_graph_destroy()

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """Disable the plugin as a site does, and enable it again."""
        switch = Path(os.environ["NCCL_INSPECTOR_CONTROL_DIR"], "disabled")
        switch.touch()
        time.sleep(SWITCHED_S)
        yield
        switch.unlink()
        time.sleep(SWITCHED_S)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Make one group of the calls inside."""
        self.call("ncclGroupStart")
        yield
        self.call("ncclGroupEnd")


@dataclass(frozen=True, slots=True)
class Comm:
    """A communicator; each call is noted in `nccl.called`."""

    nccl: PlayedNccl
    name: str
    handle: int
    nranks: int
    rank: int

    @property
    def others(self) -> list[int]:
        """The other ranks."""
        return [peer for peer in range(self.nranks) if peer != self.rank]

    def collective(
        self,
        func: str,
        count: int,
        dtype: str = "float32",
        root: int = 0,
        *,
        unseen: bool = False,
    ) -> None:
        """Call AllReduce, AllGather, ReduceScatter, Reduce or Broadcast; `unseen`: while silent."""
        number, width = TYPES[dtype]
        more = {
            "AllReduce": (SUM,), "ReduceScatter": (SUM,), "AllGather": (),
            "Reduce": (SUM, root), "Broadcast": (root,),
        }[func]  # fmt: skip
        both = (self.nccl.buffer, self.nccl.buffer)
        self.nccl.call(f"nccl{func}", *both, count, number, *more, self.handle, STREAM)
        if unseen:
            self.nccl.unseen[func] += 1
        else:
            self._note(func, count * width)

    def send(self, peer: int, count: int) -> None:
        """Call Send."""
        self._call_pair("Send", peer, count)

    def receive(self, peer: int, count: int) -> None:
        """Call Recv."""
        self._call_pair("Recv", peer, count)

    def _call_pair(self, func: str, peer: int, count: int) -> None:
        number, width = TYPES["float32"]
        # Not the same place: NCCL leaves out what a rank sends to itself in place.
        buffer = self.nccl.buffer + (0 if func == "Send" else BUFFER_BYTES // 2)
        self.nccl.call(f"nccl{func}", buffer, count, number, peer, self.handle, STREAM)
        self._note(func, count * width, peer)

    def decomposed(self, func: str, count: int, root: int = 0) -> None:
        """Call AlltoAll, Gather or Scatter, and note the Sends and Recvs that NCCL makes of it."""
        number, width = TYPES["float32"]
        both = (self.nccl.buffer, self.nccl.buffer + BUFFER_BYTES // 2)
        more = () if func == "AlltoAll" else (root,)
        self.nccl.call(f"nccl{func}", *both, count, number, *more, self.handle, STREAM)
        ranks, is_root = range(self.nranks), self.rank == root
        to = {"AlltoAll": ranks, "Gather": [root], "Scatter": ranks if is_root else []}[func]
        by = {"AlltoAll": ranks, "Gather": ranks if is_root else [], "Scatter": [root]}[func]
        for peer in to:
            self._note("Send", count * width, peer)
        for peer in by:
            self._note("Recv", count * width, peer)

    def note_group(self, func: str, size: int) -> None:
        """Note that the Sends and Recvs of a call are an operation, too."""
        self.nccl.called.append(Called(self.name, func, size, whole=True))

    def _note(self, func: str, size: int, peer: int = -1) -> None:
        self.nccl.called.append(Called(self.name, func, size, peer))
