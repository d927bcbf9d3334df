# SPDX-License-Identifier: Apache-2.0
"""The backend for GPUs beside a played torch: what it calls, in which order, and what it says of
errors. That NCCL then moves data is shown by no test: there is no GPU here.
"""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nccl_inspector.probe.backend import Place
from nccl_inspector.probe.errors import MemoryLackError, ProbeError
from nccl_inspector.probe.torch_backend import TorchBackend

MS_BETWEEN_EVENTS = 12.5


class Tensor:
    """Numbers that are all the same."""

    def __init__(self, count: int) -> None:
        self.count = count

    def numel(self) -> int:
        return self.count

    def fill_(self, _value: float) -> None: ...


class PlayedTorch:
    """Notes the calls; `fails` is raised by the next collective."""

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: Exception | None = None
        self.has_group = False
        note = self.calls.append

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                note("record")

            def elapsed_time(self, _other: "Event") -> float:
                return MS_BETWEEN_EVENTS

        self.float32 = "float32"
        self.cuda = SimpleNamespace(
            OutOfMemoryError=self.OutOfMemoryError, Event=Event, is_available=lambda: True,
            device_count=lambda: 2, set_device=lambda at: note(f"device {at}"),
            get_device_name=lambda _at: "NVIDIA H100 80GB HBM3\x1b[2J",
            synchronize=lambda: note("synchronize"),
            nccl=SimpleNamespace(version=lambda: (2, 27, 7)),
        )  # fmt: skip
        self.distributed = SimpleNamespace(
            is_nccl_available=lambda: True, TCPStore=self._store,
            init_process_group=self._init, is_initialized=lambda: self.has_group,
            destroy_process_group=lambda: note("destroy"), barrier=lambda: note("barrier"),
            all_reduce=self._collective("all_reduce"), send=self._move("send"),
            recv=self._move("recv"), all_gather_into_tensor=self._collective("all_gather"),
            reduce_scatter_tensor=self._collective("reduce_scatter"),
        )  # fmt: skip

    def zeros(self, count: int, dtype: str, device: str) -> Tensor:
        assert (dtype, device) == ("float32", "cuda")
        if count > 1 << 30:
            raise self.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return Tensor(count)

    def _store(self, host: str, port: int, ranks: int, **_words: Any) -> SimpleNamespace:
        self.calls.append(f"store {host}:{port} of {ranks}")
        return SimpleNamespace(port=4242)

    def _init(self, name: str, *, rank: int, world_size: int, **_words: Any) -> None:
        self.calls.append(f"init {name} {rank} of {world_size}")
        self.has_group = True

    def _collective(self, name: str) -> Any:
        def call(*tensors: Tensor) -> None:
            if self.fails:
                raise self.fails
            self.calls.append(f"{name} {' '.join(str(one.numel()) for one in tensors)}")

        return call

    def _move(self, name: str) -> Any:
        return lambda tensor, peer: self.calls.append(f"{name} {tensor.numel()} {peer}")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> PlayedTorch:
    played = PlayedTorch()
    monkeypatch.setitem(sys.modules, "torch", played)
    monkeypatch.setitem(sys.modules, "torch.distributed", played.distributed)
    return played


def joined(torch: PlayedTorch, rank: int = 0) -> TorchBackend:
    backend = TorchBackend(Place(rank, 4, rank % 2, b""), "10.0.0.1", 30.0)
    backend.join({"host": "10.0.0.1", "port": 4242}, {})
    torch.calls.clear()
    return backend


def test_rank_0_opens_the_store_and_the_others_go_to_it(torch: PlayedTorch) -> None:
    first = TorchBackend(Place(0, 4, 0, b""), "10.0.0.1", 30.0)
    assert first.offer() == {"host": "10.0.0.1", "port": 4242}
    assert (first.device, first.version) == ("NVIDIA H100 80GB HBM3?[2J", "2.27.7")
    first.join(first.offer(), {})
    assert torch.calls == ["device 0", "store 10.0.0.1:0 of 4", "init nccl 0 of 4"]
    torch.calls.clear()
    second = TorchBackend(Place(3, 4, 1, b""), "10.0.0.2", 30.0)
    second.join(first.offer(), {})
    assert torch.calls == ["device 1", "store 10.0.0.1:4242 of 4", "init nccl 3 of 4"]


@pytest.mark.parametrize(
    ("collective", "call"),
    [
        ("AllReduce", "all_reduce 1024"),
        ("AllGather", "all_gather 1024 256"),
        ("ReduceScatter", "reduce_scatter 256 1024"),
    ],
)
def test_a_timing_is_a_barrier_and_then_operations_between_two_events(
    torch: PlayedTorch, collective: str, call: str
) -> None:
    backend = joined(torch)
    backend.prepare(collective, 4096)
    assert backend.timed(3) == pytest.approx(MS_BETWEEN_EVENTS / 1e3)
    assert torch.calls == [
        "barrier", "synchronize", "record", call, call, call, "record", "synchronize",
    ]  # fmt: skip


@pytest.mark.parametrize("sends", [True, False])
def test_a_pair_says_a_word_both_ways_and_then_moves_buffers_one_way(
    torch: PlayedTorch, sends: bool
) -> None:
    backend = joined(torch)
    backend.meet(2, {})
    assert backend.passed(4096, 2, sends=sends) == pytest.approx(MS_BETWEEN_EVENTS / 1e3)
    one, other = ("send", "recv") if sends else ("recv", "send")
    assert torch.calls == [
        f"{one} 1 2", f"{other} 1 2", "synchronize", "record", f"{one} 1024 2", f"{one} 1024 2",
        "record", "synchronize",
    ]  # fmt: skip


def test_errors_of_torch_are_one_line(torch: PlayedTorch) -> None:
    backend = joined(torch)
    backend.prepare("AllReduce", 4096)
    torch.fails = RuntimeError("NCCL error: unhandled system error\x1b[2J\nmore\nlines")
    with pytest.raises(ProbeError, match=r"^PyTorch: NCCL error: unhandled system error\?\[2J$"):
        backend.timed(1)
    with pytest.raises(MemoryLackError, match="no memory on the GPU"):
        backend.prepare("AllReduce", 8 << 30)


def test_a_rank_without_a_gpu_of_its_own_is_refused(torch: PlayedTorch) -> None:
    with pytest.raises(ProbeError, match="no GPU 2: there are 2"):
        TorchBackend(Place(2, 4, 2, b""), "10.0.0.1", 30.0)
    torch.cuda.is_available = lambda: False
    with pytest.raises(ProbeError, match="PyTorch has no GPU here, or no NCCL"):
        TorchBackend(Place(0, 4, 0, b""), "10.0.0.1", 30.0)
