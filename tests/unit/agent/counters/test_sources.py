# SPDX-License-Identifier: Apache-2.0
"""Reading the hardware: sysfs, NVML, pressure; in a child that may hang."""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nccl_inspector.agent.counters import gpu, sources
from nccl_inspector.agent.counters.child import DIED, HUNG, SourceChild
from nccl_inspector.agent.counters.infiniband import PORTS_MAX, read_ports
from nccl_inspector.agent.counters.pressure import parse_pressure, read_pressure
from nccl_inspector.agent.counters.sources import Readers, Sources
from nccl_inspector.counters.pci import pci_address
from nccl_inspector.counters.sample import (
    GPU,
    INFINIBAND,
    PRESSURE,
    Device,
    Sample,
    decode,
    encode,
)
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from tests.sandbox import wait_until
from tests.support.clocks import StillClock
from tests.support.fake_hardware import gpu_lines, make_port, read_fake_gpus, write, write_nvml

H100 = "GPU-11111111-2222-3333-4444-555555555555"


def answer(asked: SourceChild, timeout: float = 10.0) -> Sample | str:
    """What the child says in the end."""
    said: Sample | str | None = None

    def heard() -> bool:
        nonlocal said
        said = asked.poll()
        return said is not None

    wait_until(heard, timeout, "an answer")
    assert said is not None
    return said


def gpus(folder: Path, lines: list[str], count: int = 1) -> Sample:
    """What NVML's stand-in says, read in a child as the agent does."""
    asked = SourceChild(partial(read_fake_gpus, write_nvml(folder, lines, count)))
    asked.ask()
    said = answer(asked)
    assert isinstance(said, Sample)
    return said


def test_without_an_adapter_there_is_nothing_and_nothing_is_wrong(tmp_path: Path) -> None:
    sample = read_ports(tmp_path)
    assert (sample.devices, sample.problems) == ((), ())
    assert sample.absent == "no port of InfiniBand or RoCE"


def test_every_port_is_read_with_its_state_and_counters(tmp_path: Path) -> None:
    make_port(tmp_path, counters={"link_downed": 3, "port_xmit_data": 9, "unheard_of": 1})
    make_port(tmp_path, "mlx5_1", 2, hw_counters={"local_ack_timeout_err": 41})
    one, two = read_ports(tmp_path).devices
    assert (one.kind, one.name, two.name) == ("port", "mlx5_0/1", "mlx5_1/2")
    assert one.counters["link_downed"] == 3
    assert "unheard_of" not in one.counters
    assert "lifespan" not in one.counters
    assert two.counters["local_ack_timeout_err"] == 41
    assert one.facts == {
        "state": "ACTIVE", "phys_state": "LinkUp", "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand", "firmware": "28.39.1002",
    }  # fmt: skip


def test_a_port_of_roce_has_its_interface_and_the_flaps_of_it(tmp_path: Path) -> None:
    port = make_port(tmp_path, link_layer="Ethernet", counters={})
    net = port.parents[1] / "device" / "net"
    for name, number in (("eth2", 0), ("eth3", 1)):
        write(net / name / "dev_port", number)
        write(tmp_path / "class" / "net" / name / "carrier_down_count", 5 + number)
    (device,) = read_ports(tmp_path).devices
    assert device.facts["interface"] == "eth2"
    assert device.counters["carrier_down_count"] == 5
    write(port / "gid_attrs" / "ndevs" / "0", "eth3")
    (device,) = read_ports(tmp_path).devices
    assert device.counters["carrier_down_count"] == 6


def test_a_virtual_function_without_counters_is_still_a_port(tmp_path: Path) -> None:
    port = make_port(tmp_path, counters={}, hw_counters={})
    (port.parents[1] / "device" / "physfn").mkdir(parents=True)
    (device,) = read_ports(tmp_path).devices
    assert device.counters == {}
    assert device.facts["virtual_function"] == "yes"


@pytest.mark.parametrize("text", ["N/A (no PMA)", "", "-1", "9" * 21, "0x10", "1\n2", "\xff"])
def test_what_is_no_number_is_no_counter(tmp_path: Path, text: str) -> None:
    make_port(tmp_path, counters={"link_downed": text, "symbol_error": 2})
    (device,) = read_ports(tmp_path).devices
    assert device.counters["symbol_error"] == 2
    assert "link_downed" not in device.counters


