"""Network detail of the built profiler plugin: who is blamed when a program plays NCCL's proxy."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nccl_inspector.box.layout import HEADER, NET
from nccl_inspector.model.net import Net, NetQueue
from tests.support import exposition
from tests.support.boxes import read_dead_box
from tests.support.repository import BUILD
from tests.support.standin import until

PROGRAM = BUILD / "player" / "proxy"
PLUGIN = BUILD / "libnccl-profiler-inspector.so"
STATES = ["gpu", "peer", "wire", "flush"]
SLOW_US, FAST_US, NEVER_US = 4000, 20, 3_600_000_000
STEPS = 16
MOVED = 4096 * sum(range(1, STEPS + 1))  # bytes in one direction
SENT_TO, RECEIVED_FROM = 5, 2
HOSTILE = -1
LIMIT_S = 30.0
ALL = pytest.mark.parametrize("api", [4, 5, 6, 7])


@dataclass(frozen=True)
class Waits:
    """One direction to or from one peer: steps, and for how long by state."""

    steps: int
    seconds: dict[str, float]

    @property
    def blamed(self) -> str:
        """The state with more time than all others together; empty when there is none."""
        total_s = sum(self.seconds.values())
        return next((s for s, value_s in self.seconds.items() if value_s > total_s / 2), "")


@contextmanager
def playing(
    raw: Path, *, net: str, api: int = 7, wait_s: int = 0, queues: int = 0, **slow_us: int
) -> Iterator[subprocess.Popen[str]]:
    """Start the program; gpu, other and wire are times of a step, in microseconds."""
    stages = [str(slow_us.get(stage, FAST_US)) for stage in ("gpu", "other", "wire")]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "NCCL"))} | {
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(raw),
        "NCCL_INSPECTOR_PROM_DUMP": "1",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "200000",
        "NCCL_INSPECTOR_NET": net,
        "SLURM_JOB_ID": "4711",
    }
    process = subprocess.Popen(
        [PROGRAM, PLUGIN, str(api), *stages, str(wait_s), str(queues)],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def played(
    raw: Path, *, net: str, api: int = 7, wait_s: int = 0, queues: int = 0, **slow_us: int
) -> str:
    """Run the program to its end; returns what it says of the profiler."""
    with playing(raw, net=net, api=api, wait_s=wait_s, queues=queues, **slow_us) as process:
        said, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
    return said.strip()


def box(raw: Path) -> bytes:
    (path,) = raw.glob("*.box")
    return path.read_bytes()


def waits(raw: Path) -> dict[tuple[str, int], Waits]:
    """What the box says of the network, by direction and peer."""
    data = box(raw)
    first, count = HEADER.number(data, "net_offset"), HEADER.number(data, "net_count")
    found = {}
    for base in range(first, first + count * NET.size, NET.size):
        if NET.number(data, "used", base) == 1:
            direction = "send" if NET.number(data, "is_send", base) else "receive"
            times_ns = NET.numbers(data, "ns", base)
            seconds = {state: ns / 1e9 for state, ns in zip(STATES, times_ns, strict=True)}
            peer = NET.number(data, "peer", base)
            found[direction, peer] = Waits(NET.number(data, "steps", base), seconds)
    return found


@ALL
@pytest.mark.parametrize(
    ("slow", "sending", "receiving"),
    [("gpu", "gpu", "gpu"), ("other", "peer", "flush"), ("wire", "wire", "wire")],
)
def test_the_slow_one_is_blamed(
    raw: Path, api: int, slow: str, sending: str, receiving: str
) -> None:
    assert played(raw, net="on", api=api, **{slow: SLOW_US}) == "asked"
    found = waits(raw)
    assert found.keys() == {("send", SENT_TO), ("receive", RECEIVED_FROM)}
    for one in found.values():
        assert one.steps == STEPS
        assert sum(one.seconds.values()) > 0.9 * STEPS * SLOW_US / 1e6
    assert found["send", SENT_TO].blamed == sending
    assert found["receive", RECEIVED_FROM].blamed == receiving


def test_operations_that_were_left_out_for_their_number_are_missing(raw: Path) -> None:
    played(raw, net="on")
    (path,) = raw.glob("*.box")
    data = bytearray(path.read_bytes())
    at = HEADER.offsets["net_left_out"]
    assert HEADER.number(bytes(data), "net_every") == 1
    data[at : at + 8] = (16000).to_bytes(8, "little")
    path.write_bytes(data)
    assert read_dead_box(path, "0_1").facts.net_missed == 16000


def nets(raw: Path) -> dict[tuple[bool, int], Net]:
    """Network detail as the report reads it, by whether it sends and peer."""
    (path,) = raw.glob("*.box")
    process = read_dead_box(path, "0_1")
    assert not process.flags
    assert process.facts.net_missed == 0
    return {(bool(net.is_send), net.peer): net for net in process.nets}


@ALL
def test_bytes_on_the_network_are_known_by_peer(raw: Path, api: int) -> None:
    played(raw, net="on", api=api)
    found = nets(raw)
    assert found[True, SENT_TO].bytes == found[False, RECEIVED_FROM].bytes == MOVED
    assert not any(net.queues or net.refused for net in found.values())


@ALL
def test_queue_pairs_are_known_where_nccl_tells_them(raw: Path, api: int) -> None:
    played(raw, net="on", api=api, queues=2)
    found = nets(raw)
    assert found[True, SENT_TO].queues == (
        NetQueue(0, 1000, STEPS, MOVED // 2),
        NetQueue(1, 1001, STEPS, MOVED // 2),
    )
    # The length that NCCL leaves there of a receive is not of this request.
    assert found[False, RECEIVED_FROM].queues == (
        NetQueue(0, 1000, STEPS, 0),
        NetQueue(1, 1001, STEPS, 0),
    )
    assert not any(net.refused for net in found.values())


@ALL
def test_hostile_payloads_are_counted_and_not_believed(raw: Path, api: int) -> None:
    played(raw, net="on", api=api, queues=HOSTILE)
    found = nets(raw)
    assert found[True, SENT_TO].refused == 6 * STEPS
    assert found[True, SENT_TO].queues == (NetQueue(0, 1000, STEPS, MOVED),)
    assert found[True, SENT_TO].bytes == MOVED


def test_of_more_queue_pairs_than_four_the_rest_is_counted_together(raw: Path) -> None:
    played(raw, net="on", queues=8)
    net = nets(raw)[True, SENT_TO]
    assert [one.number for one in net.queues] == [1000, 1001, 1002, 1003]
    assert (net.other_requests, net.other_bytes) == (4 * STEPS, MOVED // 2)


@pytest.mark.long
@pytest.mark.parametrize(("stuck", "blamed"), [("gpu", "gpu"), ("other", "peer"), ("wire", "wire")])
def test_a_hang_shows_while_it_lasts(raw: Path, stuck: str, blamed: str) -> None:
    def seconds() -> float:
        found = waits(raw)
        return found["send", SENT_TO].seconds[blamed] if found else 0.0

    def published() -> list[float]:
        return [
            one.value
            for path in raw.glob("*.prom")
            for one in exposition.read_prom(path.read_text())
            if one.name == "nccl_network_wait_seconds_total" and one.labels["state"] == blamed
        ]

    with playing(raw, net="on", **{stuck: NEVER_US}) as process:
        assert process.stdout
        assert process.stdout.readline() == "asked\n"
        until(lambda: seconds() > 0.5, "the time of the hang does not show", LIMIT_S)
        first_s = seconds()
        until(lambda: seconds() > first_s + 0.5, "it does not grow", LIMIT_S)
        until(lambda: max(published(), default=0) > first_s, "it is not in the metrics", LIMIT_S)
        one = waits(raw)["send", SENT_TO]
    assert one.blamed == blamed
    assert one.steps == 8  # those that NCCL posts ahead


@pytest.mark.parametrize("net", ["off", "", "ON", "2"])
def test_nothing_is_asked_for_unless_wanted(raw: Path, net: str) -> None:
    assert played(raw, net=net) == "not asked"
    assert not waits(raw)


@pytest.mark.long
def test_auto_asks_for_nothing_while_all_is_well(raw: Path) -> None:
    assert played(raw, net="auto", wait_s=2) == "not asked"
    assert HEADER.number(box(raw), "net_on") == 0


@pytest.mark.parametrize("api", [1, 2, 3])
def test_old_interfaces_are_not_asked(raw: Path, api: int) -> None:
    assert played(raw, net="on", api=api) == "not asked"


@pytest.mark.long
def test_auto_asks_when_an_operation_seems_to_hang(raw: Path) -> None:
    assert played(raw, net="auto", wait_s=25, wire=SLOW_US) == "asked"
    assert HEADER.number(box(raw), "net_on") == 1
    assert waits(raw)["send", SENT_TO].blamed == "wire"


def test_how_long_it_was_taken_is_known(raw: Path) -> None:
    started = time.monotonic()
    played(raw, net="on", gpu=100_000)
    lasted_s = time.monotonic() - started
    assert 2 < HEADER.number(box(raw), "net_ns") / 1e9 < lasted_s
