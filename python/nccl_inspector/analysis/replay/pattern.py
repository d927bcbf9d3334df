# SPDX-License-Identifier: Apache-2.0
"""The place of each operation in the repeated pattern of its program."""

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, medians
from nccl_inspector.analysis.replay.records import Records

_PERIOD_MAX, _PERIOD_ROWS, _PERIOD_SLACK = 160, 2000, 1.25


def find_period(logs: Floats) -> int:
    """Return after how many operations the pattern of intervals (logarithms) repeats.

    The result is 1 if it does not repeat. It is the shortest period that explains about as much as
    the best one.
    """
    most = min(_PERIOD_MAX, len(logs) // 3)
    if most < 2:
        return 1
    left = np.empty(most)
    for period in range(1, most + 1):
        whole = len(logs) // period * period
        table = logs[:whole].reshape(-1, period)
        # The deviation from the median of a few values is smaller than from the true median.
        few = len(table) / (len(table) - 1)
        left[period - 1] = few * np.mean(np.abs(table - np.median(table, axis=0)))
    good = left <= _PERIOD_SLACK * left.min() + 0.005
    return int(np.argmax(good)) + 1


def _phase(pattern: Floats, logs: Floats, period: int) -> int:
    """Return by how much a series of intervals is shifted against the pattern."""
    shifted = np.stack([np.roll(pattern, -shift) for shift in range(period)])
    wide = np.tile(shifted, -(-len(logs) // period))[:, : len(logs)]
    return int(np.abs(wide - logs).mean(axis=1).argmin())


def positions(records: Records, classes: Ints) -> Ints:
    """Return for each row its place in the pattern of its class of operations.

    One process and communicator (for Sends and Recvs: and one peer) stand for all. The pattern is
    found in the piece of time with the most operations, and the other pieces are shifted to fit it,
    because an evaluation shifts everything after it.
    """
    found = np.zeros(len(records), np.int64)
    for one in np.unique(classes):
        of_class = np.flatnonzero(classes == one)
        first = of_class[0]
        rows = of_class[
            (records.member[of_class] == records.member[first])
            & (records.comm[of_class] == records.comm[first])
            & (records.peer[of_class] == records.peer[first])
        ]
        pieces = np.bincount(records.piece[rows])
        template = rows[records.piece[rows] == int(pieces.argmax())][:_PERIOD_ROWS]
        logs = np.log(np.maximum(np.diff(records.begin[template]).astype(float), 1e3))
        period = find_period(logs)
        number = records.number[of_class]
        if period == 1:
            continue
        place = records.number[template[:-1]] % period
        pattern = medians(place, logs, period)
        pattern = np.nan_to_num(pattern, nan=float(np.median(logs)))
        shift = np.zeros(len(pieces), np.int64)
        for piece in np.flatnonzero(pieces > period).tolist():
            own = rows[records.piece[rows] == piece][: 4 * period + 1]
            own_logs = np.log(np.maximum(np.diff(records.begin[own]).astype(float), 1e3))
            start = int(records.number[own[0]]) % period
            shift[piece] = (_phase(pattern, own_logs, period) - start) % period
        known = np.minimum(records.piece[of_class], len(pieces) - 1)
        found[of_class] = (number + shift[known]) % period
    return found
