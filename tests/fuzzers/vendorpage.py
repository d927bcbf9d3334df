"""Pages of NVIDIA's Inspector: published, folded into the agent's record, and made a report."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from nccl_inspector.agent.nvidia.file import parse_vendor
from nccl_inspector.agent.nvidia.vendor_record import VendorRecord
from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.text import render
from nccl_inspector.summary.codec import decode, encode
from tests.fuzzers import mutation, seeds
from tests.fuzzers.forms import expect
from tests.fuzzers.page import IDENTITY, check_published
from tests.fuzzers.summary import Report
from tests.fuzzers.target import Read, Run, Target
from tests.support.boxes import NOW_S
from tests.support.nvidia_files import UUID, bucket, totals

_FILES = ("n1.0.nodesummary", "n2.0.nodesummary")


def _seeds() -> list[bytes]:
    sizes = ("8-9KB", "1-2MB", "64-65MB", "134-135MB")
    some = "".join(bucket(size, "44.25", "120") for size in sizes)
    return [
        some.encode(),
        (some + totals(400, 12, 7, 0)).encode(),
        (some + bucket("4-5KB", p2p=True) + bucket("2-3GB", comm_name="dp", p2p=True)).encode(),
        "".join(bucket(f"{at}-{at + 1}KB", f"{at}.5", "1e3") for at in range(1, 60)).encode(),
    ]


def prepare(place: Path) -> Run:
    """Return what takes a page of one GPU as its first dump and its last."""
    report = Report(place, lean=True)
    heads = [decode(seeds.played("healthy").summaries[file]).head for file in _FILES]

    def run(data: bytes) -> str | Read:
        record = VendorRecord()
        try:
            dump = parse_vendor(data, UUID, IDENTITY)
        except RefusedError as err:
            record.refuse(UUID, (0, 0, 0), err.reason)
            words = str(err)
        else:
            series = [one for found in dump.buckets for one in found.series]
            words = f"{check_published(render(series).decode()) // 10} series"
            for at in range(2):
                record.add(UUID, (at, 0, 0), NOW_S + 30 * at, dump)
        again = VendorRecord.decode(record.encode())
        expect(again.encode() == record.encode(), "vendor record", "another when it is read again")
        # Two nodes, because a report that has no process is one of its own.
        summaries = [encode(replace(head), (), None, again.means()) for head in heads]

        def rest() -> str:
            first, second = zip(_FILES, summaries, strict=True)
            with report.with_file(*first), report.with_file(*second):
                return report.said()

        return Read(words, rest)

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return a page in which mostly both lines of a bucket are changed alike."""
    if chance.random() < 0.3:
        return mutation.several(chance, data, corpus, mutation.TEXT)
    rows = data.split(b"\n")
    at = chance.randrange(max(1, len(rows) // 2)) * 2
    pair = rows[at : at + 2]
    labels = pair[0].partition(b"{")[2].rpartition(b"}")[0]
    if not labels:
        return mutation.several(chance, data, corpus, mutation.TEXT)
    other = mutation.several(chance, labels, (labels,), mutation.TEXT)
    return data.replace(labels, other, chance.choice((2, -1)))


TARGET = Target("vendorpage", _seeds, mutate, prepare, most_bytes=512 << 10, rest_of=24)
