# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector ras`: NCCL's RAS service is asked, and nothing it says is simply believed."""

import json
import resource
import socketserver
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_inspector.commands import ras as command
from nccl_inspector.commands.ras import ras
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import Process
from nccl_inspector.ras import client
from nccl_inspector.ras import status as status_module
from nccl_inspector.ras.beside import own_counts
from nccl_inspector.ras.client import Address, RasError, ask_diagnostics, ask_status, parse_address
from nccl_inspector.ras.find import RasPlace, RasPlaces
from nccl_inspector.ras.judge import State, judge
from nccl_inspector.ras.origin import OtherJobError, ask_job
from nccl_inspector.ras.status import RasStatus, parse_status
from nccl_inspector.ras.text import COLUMNS, status_lines
from nccl_inspector.system.limited import Limits
from tests.support.boxes import BoxOf, CommOf, write_box
from tests.support.ras_service import RasService, listening, recorded, serving
from tests.support.summaries import read_process

NEW = (2, 32, 3)
JOB = 4711


def states(first: RasStatus, second: RasStatus | None = None) -> list[State]:
    (comm,) = judge(first, second)
    return [rank.state for rank in comm.ranks]


def with_launches(status: RasStatus, launches: Sequence[int]) -> RasStatus:
    """The same answer with so many AllReduces of each rank, and nothing else."""
    (comm,) = status.comms
    ranks = [
        replace(rank, launched={"AllReduce": count})
        for rank, count in zip(comm.ranks, launches, strict=True)
    ]
    return replace(status, comms=(replace(comm, ranks=tuple(ranks)),))


@pytest.mark.parametrize("release", ["2.28.9", "2.32.3"])
def test_a_healthy_job_has_no_rank_with_anything_wrong(release: str) -> None:
    status = parse_status(recorded(f"healthy-{release}"))
    (comm,) = status.comms
    assert (status.nccl, comm.size, len(comm.ranks), comm.missing) == (release, 3, 3, ())
    assert set(states(status)) == {State.WELL}


# NCCL 2.28.9 leaves out a comma in this answer.
@pytest.mark.parametrize("release", ["2.28.9", "2.32.3"])
def test_a_killed_rank_is_dead(release: str) -> None:
    status = parse_status(recorded(f"dead-{release}"))
    assert states(status) == [State.WELL, State.WELL, State.DEAD]


def test_a_rank_that_stays_behind_is_told_from_one_that_moves() -> None:
    status = parse_status(recorded("healthy-2.32.3"))
    before = with_launches(status, [100, 99, 70])
    assert set(states(before)) == {State.WELL}  # one look cannot tell
    assert set(states(before, with_launches(status, [150, 149, 120]))) == {State.WELL}
    stuck = with_launches(status, [101, 101, 70])
    assert states(before, stuck) == [State.WELL, State.WELL, State.BEHIND]


def test_that_nothing_is_launched_is_said_and_accuses_nobody() -> None:
    still = with_launches(parse_status(recorded("healthy-2.32.3")), [7, 7, 7])
    (comm,) = judge(still, still)
    assert comm.stands_still
    assert not comm.unwell
    assert "no rank has launched a collective between the looks" in "\n".join(
        status_lines([comm], {})
    )


@pytest.mark.parametrize(
    ("result", "words"),
    [(1, "unhandled CUDA error (1)"), (6, "remote process error (6)"), (8, "timeout (8)"),
     (77, "result 77")],
)  # fmt: skip
def test_an_asynchronous_error_is_named_as_nccls_own_table_has_it(result: int, words: str) -> None:
    healthy = recorded("healthy-2.32.3")
    status = parse_status(healthy.replace(b'"async_error": 0', b'"async_error": %d' % result, 1))
    text = "\n".join(status_lines(judge(status), {}))
    assert states(status)[0] is State.ERROR
    assert "rank 0 (127.0.0.1, pid " in text
    assert f" error: {words}" in text


