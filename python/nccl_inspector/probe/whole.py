# SPDX-License-Identifier: Apache-2.0
"""One probe from its start to its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_bytes

from nccl_inspector.model.wording import cut_list
from nccl_inspector.probe.errors import ProbeError
from nccl_inspector.probe.hub import Hub, Rank
from nccl_inspector.probe.launch import Ranks, Step
from nccl_inspector.probe.measure import Pairs, Say, connect, measure_sizes
from nccl_inspector.probe.odd import better_of, find_odd
from nccl_inspector.probe.plan import sizes
from nccl_inspector.probe.result import TCP, Cell, Kind, ProbeResult
from nccl_inspector.probe.wire import KEY_BYTES

_START_S = 120.0  # until all ranks have come: srun, and importing PyTorch from shared storage


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure: sizes in bytes, and the time in s for all of them."""

    collective: str
    least_bytes: int
    most_bytes: int
    seconds: float
    pairs: bool
    pair_bytes: int


def _pairs(hub: Hub, wanted: Wanted, step: Step, say: Say) -> list[Cell]:
    """Return the matrix; what looks slow in it was measured a second time."""
    pairs = Pairs(hub, wanted.pair_bytes, step.limit_s)
    cells = pairs.matrix(say)
    low = {frozenset((cell.sender, cell.receiver)) for odd in find_odd(cells) for cell in odd.cells}
    return better_of(cells, pairs.matrix(say, frozenset(low))) if low else cells


def _one(values: Sequence[str]) -> str:
    """Return the value of all ranks, or those that there are."""
    return cut_list(sorted(set(values)), 4)


def _check(ranks: Sequence[Rank], step: Step) -> None:
    nodes = {rank.node for rank in ranks}
    if len(nodes) != step.nodes:
        raise ProbeError(f"the ranks are on {len(nodes)} nodes, not on {step.nodes}")
    gpus = max(rank.gpus for rank in ranks)
    # Outside of a batch script Slurm's variables may not tell.
    if step.backend == TCP and gpus and not step.is_chosen:
        raise ProbeError(
            f"the nodes have GPUs: give --backend nccl --per-node {gpus}, or --backend tcp"
        )


def _measure(
    hub: Hub, ranks: Ranks, step: Step, wanted: Wanted, time_s: int, say: Say
) -> ProbeResult:
    hub.gather(step.ranks, max(_START_S, step.limit_s), ranks.ended)
    _check(hub.ranks, step)
    connect(hub, step.limit_s)
    measured = measure_sizes(
        hub, wanted.collective, sizes(wanted.least_bytes, wanted.most_bytes), wanted.seconds,
        step.limit_s, say,
    )  # fmt: skip
    cells = _pairs(hub, wanted, step, say) if wanted.pairs else []
    notes = ("one node has no pairs",) if wanted.pairs and step.nodes < 2 else ()
    nodes = tuple(dict.fromkeys(rank.node for rank in hub.ranks))
    kind = Kind(
        step.backend, wanted.collective, step.ranks, len(nodes),
        _one([rank.device for rank in hub.ranks if rank.device]),
    )  # fmt: skip
    version = _one([rank.version for rank in hub.ranks if rank.version])
    return ProbeResult(
        kind, time_s, nodes, measured.rows, tuple(cells), version, measured.wrong_ranks,
        (*measured.notes, *notes),
    )  # fmt: skip


def run_probe(
    step: Step, wanted: Wanted, time_s: int, port: int, say: Say, *, here: bool = False
) -> ProbeResult:
    """Start the ranks, measure, and return what came of it; `here`: on this host, without Slurm.

    Raises:
        ProbeError: it could not be measured; the text names the rank, as far as one is known.
    """
    if step.ranks < 2:
        raise ProbeError("one rank alone has nobody to send to: take more nodes, or --per-node")
    key = token_bytes(KEY_BYTES)
    # The hub ends first: it tells the ranks that it is over.
    with Ranks(key) as ranks, Hub(key, "127.0.0.1" if here else "", port) as hub:
        (ranks.start_here if here else ranks.start)(step, hub.port)
        try:
            return _measure(hub, ranks, step, wanted, time_s, say)
        except ProbeError as err:
            if not (said := ranks.said()) or said in str(err):
                raise
            raise ProbeError(f"{err}; it said: {said}") from err
