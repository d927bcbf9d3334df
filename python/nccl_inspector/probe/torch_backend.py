# SPDX-License-Identifier: Apache-2.0
"""NCCL (or RCCL) through PyTorch, on one GPU a rank. Nothing else imports torch, and only here."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from nccl_inspector.errors import RefusedError
from nccl_inspector.probe.backend import Offer, Place
from nccl_inspector.probe.errors import MemoryLackError, ProbeError
from nccl_inspector.probe.wire import CHECKS
from nccl_inspector.system.printable import printable

_FLOAT_BYTES = 4
_WORDS_MAX = 300


@contextmanager
def _told(torch: Any) -> Iterator[None]:
    """Turn what torch raises into errors of the probe: its first line says what happened."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise MemoryLackError("no memory on the GPU for these buffers") from None
    except RuntimeError as err:
        lines = str(err).strip().splitlines() or [type(err).__name__]
        raise ProbeError(f"PyTorch: {printable(lines[0][:_WORDS_MAX])}") from err


class TorchBackend:
    """A rank of a process group of NCCL."""

    def __init__(self, place: Place, host: str, limit_s: float) -> None:
        """Take the GPU with this rank's number on its node; rank 0 opens the store on `host`."""
        try:
            import torch
            import torch.distributed as dist
        except ImportError as err:
            raise ProbeError(f"this Python has no PyTorch ({printable(str(err))[:80]})") from err
        self._torch: Any = torch
        self._dist: Any = dist
        self._place, self._limit = place, timedelta(seconds=limit_s)
        if not torch.cuda.is_available() or not dist.is_nccl_available():
            raise ProbeError("PyTorch has no GPU here, or no NCCL")
        if place.local >= torch.cuda.device_count():
            raise ProbeError(f"no GPU {place.local}: there are {torch.cuda.device_count()}")
        self._host, self._store = host, None
        self._whole: Any = None
        self._share: Any = None
        self._collective = ""
        self._peer = -1
        with _told(torch):
            torch.cuda.set_device(place.local)
            self.device = printable(torch.cuda.get_device_name(place.local))
            self.version = ".".join(map(str, torch.cuda.nccl.version()))
            if place.rank == 0:
                self._store = dist.TCPStore(
                    host, 0, place.ranks, is_master=True, wait_for_workers=False,
                    timeout=self._limit,
                )  # fmt: skip

    def offer(self) -> Offer:
        """Return where rank 0's store listens."""
        return {"host": self._host, "port": self._store.port if self._store else 0}

    def join(self, first: Offer, following: Offer) -> None:
        """Make the process group."""
        del following
        try:
            where = CHECKS.text(first.get("host")), CHECKS.integer(first.get("port"), 65535)
        except RefusedError as err:
            raise ProbeError(f"rank 0 said no address: {err}") from err
        with _told(self._torch):
            store = self._store or self._dist.TCPStore(
                *where, self._place.ranks, is_master=False, timeout=self._limit
            )
            self._dist.init_process_group(
                "nccl", store=store, rank=self._place.rank, world_size=self._place.ranks,
                timeout=self._limit,
            )  # fmt: skip

    def prepare(self, collective: str, buffer_bytes: int) -> None:
        """Make the larger buffer and a share of it."""
        share = max(1, buffer_bytes // _FLOAT_BYTES // self._place.ranks)
        with _told(self._torch):
            self._whole = self._share = None  # before more is taken
            self._collective = collective
            self._whole = self._zeros(
                buffer_bytes // _FLOAT_BYTES
                if collective == "AllReduce"
                else share * self._place.ranks
            )
            self._share = self._zeros(share)

    def is_right(self) -> bool:
        """Tell whether ones were added up, or each share came from the rank that it belongs to."""
        ranks, whole, share = self._place.ranks, self._whole, self._share
        with _told(self._torch):
            whole.fill_(1)
            share.fill_(self._place.rank)
            self._run()
            if self._collective == "AllGather":
                parts = whole.view(ranks, -1)
                right = all(bool((parts[rank] == rank).all()) for rank in range(ranks))
            else:
                right = bool(((whole if self._collective == "AllReduce" else share) == ranks).all())
            whole.fill_(0)
            share.fill_(0)
        return right

    def timed(self, operations: int) -> float:
        """Return the time by events of the GPU."""
        with _told(self._torch):
            self._dist.barrier()
            return self._clocked(self._run, operations)

    def meet(self, peer: int, offer: Offer) -> None:
        """Note the rank; NCCL connects with the first transfer."""
        del offer
        self._peer = peer

    def passed(self, buffer_bytes: int, operations: int, *, sends: bool) -> float:
        """Return the time of one-way transfers by events of the GPU, after a word both ways."""
        with _told(self._torch):
            if self._whole is None or self._whole.numel() != buffer_bytes // _FLOAT_BYTES:
                self._whole = self._share = None
                self._whole = self._zeros(buffer_bytes // _FLOAT_BYTES)
            word = self._zeros(1)
            move, answer = self._dist.recv, self._dist.send
            if sends:
                move, answer = answer, move
            move(word, self._peer)
            answer(word, self._peer)
            return self._clocked(lambda: move(self._whole, self._peer), operations)

    def close(self) -> None:
        """Leave the process group."""
        with _told(self._torch):
            if self._dist.is_initialized():
                self._dist.destroy_process_group()

    def _zeros(self, count: int) -> Any:
        return self._torch.zeros(count, dtype=self._torch.float32, device="cuda")

    def _run(self) -> None:
        match self._collective:
            case "AllReduce":
                self._dist.all_reduce(self._whole)
            case "AllGather":
                self._dist.all_gather_into_tensor(self._whole, self._share)
            case _:
                self._dist.reduce_scatter_tensor(self._share, self._whole)

    def _clocked(self, run: Any, operations: int) -> float:
        cuda = self._torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        begin.record()
        for _ in range(operations):
            run()
        end.record()
        cuda.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3