def test_a_file_that_cannot_be_read_takes_nothing_with_it(tmp_path: Path) -> None:
    port = make_port(tmp_path)
    (port / "counters" / "symbol_error").unlink()
    (port / "counters" / "symbol_error").mkdir()  # EISDIR, as the driver's EINVAL
    os.mkfifo(port / "hw_counters" / "out_of_buffer")
    (device,) = read_ports(tmp_path).devices
    assert "symbol_error" not in device.counters
    assert device.counters["link_downed"] == 0


def test_more_ports_than_a_node_can_have_are_cut(tmp_path: Path) -> None:
    for n in range(PORTS_MAX + 1):
        make_port(tmp_path, f"mlx5_{n}", counters={"link_downed": 0}, hw_counters={})
    sample = read_ports(tmp_path)
    assert len(sample.devices) == PORTS_MAX
    assert "more than 64 ports" in sample.problems[0]


def test_pressure_is_read_where_the_kernel_tells_it(tmp_path: Path) -> None:
    assert read_pressure(tmp_path).absent == "the kernel tells no pressure"
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=17\nfull avg10=0.00 total=5\n"
    assert parse_pressure("memory", text) == {"memory_some": 17, "memory_full": 5}
    assert parse_pressure("cpu", text) == {"cpu_some": 17}  # full means nothing there
    write(tmp_path / "pressure" / "io", text)
    (node,) = read_pressure(tmp_path).devices
    assert node.counters == {"io_some": 17, "io_full": 5}


def test_a_gpu_is_read_through_nvmls_own_bindings(tmp_path: Path) -> None:
    lines = [*gpu_lines(0, H100), *gpu_lines(1, H100.replace("1", "7"))]
    lines = [line.replace("0 field.94.0 0", "0 field.94.0 8", 1) for line in lines]
    sample = gpus(tmp_path, lines, 2)
    assert sample.problems == ()
    assert [one.name for one in sample.devices] == [
        "GPU0", "GPU0/0", "GPU0/1", "GPU1", "GPU1/0", "GPU1/1",
    ]  # fmt: skip
    first, link = sample.devices[:2]
    assert first.facts == {
        "uuid": H100, "pci": "0000:10:00", "model": "NVIDIA H100 80GB HBM3",
    }  # fmt: skip
    assert first.counters["pcie_replay"] == 8
    assert first.levels["nvlinks_active"] == first.levels["nvlinks"] == 2
    assert (first.levels["pcie_width"], first.levels["sm_clock_mhz"]) == (16, 1980)
    assert first.levels["reason_hw_thermal"] == 0
    assert link.counters == {"replay": 0, "recovery": 0, "crc": 0}
    assert link.levels == {"speed_mb_s": 26562}
    last = sample.devices[-1]
    assert (last.counters, last.levels) == (link.counters, link.levels)


def test_a_gpu_that_supports_next_to_nothing_is_still_a_gpu(tmp_path: Path) -> None:
    sample = gpus(tmp_path, [f"0 uuid {H100}"])
    (device,) = sample.devices
    assert device == Device("gpu", H100[:12], {}, {}, {"uuid": H100})


def test_gpus_without_any_name_are_still_two(tmp_path: Path) -> None:
    sample = gpus(tmp_path, [], 2)
    assert [one.name for one in sample.devices] == ["unknown0", "unknown1"]


def test_links_that_are_down_are_counted_as_such(tmp_path: Path) -> None:
    lines = [line.replace("link.1 1", "link.1 0") for line in gpu_lines(0, H100)]
    first, link = gpus(tmp_path, lines).devices
    assert (first.levels["nvlinks"], first.levels["nvlinks_active"]) == (2, 1)
    assert link.name == "GPU0/0"


def test_a_lost_gpu_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    sample = gpus(tmp_path, [*gpu_lines(1, H100), "fail handle.0 15"], 2)
    assert [one.name for one in sample.devices] == ["GPU1", "GPU1/0", "GPU1/1"]
    assert sample.problems == ("NVML's GPU 0 does not answer: GPU is lost",)


def test_no_driver_is_normal_and_a_broken_one_is_not(tmp_path: Path) -> None:
    lines = gpu_lines(0, H100)
    assert gpus(tmp_path, [*lines, "fail init 9"]).absent == "no NVIDIA driver"
    broken = gpus(tmp_path, [*lines, "fail init 999"])
    assert broken.absent == ""
    assert "NVML does not start" in broken.problems[0]
    assert gpus(tmp_path, [], 0).absent == "no GPU"


def test_without_the_library_there_is_no_driver() -> None:
    asked = SourceChild(gpu.read_gpus)
    asked.ask()
    said = answer(asked)
    assert isinstance(said, Sample)
    assert said.absent == "no NVIDIA driver"


