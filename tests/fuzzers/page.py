"""Exposition pages of our plugin, through the agent's reading to the text that is scraped."""

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

from nccl_inspector.agent.prom_page import merge
from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.process_file import FILE_BYTES_MAX, Known, parse_file
from nccl_inspector.exposition.text import render
from tests.fuzzers import mutation, seeds
from tests.fuzzers.forms import check_text, expect
from tests.fuzzers.target import Run, Target

IDENTITY = {"cluster": "sim", "slurm_job_id": "4711", "node": "n1", "slurm_nodelist": "n[1-2]"}
_SERIES = re.compile(r'([a-z_0-9]+)\{((?:[a-z_0-9]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\} (\S+)')
_LABEL = re.compile(r'([a-z_0-9]+)="((?:[^"\\\n]|\\[\\"n])*)"')


def check_published(text: str) -> int:
    """Check what Prometheus would read: whole lines, each series once and this job's."""
    check_text("page", text)
    seen = set()
    for line in text.splitlines():
        if line.startswith("# "):
            continue
        found = _SERIES.fullmatch(line)
        expect(found is not None, "page", f"not a line of a series: {line!a:.80}")
        assert found
        expect((found[1], found[2]) not in seen, "page", f"twice: {line!a:.80}")
        seen.add((found[1], found[2]))
        labels = dict(_LABEL.findall(found[2]))
        for name, value in IDENTITY.items():
            expect(labels.get(name, value) == value, "page", f"another {name}: {line!a:.80}")
        expect(0 <= float(found[3]) < float("inf"), "page", f"no value: {line!a:.80}")
    return len(seen)


def prepare(_place: Path) -> Run:
    """Return what publishes a page, after the seed's was."""
    known: Known = parse_file(seeds.played("hung").pages()[0], IDENTITY, {})

    def run(data: bytes) -> str:
        try:
            found = parse_file(data, IDENTITY, known)
        except RefusedError as err:
            return str(err)
        page = render(found.values())
        expect(parse_file(data, IDENTITY, {}) == found, "page", "another when it is read first")
        other = render(known.values())
        check_published(page.decode())
        merge([page, other])
        return f"{check_published(merge([page]).decode())} series {len({*page.split()}) // 50}"

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return a page with other lines, its end mark put back mostly."""
    found = mutation.several(chance, data, corpus, mutation.TEXT)
    if chance.random() < 0.8:
        found = found.replace(b"# EOF\n", b"").rstrip(b"\n") + b"\n# EOF\n"
    return found


def _seeds() -> list[bytes]:
    # Without the blank lines that keep a file's room.
    return [re.sub(rb"\n+# EOF\n", b"\n# EOF\n", page) for page in seeds.played("hung").pages()]


TARGET = Target("page", _seeds, mutate, prepare, most_bytes=FILE_BYTES_MAX)
