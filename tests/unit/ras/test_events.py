# SPDX-License-Identifier: Apache-2.0
"""What RAS tells as it happens, event by event."""

import json
import socket
import socketserver
import struct

import pytest
from click.testing import CliRunner

from nccl_inspector.commands.ras import ras
from nccl_inspector.errors import RefusedError
from nccl_inspector.ras.client import LINE_BYTES_MAX, RasError, follow
from nccl_inspector.ras.events import RasEvent, parse_events
from tests.support.ras_service import RasService, listening, recorded, serving

NEW = (2, 32, 3)
LINES = recorded("events-2.32.3", ".txt").decode().splitlines()


def test_the_death_of_a_rank_is_read_from_what_a_real_service_said() -> None:
    found = list(parse_events(LINES))
    assert found[0].event == "PEER_DISCONNECTED"
    assert (found[-1].event, found[-1].group) == ("PEER_DEAD", "LIFECYCLE")
    assert len({one.pid for one in found}) == 1
    assert {(one.host, one.gpus) for one in found} == {("127.0.0.1", (0,))}
    assert "declaring dead" in found[-2].details


def test_an_event_is_given_as_soon_as_it_is_complete() -> None:
    def endless() -> object:
        yield from LINES[:12]
        raise AssertionError("more was read")

    assert next(parse_events(endless())).event == "PEER_DISCONNECTED"  # type: ignore[arg-type]


def test_an_event_about_no_known_process_has_its_address_or_nothing() -> None:
    words = {"timestamp": "now", "group": "TRACE", "event": "PEER_CONNECTING", "details": ""}
    with_address = json.dumps(words | {"peer": {"addr": "10.0.0.2<4001>"}}, indent=2)
    alone = json.dumps(words, indent=2)
    assert list(parse_events(with_address.split("\n") + alone.split("\n"))) == [
        RasEvent("now", "TRACE", "PEER_CONNECTING", "10.0.0.2<4001>", -1, (), ""),
        RasEvent("now", "TRACE", "PEER_CONNECTING", "", -1, (), ""),
    ]


def test_an_event_that_is_cut_off_at_the_end_is_left_out() -> None:
    assert len(list(parse_events(LINES[:20]))) == 1


@pytest.mark.parametrize(
    "lines",
    [
        ["OK"],
        ["\x00\xff"],
        ["{", *['  "a": 1,'] * 1000],
        ["{", "}"],
        ["{", '"timestamp": 7', "}"],
        [*LINES[:6], '    "pid": 1e400,', *LINES[7:12]],
        [*LINES[:6], '    "pid": -7,', *LINES[7:12]],
        [*LINES[:7], '    "cuda_devs": [[]],', *LINES[8:12]],
    ],
)
def test_what_is_no_event_is_refused(lines: list[str]) -> None:
    with pytest.raises(RefusedError):
        list(parse_events(lines))


def test_the_command_prints_one_object_for_each_event() -> None:
    service = RasService(NEW, [b""])
    with serving(service) as where:
        done = CliRunner().invoke(ras, ["--address", str(where), "--monitor", "--json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.output.splitlines()]
    assert rows[-1]["event"] == "PEER_DEAD"
    assert len(rows) == len(list(parse_events(LINES)))
    assert service.asked == ["CLIENT PROTOCOL 2", "SET FORMAT json", "MONITOR all"]


def _begins(handler: socketserver.StreamRequestHandler, then: bytes) -> None:
    for answer in (b"SERVER PROTOCOL 2\n", b"OK\n" + then):
        handler.rfile.readline()
        handler.wfile.write(answer)


def _dies(handler: socketserver.StreamRequestHandler) -> None:
    _begins(handler, b"")
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def _has_no_line_end(handler: socketserver.StreamRequestHandler) -> None:
    _begins(handler, b"first\n")
    try:
        while True:
            handler.wfile.write(b"\xff" * LINE_BYTES_MAX)
    except OSError:
        return


def test_a_service_that_dies_while_it_is_followed_is_an_error_of_one_line() -> None:
    with listening(_dies) as where, pytest.raises(RasError, match=str(where.port)):
        list(follow(where))


def test_a_line_without_an_end_ends_the_stream() -> None:
    with listening(_has_no_line_end) as where:
        assert list(follow(where)) == ["first"]