def test_the_plugins_counts_stand_beside_the_same_rank_of_the_same_communicator(
    tmp_path: Path,
) -> None:
    status = parse_status(recorded("healthy-2.32.3"))
    (comm,) = status.comms
    box = BoxOf([replace(CommOf(0, 1, 3), id=comm.hash)], [])
    process: Process = read_process(write_box(tmp_path, "0_1", box))
    own = own_counts([process])
    lines = list(status_lines(judge(status), own))
    assert set(own) == {(comm.hash, 1)}
    (row,) = [line for line in lines if line.split()[:1] == ["1"]]
    counts = own[comm.hash, 1]
    assert row.split()[-3:] == list(map(str, (counts.enqueued, counts.started, counts.completed)))
    assert max(map(len, lines)) <= COLUMNS


def test_the_command_looks_twice_and_changes_nothing() -> None:
    first = recorded("healthy-2.32.3")
    service = RasService(NEW, [first, recorded("dead-2.32.3")])
    with serving(service) as where:
        done = CliRunner().invoke(ras, ["--address", str(where), "--seconds", "0.1"])
    assert done.exit_code == 1
    assert "rank 2 (127.0.0.1, pid" in done.output
    assert ") dead" in done.output
    assert service.asked == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "STATUS"] * 2


def test_json_has_every_rank() -> None:
    with serving(RasService(NEW, [recorded("healthy-2.32.3")])) as where:
        done = CliRunner().invoke(ras, ["--address", str(where), "--seconds", "0", "--json"])
    (comm,) = json.loads(done.output)["communicators"]
    assert [rank["rank"] for rank in comm["ranks"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("release", "words", "why"),
    [
        ((2, 27, 7), ["--seconds", "0"], "older than 2.28.7 and has no JSON"),
        ((2, 28, 9), ["--monitor"], "older than 2.29 and cannot be followed"),
        ((2, 30, 7), ["--diagnostics"], "older than 2.31 and has no diagnostics"),
    ],
)
def test_an_old_nccl_is_told_in_one_line(
    release: tuple[int, int, int], words: list[str], why: str
) -> None:
    with serving(RasService(release, [recorded("healthy-2.28.9")])) as where:
        done = CliRunner().invoke(ras, ["--address", str(where), *words])
    assert done.exit_code == 1
    assert why in str(done.exception)


def test_what_it_prints_of_others_controls_no_terminal() -> None:
    with serving(RasService(NEW, [b""])) as where:
        assert ask_diagnostics(where) == ["n1:7 NCCL DIAG [OK]   Xid/SXid: no events?"]
        done = CliRunner().invoke(ras, ["--address", str(where), "--monitor"])
    assert done.output == "[now] PEER_DEAD: Process 7?[2J on node n2\n"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"[" * 100_000, b'{"communicators": 7}',
        recorded("healthy-2.32.3").replace(b'"rank": 1', b'"rank": 1e400'),
        recorded("healthy-2.32.3").replace(b'"host": "127.0.0.1"', b'"host": ["x"]'),
        recorded("healthy-2.32.3").replace(b'"hash": "0x', b'"hash": "0xg'),
        recorded("healthy-2.32.3").replace(b'"AllReduce": ', b'"AllReduce": -'),
        recorded("healthy-2.32.3")[:900],
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError):
        parse_status(data)


def _never_ends(handler: socketserver.StreamRequestHandler) -> None:
    for _ in range(3):
        handler.rfile.readline()
        handler.wfile.write(b"SERVER PROTOCOL 2\nOK\nOK\n")
    try:
        while True:
            handler.wfile.write(b" " * (1 << 16))
    except OSError:
        return


def _says_nothing(handler: socketserver.StreamRequestHandler) -> None:
    while handler.rfile.readline():
        pass