def test_without_the_python_module_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sample = gpus(tmp_path, gpu_lines(0, H100))
    assert sample.absent == "the Python module pynvml is not there"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("00000000:65:00.0", "0000:65:00"),
        ("0000:65:00", "0000:65:00"),
        ("0008:C1:00", "0008:c1:00"),
        ("65:00.0", ""),
        ("0000:65:00.0; rm", ""),
    ],
)
def test_the_place_of_a_gpu_has_one_name(text: str, found: str) -> None:
    assert pci_address(text) == found


def test_a_sample_goes_through_the_childs_memory_as_it_is(tmp_path: Path) -> None:
    make_port(tmp_path)
    sample = read_ports(tmp_path)
    assert decode(encode(sample)) == sample


def hang(_clock: Clock = SYSTEM_CLOCK) -> Sample:
    time.sleep(1000)
    raise AssertionError


def die() -> Sample:
    os._exit(3)


def fail() -> Sample:
    raise OSError(5, "the hardware is gone")


def test_a_hanging_nvml_is_said_once_ended_and_asked_again(tmp_path: Path) -> None:
    library = write_nvml(tmp_path, [*gpu_lines(0, H100), "hang field 1"], 1)
    clock = StillClock()
    asked = SourceChild(partial(read_fake_gpus, library), clock, deadline_s=5)
    asked.ask()
    assert asked.poll() is None  # and does not wait
    clock.now_s += 6
    assert answer(asked) == HUNG
    wait_until(lambda: asked.poll() is None and asked.is_free, 5, "the child is gone")
    write_nvml(tmp_path, gpu_lines(0, H100), 1)
    asked.ask()
    assert isinstance(answer(asked), Sample)


@pytest.mark.parametrize("read", [die, fail])
def test_a_child_that_dies_is_no_more_than_that(read: Callable[[], Sample]) -> None:
    asked = SourceChild(read)
    asked.ask()
    assert answer(asked) == DIED
    assert asked.is_free


def test_a_child_has_none_of_the_agents_files(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    fd = os.open(tmp_path / "lock", os.O_RDONLY)

    def look() -> Sample:
        held = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()]
        return Sample(GPU, 0, 0, (), problems=tuple(held))

    asked = SourceChild(look)
    asked.ask()
    said = answer(asked)
    os.close(fd)
    assert isinstance(said, Sample)
    assert said.problems
    assert str(tmp_path / "lock") not in said.problems


def test_an_end_waits_for_no_child() -> None:
    asked = SourceChild(hang)
    asked.ask()
    begun = time.monotonic()
    asked.close()
    assert time.monotonic() - begun < 1
    assert asked.is_free


def test_a_source_that_hangs_keeps_no_other_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_port(tmp_path)
    monkeypatch.setattr(sources, "REST_MAX_S", 0.0)
    all_of_them = Sources(Readers(sys=tmp_path, proc=tmp_path, gpus=hang))
    all_of_them._asked[GPU]._deadline_s = 0.1
    all_of_them.ask((INFINIBAND, GPU, PRESSURE))

    def have(what: Callable[[], bool]) -> Callable[[], bool]:
        def look() -> bool:
            all_of_them.poll()
            return what()

        return look

    wait_until(have(lambda: all_of_them.failures[GPU, HUNG] == 1), 5, "it hangs")
    wait_until(have(lambda: INFINIBAND in all_of_them.latest), 5, "the ports are there")
    assert set(all_of_them.latest) == {INFINIBAND, PRESSURE}
    assert all_of_them.trouble(GPU) == HUNG
    assert all_of_them.trouble(INFINIBAND) == ""
    wait_until(have(lambda: all_of_them._asked[GPU].is_free), 5, "its child is gone")
    all_of_them.ask((GPU,))
    wait_until(have(lambda: all_of_them.failures[GPU, HUNG] == 2), 5, "it hangs again")
    assert len([line for line in caplog.messages if "counters" in line]) == 1
    all_of_them.close()


def test_a_source_rests_after_its_answer(tmp_path: Path) -> None:
    def slow(_clock: Clock) -> Sample:
        time.sleep(0.2)
        return Sample(GPU, 0, 0, (), "no GPU")

    all_of_them = Sources(Readers(sys=tmp_path, proc=tmp_path, gpus=slow))
    all_of_them.ask((GPU,))
    wait_until(lambda: bool(all_of_them.poll()), 5, "answered")
    all_of_them.ask((GPU,))
    assert all_of_them._asked[GPU].is_free
