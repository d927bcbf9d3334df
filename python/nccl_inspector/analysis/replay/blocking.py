# SPDX-License-Identifier: Apache-2.0
"""Which operations a program waits for before it goes on, found from their times.

An operation *blocks* what follows if the next begin keeps its distance from the operation's end,
however long the operation had to wait for its last rank. If the next one is only queued behind it,
or runs beside it, its begin comes closer by as much as the operation waited.
"""

from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    first_rows,
    last_before,
    medians,
    number_rows,
)
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.stages import comm_classes

# If an operation begins this soon after the end of the last one on its stream, it began as soon as
# the stream was free, so it is not known when its rank was ready. Kernels follow each other within
# some microseconds.
QUEUED_NS = 25_000
PAIR_ROWS_MIN = 8  # fewer observations of a pair of kinds tell nothing
_WAIT_NS_MIN = 10_000.0  # less variation of the waiting cannot show anything
_CLEARLY = 0.35  # two spreads whose logarithms differ by more than this do not differ by chance
_NO_CHANGE = 0.002  # share of a distance by which the clocks let it vary in any case
_SLOPE_ERROR_MAX = 0.2
_SLOPE_AWAY_MAX = 1.0  # distance of the slope from 0 or -1: beyond it, neither answer explains it
_SLOPE_CLEAR_MAX = 0.25
_MUCH_SHARE = 0.005  # waiting, as a share of the time from an end to the next begin
_ODD_TIMES, _WIDE_TIMES = 4.0, 8.0  # in median deviations
# Behind an operation that was queued, the median time between two begins must be this
# share of what it is without queueing. (Rings in the trials: 0.99 to 1.01; buckets: up to 0.92.)
_HELD_ALIKE = 0.95
_HELD_POSITIVE = 0.5  # median queueing, as a share of the median of its absolute value
# Logarithm of the errors of the two predictions: rings have 0.6 and more, buckets up to 0.4.
_HELD_CLEARLY = 0.5
_BLOCKS_SLOPE = 0.5  # limit of the slope of next begin against waiting: 0 blocks, -1 does not


def _followers(records: Records) -> Ints:
    """Return for each row the first row of its process that began after its end; -1: none."""
    count = len(records)
    rows = np.arange(count)
    # The first begin that is not before an end is the last one if time is reversed.
    turned = int(records.end.max()) - records.begin
    until = int(records.end.max()) - records.end
    found = last_before(records.member, turned, records.member, until)
    there = np.maximum(found, 0)
    same = (found >= 0) & (records.run[there] == records.run[rows])
    same &= records.piece[there] - records.piece[rows] <= 1
    return np.where(same, found, -1)


def _pair_classes(follower: Ints, kind: Ints, position: Ints) -> Ints:
    """Return the class of each (row, follower): both kinds, and the place in the pattern.

    The place matters because all buckets of a program are of one kind, and only the last one of a
    step is waited for.
    """
    after = np.where(follower >= 0, kind[np.maximum(follower, 0)], -1)
    return number_rows(kind, after, position)


def _elsewhere(records: Records, follower: Ints) -> Ints:
    """Return for each row the latest row of another stream that ended before its follower began."""
    rows = np.flatnonzero(follower >= 0)
    found = np.full(len(records), -1, np.int64)
    owner = number_rows(records.run, records.member)
    classes = comm_classes(records)[records.comm]
    latest = np.full(len(rows), -(1 << 62), np.int64)
    for one in np.unique(classes):
        of_class = np.flatnonzero(classes == one)
        at = last_before(
            owner[of_class], records.end[of_class], owner[rows], records.begin[follower[rows]]
        )
        row = np.where(at >= 0, of_class[np.maximum(at, 0)], -1)
        better = (row >= 0) & (classes[rows] != one) & (records.end[np.maximum(row, 0)] > latest)
        found[rows[better]] = row[better]
        latest[better] = records.end[row[better]]
    return found


