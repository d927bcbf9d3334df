# SPDX-License-Identifier: Apache-2.0
"""Which nodes and pairs of a matrix are slower than the rest of it.

A node whose pairs are slow is named as a node. Its reference are the cells between all other nodes,
so that one slow node does not hide itself in a small matrix. Nobody is named for what the spread of
the other cells explains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from nccl_inspector.analysis.history.baseline import few_values_factor
from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA
from nccl_inspector.probe.result import Cell

# Of two nodes nobody can say which one is slow, and of three the rest is one pair: among noisy
# matrices of three nodes one in eight names somebody, of four one in forty.
NODES_MIN = 4
Z_MAX = -5.0
# Of the reference: a few cells may agree by chance. So less than 10 % is never worth a name.
_SIGMA_SHARE_MIN = 0.02
_LOW_CELLS_MIN = 0.75  # share of a node's cells that must be low themselves


@dataclass(frozen=True, slots=True)
class Odd:
    """A node, or a pair of nodes, that is slow; `cells` of them are low beside `reference_gbs`."""

    nodes: tuple[str, ...]
    gbs: float
    reference_gbs: float
    z: float
    cells: tuple[Cell, ...]

    @property
    def share(self) -> float:
        """The rate as a share of the reference."""
        return self.gbs / self.reference_gbs


def _reference(cells: Sequence[Cell]) -> tuple[float, float]:
    """Return the median in GB/s and the spread (sigma) of cells."""
    rates = [cell.gbs for cell in cells]
    middle = median(rates)
    mad = median(abs(rate - middle) for rate in rates)
    sigma = MAD_TO_SIGMA * mad * few_values_factor(len(rates))
    return middle, max(sigma, _SIGMA_SHARE_MIN * middle)


def _is_low(gbs: float, middle: float, sigma: float) -> bool:
    return middle > 0 and (gbs - middle) / sigma < Z_MAX


def _judge_node(node: str, cells: Sequence[Cell]) -> Odd | None:
    own = [cell for cell in cells if node in (cell.sender, cell.receiver)]
    others = [cell for cell in cells if node not in (cell.sender, cell.receiver)]
    if not own or not others:
        return None
    middle, sigma = _reference(others)
    gbs = median(cell.gbs for cell in own)
    # Of its two directions only one may be slow: then half of its cells are.
    low = tuple(cell for cell in own if _is_low(cell.gbs, middle, sigma))
    for part in ("sender", "receiver"):
        one_way = [cell for cell in own if getattr(cell, part) == node]
        low_of_it = [cell for cell in low if getattr(cell, part) == node]
        if one_way and len(low_of_it) >= _LOW_CELLS_MIN * len(one_way) and len(one_way) > 1:
            gbs = min(gbs, median(cell.gbs for cell in one_way))
            return Odd((node,), gbs, middle, (gbs - middle) / sigma, low)
    return None


def _judge_pair(pair: frozenset[str], cells: Sequence[Cell]) -> Odd | None:
    own = [cell for cell in cells if {cell.sender, cell.receiver} == pair]
    others = [cell for cell in cells if {cell.sender, cell.receiver} != pair]
    if not own or not others:
        return None
    middle, sigma = _reference(others)
    worst = min(cell.gbs for cell in own)
    if not _is_low(worst, middle, sigma):
        return None
    low = tuple(cell for cell in own if _is_low(cell.gbs, middle, sigma))
    return Odd(tuple(sorted(pair)), worst, middle, (worst - middle) / sigma, low)


def find_odd(cells: Sequence[Cell]) -> list[Odd]:
    """Return the slow nodes, the slowest first, then the slow pairs among the other nodes."""
    left = list(cells)
    found: list[Odd] = []
    while True:
        nodes = sorted({name for cell in left for name in (cell.sender, cell.receiver)})
        if len(nodes) < NODES_MIN:
            break
        judged = [odd for node in nodes if (odd := _judge_node(node, left))]
        if not judged:
            break
        worst = min(judged, key=lambda odd: odd.share)
        found.append(worst)
        left = [cell for cell in left if worst.nodes[0] not in (cell.sender, cell.receiver)]
    nodes = sorted({name for cell in left for name in (cell.sender, cell.receiver)})
    if len(nodes) >= NODES_MIN:
        pairs = sorted({frozenset((cell.sender, cell.receiver)) for cell in left}, key=sorted)
        odd_pairs = [odd for pair in pairs if (odd := _judge_pair(pair, left))]
        found += sorted(odd_pairs, key=lambda odd: odd.share)
    return found


def better_of(cells: Sequence[Cell], again: Sequence[Cell]) -> list[Cell]:
    """Return the cells, each with the higher one of two measurements."""
    best = {(cell.sender, cell.receiver): cell for cell in cells}
    for cell in again:
        key = cell.sender, cell.receiver
        if key not in best or cell.gbs > best[key].gbs:
            best[key] = cell
    return list(best.values())
