# SPDX-License-Identifier: Apache-2.0
"""What a question to the replay saved: over all pieces of time, and in which of them."""

from collections.abc import Sequence

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats
from nccl_inspector.analysis.replay.cause import TOLD_MIN
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.what_if import PARTS, Piece, Replay, WhatIf

_PIECE_SLOW = 0.25  # of the usual cost of its worst pieces, for a piece to be in the period
WHOLE = 0.8  # of the pieces
_SLOW_PIECE_MIN = 0.02  # of a piece, that a slow one loses
_RATE_PIECES_MIN = 4  # whose middle tells how many operations a second there are
_APART_MAX = 1  # pieces: of a time that is slow some pieces may be as usual


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
    """Return the standard error of the mean share of times that have some lengths."""
    weights = lengths / lengths.sum()
    even = float(np.sum(weights**2))  # 1 / how many times of equal length would tell as much
    if even >= 1:
        return 0.0
    apart = shares - float(np.sum(weights * shares))
    return float(np.sqrt(np.sum(weights**2 * apart**2) / (1 - even)))


def felt_later(replay: Replay, whole: WhatIf, first_half: WhatIf) -> float:
    """Return the factor by which a cause costs more than the replay of pieces says.

    A delay makes others wait some time after it happened, in a pipeline some seconds: of the last
    ones in a piece nothing is seen there. How much that is shows in the middle of the pieces, as
    what the first half (`first_half`: the same question, of that) saves after its end. Where the
    question follows its processes, it is that share of what they are ahead of the others.
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
    # Half of a piece is the most that this can tell of.
    return 1 + min(later / saved, 1.0)


def replayed_s(answers: Sequence[Piece]) -> float:
    """Return how much time all pieces have that could be replayed, s."""
    return sum(one.length for one in answers) / 1e9


def saved_share(
    answers: Sequence[Piece], column: int
) -> tuple[float, float, list[tuple[int, int, float]]]:
    """Return what a question saves as a share, its standard error, and that by piece."""
    shares = piece_shares(answers, column)
    rows = [
        (one.start, one.end, share) for one, share in zip(answers, shares.tolist(), strict=True)
    ]
    lengths = np.array([max(one.length, 1.0) for one in answers])
    return total_share(answers, column), standard_error(shares, lengths), rows


def period_of(culprit_pieces: Sequence[tuple[int, int, float]]) -> tuple[int, int, bool]:
    """Return from when to when a cause cost something, and whether that is nearly all the time."""
    shares = np.array([share for _, _, share in culprit_pieces])
    top = float(np.sort(shares)[-max(len(shares) // 4, 1) :].mean())
    slow = np.flatnonzero(shares >= max(_PIECE_SLOW * top, TOLD_MIN))
    if not len(slow):
        slow = np.arange(len(shares))
    start, end = culprit_pieces[slow[0]][0], culprit_pieces[slow[-1]][1]
    return start, end, len(slow) >= WHOLE * len(shares)


def slow_times(rows: Sequence[tuple[int, int, float]]) -> list[list[int]]:
    """Return the times in which something cost much, each as the places of its pieces.

    Two are one when few pieces between them, beside the first, are as they should be.
    """
    if not rows:
        return []
    shares = np.array([share for _, _, share in rows])
    span = np.array([end - start for start, end, _ in rows], float)
    # A piece that is cut short, as a job's first one, says little of how slow it may be.
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
    """Return what was lost in some pieces, as a share of the time of all, as far as it is seen.

    `times_most`: of what the replay says, that may be told; more has another cause, too.
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
    """Return by what factor a cost in some pieces is to be corrected, 0: it is not believed.

    What costs time makes operations fewer: by how many a second is seen, whatever the replay says.
    It cannot say what the ranks' own work would have taken that was hidden behind slow transfers.
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
    # In few pieces it varies.
    exact = min(there.sum(), (~there).sum()) >= _RATE_PIECES_MIN and fewer <= times_most * share
    return fewer / share if exact else 1.0


def _cost_of_pieces(
    answers: Sequence[Piece], rows: Sequence[tuple[int, int, float]], some: Sequence[int]
) -> float:
    """Return what was lost in some pieces, as a share of all.

    Pieces are of one length of time, but for those that begin with a long stop. The part of one
    that can be replayed is smaller where operations are rare, because everything is slow; that must
    not make it count less.
    """
    span = np.array([one.end - one.start for one in answers], float)
    weight = np.maximum([one.length for one in answers], float(np.median(span)))
    for edge in (0, -1):  # the job began and ended within a piece
        weight[edge] = min(weight[edge], span[edge])
    return float(sum(rows[at][2] * weight[at] for at in some) / weight.sum())
