"""One rank's dump of PyTorch's flight recorder beside those of the others, matched and shown."""

import json
import pickle
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

from nccl_inspector.errors import RefusedError
from nccl_inspector.flight.calls import Evidence, RankDump, world_of
from nccl_inspector.flight.describe import describe
from nccl_inspector.flight.dump import from_wire, parse_dump, to_wire
from nccl_inspector.flight.files import Found, Refusal
from nccl_inspector.flight.pickled_data import read_pickle
from nccl_inspector.render.flight_text import flight_json, render_flight
from tests.fuzzers import mutation
from tests.fuzzers.forms import check_text
from tests.fuzzers.target import Run, Target
from tests.support.flight_dumps import LATER_S, RECORDED, START_NS, dump, entry

_RANK = 1
_PAIR = {"5": [0, 1, 2, 3]}
# What makes Python's unpickler run something, put where a value may be.
_CODE = (b"cos\nsystem\n(X\2\0\0\0idtR", b"\x8c\2os\x8c\6system\x93", b"(ios\nsystem\n", b"Px\n")


@cache
def _others() -> dict[int, RankDump]:
    found = {}
    for path in (RECORDED / "absent").iterdir():
        rank = int(path.stem.rpartition("_")[2])
        if rank != _RANK and not path.suffix:
            one = parse_dump(path.read_bytes())
            written_ns = one.records[-1].created_ns + LATER_S * 10**9
            found[rank] = RankDump(rank, one, written_ns)
    return found


@cache
def _seeds() -> list[bytes]:
    name = f"comm_lib_trace_rank_{_RANK}"
    cases = ("absent", "mismatched", "wrapped", "deadlock")
    sends = [entry(at, at, "send 1->2", group="5", desc="pipe") for at in range(3)]
    sends.append(entry(3, 4, "recv 1<-0", group="5", desc="pipe", state="started"))
    long = [entry(at, at, frames=[]) for at in range(300)]
    return [
        *((RECORDED / one / name).read_bytes() for one in cases),
        (RECORDED / "absent" / f"{name}.json").read_bytes(),
        *(pickle.dumps(dump(sends, _PAIR), protocol) for protocol in (0, 4)),
        pickle.dumps(dump(long, {"0": [0, 1, 2, 3]}), 2),
    ]


def prepare(_place: Path) -> Run:
    """Return what reads a dump, matches it with the others', and makes text and JSON."""
    others = _others()

    def run(data: bytes) -> str:
        refused: tuple[Refusal, ...] = ()
        dumps = dict(others)
        try:
            one = parse_dump(data)
        except RefusedError as err:
            refused = (Refusal(Path(f"rank_{_RANK}"), _RANK, str(err)),)
        else:
            again = from_wire(to_wire(one))
            if again != one:
                raise AssertionError("the parent gets another dump than the child has read")
            dumps[_RANK] = RankDump(_RANK, again, START_NS + LATER_S * 10**9)
        unreadable = frozenset({_RANK} if refused else ())
        evidence = Evidence(dumps, unreadable, world_of(dumps, unreadable, None))
        told = describe(Found(evidence, refused, ()))
        text = render_flight(told, 80)
        check_text("flight", text)
        json.loads(flight_json(told))
        reasons = (one.reason for one in refused)
        return " ".join((*reasons, *sorted({one.rule for one in told.findings})))

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return another dump: other bytes, other values, or code in it."""
    way = chance.random()
    if data.startswith(b"{") and way < 0.7:
        return mutation.change_json(chance, data, corpus)
    if way < 0.5:
        try:
            value = read_pickle(data)
            for _ in range(chance.choice((1, 1, 2, 4))):
                value = mutation.change_value(chance, value)
            return pickle.dumps(value, chance.randrange(6))
        except (RefusedError, RecursionError):
            pass
    if way < 0.6:
        at = chance.randrange(len(data) + 1)
        return data[:at] + chance.choice(_CODE) + data[at:]
    return mutation.several(chance, data, corpus, mutation.BYTES)


TARGET = Target("flight", _seeds, mutate, prepare)
