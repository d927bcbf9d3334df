"""Small files and texts: manifest, mark, records, ends of lines, comments, node lists."""

import json
from collections.abc import Callable
from pathlib import Path

from nccl_inspector.agent.ended_job import parse_ended
from nccl_inspector.agent.manifest import parse_manifest
from nccl_inspector.agent.mark_file import parse_mark
from nccl_inspector.agent.nvidia.vendor_record import VendorRecord
from nccl_inspector.capture.end_files import parse_end
from nccl_inspector.counters.counter_record import FORMAT, CounterRecord
from nccl_inspector.counters.node_counters import to_json
from nccl_inspector.exposition.text import make_series, render
from nccl_inspector.model.hostlist import compress, compress_within, expand
from nccl_inspector.model.jobid import parse_job
from nccl_inspector.render.comment import make_comment, read_comment, render_summary
from tests.fuzzers import seeds
from tests.fuzzers.forms import check_text
from tests.fuzzers.kinds import mutate, reading
from tests.fuzzers.page import IDENTITY, check_published
from tests.fuzzers.target import Budget, Run, Target
from tests.support import example_cards
from tests.support.boxes import manifest_text
from tests.support.nvidia_files import UUID, bucket, record_of


def _manifest(data: bytes) -> str:
    found = parse_manifest(data)
    check_text("manifest", f"{found.user}{found.node}{found.nodelist}{found.work_dir}{found.gpus}")
    return found.mode[:8]


def _mark(data: bytes) -> str:
    value, unit = parse_mark(data)
    name = "nccl_inspector_job_throughput"
    check_published(render([make_series(name, IDENTITY | {"unit": unit}, value)]).decode())
    return unit


def _counters(data: bytes) -> str:
    record = CounterRecord.decode(data)
    CounterRecord.decode(record.encode())
    return f"{len(record.counters().devices)} devices"


def _vendor(data: bytes) -> str:
    record = VendorRecord.decode(data)
    VendorRecord.decode(record.encode())
    return f"{len(record.means().rows)} rows"


def _comment(data: bytes) -> str:
    found = read_comment(data.decode("utf-8", "replace"))
    check_text("show", render_summary(found))
    return found.status


def _end(data: bytes) -> str:
    return str(parse_end(data) is None)


def _nodes(data: bytes) -> str:
    nodes = expand(data.decode("utf-8", "replace"))
    compress_within(nodes, 100)
    return str(expand(compress(nodes)) == sorted(nodes) or len(nodes))


def _names(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return f"{parse_ended(text) is None} {parse_job(text)!s:.1}"


_READERS: dict[str, Callable[[bytes], str]] = {
    "manifest": _manifest, "mark": _mark, "counters": _counters, "vendor": _vendor,
    "comment": _comment, "end": _end, "nodes": _nodes, "names": _names,
}  # fmt: skip


def _seeds() -> list[bytes]:
    counters = seeds.JOBS["healthy"].counters["n1"]
    record = {"format": FORMAT, "counters": to_json(counters), "last": [["gpu", "GPU0", {"a": 1}]],
              "last_s": {"gpu": 7.5}, "first_boot_s": {}, "kernel_log_next": 0}  # fmt: skip
    end = next(data for name, data in seeds.played("late").lines.items() if name.endswith(".end"))
    known: dict[str, bytes] = {
        "manifest": manifest_text(4711).encode(),
        "mark": b"throughput=314.5\nunit=TFLOP/s/GPU\nend\n",
        "counters": json.dumps(record).encode(),
        "vendor": record_of({UUID: [bucket(), bucket("1-2MB", p2p=True)]}).encode(),
        "comment": f"site words {make_comment(example_cards.straggler())} more".encode(),
        "end": end,
        "nodes": b"n[1-4,07,010-012],m01,rack[1-2]n[1-3]x",
        "names": b"4711.1790000000000000000",
    }
    return [name.encode() + b"\n" + data for name, data in known.items()]


def prepare(_place: Path) -> Run:
    """Return what reads a file of the kind that its first line says."""
    return reading(_READERS)


# A list of nodes is as long as Slurm allows, whatever its length: NODES_MAX of model/hostlist.py.
TARGET = Target(
    "files", _seeds, mutate, prepare, Budget(cpu_s=1.0, memory_bytes=128 << 20), most_bytes=1 << 20
)
