"""Answers of NCCL's RAS service: a job's state, its events, its diagnostics."""

from pathlib import Path

from nccl_inspector.ras.diagnostics import fault_lines, read_checks
from nccl_inspector.ras.events import parse_events
from nccl_inspector.ras.judge import judge
from nccl_inspector.ras.origin import find_origin
from nccl_inspector.ras.status import parse_status
from nccl_inspector.ras.text import status_lines
from nccl_inspector.system.printable import printable
from tests.fuzzers.forms import check_text
from tests.fuzzers.kinds import mutate, reading
from tests.fuzzers.target import Budget, Run, Target
from tests.support.ras_service import recorded


def _lines(data: bytes) -> list[str]:
    """Return the lines as the client gives them."""
    return [printable(line.decode("ascii", "replace")) for line in data.split(b"\n")]


def _status(data: bytes) -> str:
    status = parse_status(data)
    comms = judge(status, status)
    check_text("ras", "\n".join(status_lines(comms, {}, everything=True)))
    return f"{find_origin(status, {1}, ())} {sum(len(comm.unwell) for comm in comms)}"


def _events(data: bytes) -> str:
    found = list(parse_events(_lines(data)))
    for one in found:
        check_text("event", f"{one.time}{one.group}{one.event}{one.host}{one.details}")
    return str(len(found))


def _diagnostics(data: bytes) -> str:
    checks = list(read_checks(_lines(data)))
    check_text("diagnostics", "\n".join(fault_lines(checks)))
    return f"{sum(one.is_fault for one in checks)} {sum(one.is_ok for one in checks)}"


_READERS = {"status": _status, "events": _events, "diagnostics": _diagnostics}


def _seeds() -> list[bytes]:
    known = [("status", recorded(f"{name}-{release}")) for name in ("healthy", "dead")
             for release in ("2.28.9", "2.32.3")]  # fmt: skip
    known += [(name, recorded(f"{name}-2.32.3", ".txt")) for name in ("events", "diagnostics")]
    return [name.encode() + b"\n" + data for name, data in known]


def prepare(_place: Path) -> Run:
    """Return what reads an answer of the kind that its first line says."""
    return reading(_READERS)


TARGET = Target(
    "ras", _seeds, mutate, prepare, Budget(cpu_s=1.0, memory_bytes=128 << 20), most_bytes=1 << 20
)