def _residual(values: Floats, *groups: Ints) -> Floats:
    """Return the values after subtracting the median of each of their groups."""
    for one in groups if len(values) else ():
        values = values - medians(one, values, int(one.max()) + 1)[one]
    return values


@dataclass(frozen=True, slots=True)
class _Clues:
    """What is known of the blocking, by class of (row, follower)."""

    seen: Ints
    told: Mask
    blocks: Mask
    clear: Mask  # the slope is close to one of the two answers


def _slopes(
    classes: Ints, alike: Ints, moved: Floats, delayed: Floats, count: int
) -> tuple[Floats, Floats]:
    """Return by class the slope of `moved` against `delayed`, and its standard error.

    `alike`: groups within which values are compared, because stages of the job differ.
    """
    moved, delayed = _residual(moved, alike), _residual(delayed, alike)
    # Rows that neither answer explains, such as a pause or the slow first steps, must not decide
    # it.
    odd = np.minimum(np.abs(moved), np.abs(moved + delayed))
    used = odd <= _ODD_TIMES * medians(classes, odd, count)[classes] + 1e3
    classes, alike, moved, delayed = classes[used], alike[used], moved[used], delayed[used]
    moved, delayed = _residual(moved, alike), _residual(delayed, alike)
    # Nor must a few extreme values.
    wide = medians(classes, np.abs(delayed), count)[classes] * _WIDE_TIMES + 1e3
    scale = medians(classes, np.abs(moved), count)[classes] * _WIDE_TIMES + 1e3
    moved, delayed = np.clip(moved, -scale, scale), np.clip(delayed, -wide, wide)
    seen = np.bincount(classes, minlength=count)
    both = np.bincount(classes, moved * delayed, minlength=count)
    square = np.bincount(classes, delayed * delayed, minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = both / square
        left = moved - slope[classes] * delayed
        noise = np.bincount(classes, left * left, minlength=count) / np.maximum(seen - 2, 1)
        error = np.sqrt(noise / square)
    error[(seen < PAIR_ROWS_MIN) | (np.sqrt(square / np.maximum(seen, 1)) < _WAIT_NS_MIN)] = np.nan
    return slope, error


def _by_slope(place: Ints, stage: Ints, classes: Ints, pairs: Ints, rows: Ints, far: Floats,
              waited: Floats, count: int) -> _Clues:  # fmt: skip
    """Test whether what follows comes closer by as much as the ranks had to wait.

    The test uses the median of the ranks that waited, from one time to the next, because how long
    they wait depends on the last rank. (One rank's own pace would change its waiting and its next
    begin by the same amount, blocked or not.) `pairs`: classes without the place in the pattern,
    used if a class has too few rows.
    """
    least = np.full(int(place.max()) + 1, np.inf)
    np.minimum.at(least, place[rows], waited[rows])
    held = rows[waited[rows] > least[place[rows]]]
    seen = np.bincount(classes[rows], minlength=count)
    if not len(held):
        return _Clues(seen, np.zeros(count, bool), np.ones(count, bool), np.zeros(count, bool))
    here = number_rows(classes[held], place[held])
    size = int(here.max()) + 1
    moved, delayed = medians(here, far[held], size), medians(here, waited[held], size)
    one = first_rows(here)
    fine, coarse = classes[held][one], pairs[held][one]
    alike = number_rows(fine, stage[held][one])
    slope, error = _slopes(fine, alike, moved, delayed, count)
    of_pair = np.zeros(count, np.int64)
    of_pair[classes[rows]] = pairs[rows]
    many = int(pairs.max()) + 1
    slope2, error2 = _slopes(coarse, alike, moved, delayed, many)
    poor = ~(error < _SLOPE_ERROR_MAX)
    slope = np.where(poor, slope2[of_pair], slope)
    error = np.where(poor, error2[of_pair], error)
    # Any other slope has another reason.
    away = np.minimum(np.abs(slope), np.abs(slope + 1))
    told = (error < _SLOPE_ERROR_MAX) & (away <= _SLOPE_AWAY_MAX)
    return _Clues(seen, told, ~(slope < -_BLOCKS_SLOPE), away <= _SLOPE_CLEAR_MAX)


def _by_constancy(records: Records, classes: Ints, rows: Ints, far: Floats, count: int,
                  follower: Ints) -> _Clues:  # fmt: skip
    """Test from which end the next begin keeps its distance: this one, or one of another stream."""
    other = _elsewhere(records, follower)
    rows = rows[other[rows] >= 0]
    seen = np.bincount(classes[rows], minlength=count)
    if not len(rows):
        return _Clues(seen, np.zeros(count, bool), np.ones(count, bool), np.zeros(count, bool))
    farther = (records.begin[follower[rows]] - records.end[other[rows]]).astype(float)
    own = number_rows(classes[rows], records.member[rows])
    here = medians(classes[rows], np.abs(_residual(far[rows], own)), count)
    there = medians(classes[rows], np.abs(_residual(farther, own)), count)
    told = (seen >= PAIR_ROWS_MIN) & (np.abs(np.log((here + 500) / (there + 500))) > _CLEARLY)
    return _Clues(seen, told, here < there, told)


def nearer_begin(records: Records, rows: Ints, since: Ints, alike: Ints) -> Ints:
    """Tell which rows keep their distance from the begin of `since` better than from its end.

    1: clearly from the begin, -1: clearly from the end, 0: neither, or nobody knows. `rows` tell it
    for all that are `alike`. Distances are compared as ratios, because with larger batches all of
    them are longer.
    """
    there = since[rows]
    own = number_rows(alike[rows], records.member[rows])
    from_end, from_begin = (
        medians(
            alike[rows],
            np.abs(_residual(np.log(np.maximum(records.begin[rows] - times[there], 500.0)), own)),
            int(alike.max()) + 1,
        )
        for times in (records.end, records.begin)
    )
    times = np.nan_to_num(np.log((from_end + _NO_CHANGE) / (from_begin + _NO_CHANGE)))
    found: Ints = np.where(np.abs(times) > _CLEARLY, np.sign(times), 0).astype(np.int64)[alike]
    return found


def works_beside(
    records: Records, place: Ints, spot: Ints, kind: Ints, before: Ints, cause: Ints, queued: Mask,
    blocks: Mask, shifts: Mask,
) -> Mask:  # fmt: skip
    """Tell which rows begin a constant time after the begin of the operation before them.

    Whether computing goes on from there shows when that operation (`before`) had to queue behind a
    third one. If the time between the two begins is what it is without queueing, what was computed
    meanwhile needed the third one. It is shorter by as long as the queueing took if the rank has
    computed on all the time, since `cause`.

    The two begins alone tell it of `shifts`, kernels that send and receive: what the next one
    sends, or what it is computed from, this one has received.
    """
    there = np.maximum(before, 0)
    third = np.where(before >= 0, before[there], -1)
    step = (records.begin - records.begin[there]).astype(float)
    mine = (before >= 0) & ~queued & (step > QUEUED_NS)
    if not mine.any():
        return mine
    alike = number_rows(spot, spot[there])
    count = int(alike.max()) + 1
    clear = np.flatnonzero(mine & ~queued[there])
    usual = medians(alike[clear], step[clear], count)[alike]
    since_end = (records.begin - records.end[np.maximum(cause, 0)]).astype(float)
    like = number_rows(spot, np.where(cause >= 0, spot[cause], -1), records.member)
    told = np.flatnonzero(~queued & (cause >= 0))
    held = (since_end - medians(like[told], since_end[told], int(like.max()) + 1)[like])[there]
    needed = cause[there]
    # What keeps its distance from an end as well is told by that end, and waits for no third one.
    nearer = nearer_begin(records, np.flatnonzero(mine), before, alike)
    free = (before >= 0) & (~blocks[there] | (nearer > 0))
    asked = mine & free & queued[there] & (third >= 0) & (needed >= 0) & ~np.isnan(usual + held)
    rows = np.flatnonzero(asked)
    pair = number_rows(kind[there], kind)
    many = int(pair.max()) + 1
    seen = np.bincount(pair[rows], minlength=many)
    own = number_rows(alike[rows], spot[needed[rows]])
    since = (records.begin[rows] - records.end[needed[rows]]).astype(float)
    from_end, from_begin = (
        medians(pair[rows], np.abs(_residual(values, own)), many) for values in (since, step[rows])
    )
    some = (seen >= PAIR_ROWS_MIN) & (from_end >= from_begin)
    # No queueing lasts less than no time: what is below 0 as often as above it is chance.
    much, any_way = (
        medians(pair[rows], values, many) for values in (held[rows], np.abs(held[rows]))
    )
    some &= much >= _HELD_POSITIVE * any_way
    apart = (step - usual)[rows]
    wrong, right = (
        medians(pair[rows], np.abs(values), many) for values in (apart + held[rows], apart)
    )
    some &= np.log((wrong + 500) / (right + 500)) > _HELD_CLEARLY
    some &= medians(pair[rows], step[rows] / usual[rows], many) >= _HELD_ALIKE
    asking = mine & shifts & shifts[there]
    for_begin, for_end = (
        np.bincount(pair[asking & (nearer == sign)], minlength=many) for sign in (1, -1)
    )
    shifting = (for_begin >= PAIR_ROWS_MIN) & (for_begin > for_end)
    # Where all are queued but the one that is late, nothing tells it but the other places.
    free |= shifting[pair] & shifts & shifts[there] & (before >= 0) & (nearer == 0)
    found = (some | shifting)[pair] & free
    # The program is the same on all ranks of a stage.
    every = np.bincount(place)
    return found & (np.bincount(place, found)[place] > 0.5 * every[place])


def _of_several(classes: Ints, stage: Ints, rows: Ints, count: int) -> Mask:
    """Tell which classes have rows of several stages."""
    most, least = np.full(count, -1), np.full(count, 1 << 62)
    np.maximum.at(most, classes[rows], stage[rows])
    np.minimum.at(least, classes[rows], stage[rows])
    found: Mask = most > least
    return found


def blocking(
    records: Records, place: Ints, stage: Ints, kind: Ints, position: Ints, waited: Floats
) -> tuple[Mask, float]:
    """Return which rows block what follows, and the share of rows for which that is known."""
    follower = _followers(records)
    classes = _pair_classes(follower, kind, position)
    count = int(classes.max()) + 1
    has = (follower >= 0) & ~np.isnan(waited)
    after = np.maximum(follower, 0)
    far = np.where(has, records.begin[after] - records.end, np.nan).astype(float)
    at_once = has & (records.comm[after] == records.comm) & (far < QUEUED_NS)
    rows = np.flatnonzero(has & ~at_once)
    every = np.bincount(classes[has], minlength=count)
    queued = np.bincount(classes[at_once], minlength=count) > 0.5 * np.maximum(every, 1)
    if not len(rows):
        return ~queued[classes] & (follower >= 0), 0.0
    pairs = number_rows(kind, kind[after])
    slope = _by_slope(place, stage, classes, pairs, rows, far, waited, count)
    constant = _by_constancy(records, classes, rows, far, count, follower)
    # Being nearer to this end than to that of the other stream does not prove that either is near.
    # To overrule it takes a clear slope: if hardly anybody waits, chance decides the slope.
    much = medians(classes[rows], waited[rows] - _MUCH_SHARE * far[rows], count) > 0
    # If stages of a pipeline share a place of the pattern, their distances are not the same.
    held = slope.told & slope.blocks & slope.clear & much & _of_several(classes, stage, rows, count)
    elsewhere = constant.told & ~constant.blocks & ~held
    free = slope.told & ~slope.blocks & (~constant.told | (much & slope.clear))
    blocks = ~elsewhere & ~free
    told = constant.told | slope.told | queued
    known = float(every[told].sum()) / max(float(every.sum()), 1.0)
    return (blocks & ~queued)[classes] & (follower >= 0), known
