"""The CUDA driver's stand-in says which GPU a process has, as the real one does."""

import ctypes
from pathlib import Path

import pytest

from tests.support.repository import BUILD
from tests.support.standin import started, until


def fake_device(monkeypatch: pytest.MonkeyPatch, visible: str) -> tuple[int, str, bytes]:
    """Ordinal, PCI bus id and UUID of the current device."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cuda = ctypes.CDLL(str(BUILD / "fakecuda" / "libcuda.so.1"))
    device, bus_id = ctypes.c_int(-1), ctypes.create_string_buffer(16)
    uuid = ctypes.create_string_buffer(16)
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxGetDevice(ctypes.byref(device)) == 0
    assert cuda.cuDeviceGetPCIBusId(bus_id, 16, device) == 0
    assert cuda.cuDeviceGetUuid_v2(uuid, device) == 0
    return device.value, bus_id.value.decode(), uuid.raw


def test_each_visible_gpu_is_ordinal_0_and_yet_another(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [fake_device(monkeypatch, str(minor)) for minor in range(8)]
    assert {ordinal for ordinal, _, _ in devices} == {0}
    assert [bus_id for _, bus_id, _ in devices] == [f"0000:{0x10 + i:02x}:00.0" for i in range(8)]
    assert len({uuid for _, _, uuid in devices}) == 8
    assert fake_device(monkeypatch, "3,1") == devices[3]


def test_no_visible_gpu_is_an_error_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cuda = ctypes.CDLL(str(BUILD / "fakecuda" / "libcuda.so.1"))
    assert cuda.cuInit(0) == 100


def test_the_cuda_driver_is_loaded_as_nccl_has_it(tmp_path: Path) -> None:
    with started(
        tmp_path,
        ["--hang", "0:0", "--steps", "1"],
        ranks=1,
        env={"NCCL_STANDIN_CUDA": str(BUILD / "fakecuda" / "libcuda.so.1")},
    ) as run:
        maps = Path(f"/proc/{run.processes[0].pid}/maps")
        until(lambda: "libcuda.so.1" in maps.read_text(), "the library is mapped")
