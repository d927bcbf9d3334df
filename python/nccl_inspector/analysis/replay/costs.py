# SPDX-License-Identifier: Apache-2.0
"""What the answers of the replay say: time saved over all pieces, and in which of them."""

from collections.abc import Sequence

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats
from nccl_inspector.analysis.replay.cause import TOLD_MIN
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.what_if import PARTS, Piece, Replay, WhatIf

_PIECE_SLOW = 0.25  # share of the worst pieces' cost for a piece to belong to the period
WHOLE = 0.8  # share of slow pieces that makes it the whole job
_SLOW_PIECE_MIN = 0.02  # share of its time that a slow piece loses
_RATE_PIECES_MIN = 4  # pieces needed for the median rate of operations
_APART_MAX = 1  # usual pieces that may lie within a slow time


def piece_shares(answers: Sequence[Piece], column: int) -> Floats:
    """Return the share of each piece's time that a question saves."""
    return np.array(
        [float(one.saved[column]) / one.length if one.length else 0.0 for one in answers]
    )


def total_share(answers: Sequence[Piece], column: int) -> float:
    """Return the share of the time of all pieces that a question saves."""
    length = sum(one.length for one in answers)
    return sum(float(one.saved[column]) for one in answers) / length if length else 0.0


def standard_error(shares: Floats, lengths: Floats) -> float:
    """Return the standard error of the mean share, weighted by lengths."""
    weights = lengths / lengths.sum()
    even = float(np.sum(weights**2))  # 1 / the equivalent number of equal lengths
    if even >= 1:
        return 0.0
    apart = shares - float(np.sum(weights * shares))
    with np.errstate(over="ignore"):  # claims that cannot be true give infinity, and no finding
        return float(np.sqrt(np.sum(weights**2 * apart**2) / (1 - even)))


def felt_later(replay: Replay, whole: WhatIf, first_half: WhatIf) -> float:
    """Return the factor by which a cause costs more than the replay of pieces shows.

    A delay makes others wait some time later, in a pipeline some seconds. So a piece does not show
    the effect of its last delays. How much is missing is measured at the middle of the pieces: it
    is what delays of the first half (`first_half`: the same question, only for that) save after it.
    If the question follows its processes, it is that share of their lead over the others.
    """
    answers = replay.ask([whole, first_half])
    saved = sum(float(one.saved[1]) for one in answers)
    if saved <= 0:
        return 1.0
    at_half = sum(float(one.parts[: PARTS // 2, 1].sum()) for one in answers)
    later = max(sum(float(one.saved[2]) for one in answers) - at_half, 0.0)
    if whole.follows:
        at_half, at_end = (
            sum(float(one.ahead[at, 1]) for one in answers) for at in (PARTS // 2, -1)
        )
        later = min(later / at_half, 1.0) * max(at_end, 0.0) if at_half > 0 else 0.0
    # This can measure at most half of a piece.
    return 1 + min(later / saved, 1.0)


def replayed_s(answers: Sequence[Piece]) -> float:
    """Return the total time of all pieces that could be replayed, in seconds."""
    return sum(one.length for one in answers) / 1e9


def saved_share(
    answers: Sequence[Piece], column: int
) -> tuple[float, float, list[tuple[int, int, float]]]:
    """Return the share that a question saves, its standard error, and the share by piece."""
    shares = piece_shares(answers, column)
    rows = [
        (one.start, one.end, share) for one, share in zip(answers, shares.tolist(), strict=True)
    ]
    lengths = np.array([max(one.length, 1.0) for one in answers])
    return total_share(answers, column), standard_error(shares, lengths), rows


def period_of(culprit_pieces: Sequence[tuple[int, int, float]]) -> tuple[int, int, bool]:
    """Return begin and end of the time in which a cause cost, and whether that is nearly all."""
    shares = np.array([share for _, _, share in culprit_pieces])
    top = float(np.sort(shares)[-max(len(shares) // 4, 1) :].mean())
    slow = np.flatnonzero(shares >= max(_PIECE_SLOW * top, TOLD_MIN))
    if not len(slow):
        slow = np.arange(len(shares))
    start, end = culprit_pieces[slow[0]][0], culprit_pieces[slow[-1]][1]
    return start, end, len(slow) >= WHOLE * len(shares)


def slow_times(rows: Sequence[tuple[int, int, float]]) -> list[list[int]]:
    """Return the times in which something cost much, each as a list of its pieces' places.

    Two slow times become one if only few pieces between them are as they should be.
    """
    if not rows:
        return []
    shares = np.array([share for _, _, share in rows])
    span = np.array([end - start for start, end, _ in rows], float)
    # A piece that is cut short, such as a job's first one, tells little about how slow it may be.
    whole = span >= np.median(span) / 2
    slow = np.flatnonzero(shares >= max(_SLOW_PIECE_MIN, 0.3 * float(shares[whole].max())))
    found: list[list[int]] = []
    for at in slow.tolist():
        if found and at - found[-1][-1] - 1 <= max(_APART_MAX, len(found[-1]) // 2):
            found[-1].append(at)
        else:
            found.append([at])
    return found


def cost_then(
    records: Records,
    answers: Sequence[Piece],
    rows: Sequence[tuple[int, int, float]],
    some: Sequence[int],
    times_most: float = 2.0,
) -> float:
    """Return what was lost in some pieces, as a share of the time of all, checked by the rate.

    `times_most`: the most that the rate may raise the replay's cost; beyond it, there is another
    cause.
    """
    factor = _seen_by_rate(records, answers, rows, some, times_most)
    return _cost_of_pieces(answers, rows, some) * factor


def _seen_by_rate(
    records: Records,
    answers: Sequence[Piece],
    rows: Sequence[tuple[int, int, float]],
    some: Sequence[int],
    times_most: float,
) -> float:
    """Return the factor that corrects the cost in some pieces; 0: the cost is not believed.

    What costs time makes operations rarer, and their number per second is known independently of
    the replay. It cannot tell what work of the ranks was hidden behind slow transfers.
    """
    there = np.zeros(len(answers), dtype=bool)
    there[list(some)] = True
    share = sum(rows[at][2] for at in some) / len(some)
    if there.all() or share <= 0:
        return 1.0
    done = np.bincount(records.piece)[[one.piece for one in answers]].astype(float)
    span = np.array([one.end - one.start for one in answers], float)
    rate = done / np.maximum(span, 1.0)
    fewer = 1 - float(np.median(rate[there])) / float(np.median(rate[~there]))
    if fewer < share / 2:
        return fewer / share if fewer >= _SLOW_PIECE_MIN else 0.0
    # With few pieces the rate varies too much.
    exact = min(there.sum(), (~there).sum()) >= _RATE_PIECES_MIN and fewer <= times_most * share
    return fewer / share if exact else 1.0


def _cost_of_pieces(
    answers: Sequence[Piece], rows: Sequence[tuple[int, int, float]], some: Sequence[int]
) -> float:
    """Return what was lost in some pieces, as a share of all.

    Pieces have equal lengths, except those that begin with a long stop. If operations are rare
    because everything is slow, a smaller part of the piece can be replayed; that must not make it
    count less.
    """
    span = np.array([one.end - one.start for one in answers], float)
    weight = np.maximum([one.length for one in answers], float(np.median(span)))
    for edge in (0, -1):  # the job began and ended within a piece
        weight[edge] = min(weight[edge], span[edge])
    return float(sum(rows[at][2] * weight[at] for at in some) / weight.sum())