def _is_no_ras(handler: socketserver.StreamRequestHandler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")


@pytest.mark.long
@pytest.mark.parametrize("server", [_never_ends, _says_nothing, _is_no_ras])
def test_a_server_that_is_no_ras_service_costs_little(
    monkeypatch: pytest.MonkeyPatch,
    server: Callable[[socketserver.StreamRequestHandler], None],
) -> None:
    monkeypatch.setattr(client, "ANSWER_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(client, "_ANSWER_S", 1.0)
    begun_s = time.monotonic()
    with listening(server) as where, pytest.raises(RasError):
        ask_status(where)
    assert time.monotonic() - begun_s < 20


def _answers(data: bytes, times: int) -> Callable[[socketserver.StreamRequestHandler], None]:
    """A service whose answer is `data`, again and again."""

    def handle(handler: socketserver.StreamRequestHandler) -> None:
        for reply in (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n"):
            handler.rfile.readline()
            handler.wfile.write(reply)
        handler.rfile.readline()
        with suppress(OSError):
            handler.wfile.write(b'{"communicators": [')
            for _ in range(times):
                handler.wfile.write(data)

    return handle


def test_an_answer_that_becomes_a_hundred_times_larger_costs_only_its_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status_module, "_LIMITS", Limits(memory_bytes=64 << 20))
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Half a gigabyte of lists, because the child also has what its parent has freed.
    answers = _answers(b"[]," * (1 << 18), 32)
    with listening(answers) as where, pytest.raises(RefusedError) as caught:
        ask_job(RasPlace(where), ())
    assert str(caught.value) == "too_big: it needs too much memory"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb < 32 << 10


def test_diagnostics_of_nothing_but_line_ends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LINES_MAX", 1000)

    def handle(handler: socketserver.StreamRequestHandler) -> None:
        handler.rfile.readline()
        handler.wfile.write(b"SERVER PROTOCOL 2\n")
        handler.rfile.readline()
        handler.wfile.write(b"NCCL DIAG\n" + b"\n" * 1001)

    with listening(handle) as where, pytest.raises(RasError, match="more than 1,000 lines"):
        ask_diagnostics(where)


def test_a_service_of_another_job_at_the_port_is_not_taken_for_the_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = RasService(NEW, [recorded("healthy-2.32.3")])
    with serving(service) as where:
        place = RasPlace(where, ("0",), frozenset({1}))
        monkeypatch.setattr(command, "find_places", lambda *_: RasPlaces((place,), ()))
        done = CliRunner().invoke(ras, [f"{JOB}.0", "--seconds", "0"])
        followed = CliRunner().invoke(ras, [f"{JOB}.0", "--monitor"])
    assert done.exit_code == followed.exit_code == 1
    assert isinstance(done.exception, OtherJobError)
    assert isinstance(followed.exception, OtherJobError)
    assert "processes of another job answer there" in str(done.exception)


def test_each_step_that_answers_is_shown_and_a_silent_batch_script_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = recorded("healthy-2.32.3")
    pids = frozenset(rank.pid for rank in parse_status(answer).comms[0].ranks)
    nobody = RasPlace(Address("127.0.0.1", 1), ("batch",), frozenset({5}))
    with serving(RasService(NEW, [answer])) as first, serving(RasService(NEW, [answer])) as second:
        places = (nobody, RasPlace(first, ("0",), pids), RasPlace(second, ("1",), pids))
        monkeypatch.setattr(command, "find_places", lambda *_: RasPlaces(places, ()))
        done = CliRunner().invoke(ras, [str(JOB), "--seconds", "0"])
        asked = CliRunner().invoke(ras, [str(JOB), "--monitor"])
    assert done.exit_code == 0, done.output
    titles = [line for line in done.output.splitlines() if line.startswith("STEP")]
    assert titles == [f"STEP 0 at {first}", f"STEP 1 at {second}"]
    assert "nobody listens" not in done.output
    assert "give one of them as JOB.STEP: 0, 1" in str(asked.exception)


@pytest.mark.parametrize("text", ["4711.", "4711.x", "4711.0.1", "4711.-5", "0.0", "1_2.0"])
def test_what_is_no_step_is_refused(text: str) -> None:
    done = CliRunner().invoke(ras, [text])
    assert done.exit_code == 2
    assert "not a job id" in done.output


def test_a_job_that_is_not_here_is_told_how_to_ask() -> None:
    done = CliRunner().invoke(ras, ["99999"])
    assert "srun --jobid=99999 --overlap -N1 -n1 nccl-inspector ras 99999" in str(done.exception)


@pytest.mark.parametrize(
    "text",
    ["", "localhost", "localhost:0", "localhost:99999", ":1", "a:b", "localhost:" + "1" * 5000,
     "-rf:1", "{{7}}:1", "a b:1", "[::1:1", "[n1;x]:1"],
)  # fmt: skip
def test_an_address_without_host_or_port_is_an_error(text: str) -> None:
    with pytest.raises(Exception, match="not an address like"):
        parse_address(text)


def test_an_address_is_written_as_nccl_reads_it() -> None:
    assert str(parse_address("[::1]:28028")) == "[::1]:28028"
    assert str(parse_address("localhost:28028")) == "localhost:28028"
