# SPDX-License-Identifier: Apache-2.0
"""How long each rank itself took before an operation, and how long its peers would have taken."""

from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    first_rows,
    medians,
    medians_of_others,
    number_rows,
    order_groups,
    order_rows,
)
from nccl_inspector.analysis.replay.batch_size import (
    NEARLY_ALL,
    batch_sizes,
    first_of_run,
    follow_batches,
    ready_by_batch,
)
from nccl_inspector.analysis.replay.blocking import PAIR_ROWS_MIN, QUEUED_NS
from nccl_inspector.analysis.replay.hidden_delays import own_with_chance
from nccl_inspector.analysis.replay.late_calls import GPU_MAX, called_later
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records

_MOSTLY = 0.8
# Share of a gap that is in the first one since the same cause already: beyond it, that is no sign
# of a batch but the delay itself. By the trials `host-launch*` and `gpu-fsdp-uneven`.
_FIRST_MAX = 0.7
_PACE_OTHERS_MIN = 2  # other processes whose steps must be known at the same place of the pattern
_PACE_STEPS_MIN = 8  # steps of the process itself at such places


@dataclass(frozen=True, slots=True)
class Gaps:
    """Own gaps by row in ns; NaN: not known.

    `own`: what the rank itself took, even if it then had to queue; `usual`: the gap at its peers'
    pace.
    """

    own: Floats
    usual: Floats


def find_gaps(records: Records, order: Order) -> Gaps:
    """Return the gaps that ranks had, and would have had at their peers' pace.

    The usual gap is the median of the peers' gaps at the same place. If most of them began as soon
    as their stream was free, nobody knows when they were ready. Then what is usual at that place of
    the pattern is used. If that is not known either, the gap is continued from the place before it,
    with the time in between at the pace that the rank has elsewhere.
    """
    known = ~np.isnan(order.gap)
    usual = np.full(len(records), np.nan)
    rows = np.flatnonzero(known)
    # Only gaps that are counted from the same operation are compared.
    place = number_rows(order.place, np.where(order.cause >= 0, order.place[order.cause], -1))
    usual[rows] = medians_of_others(place[rows], order.gap[rows])
    count = int(place.max()) + 1
    clear = np.bincount(place[rows], ~order.queued[rows], minlength=count)[place]
    every = np.bincount(place[rows], minlength=count)[place]
    # Only the others count: a rank must not decide itself whether it was late.
    murky = known & (2 * (clear - ~order.queued) < every - 1)
    # Gaps of one place of the pattern are comparable only if they are counted from the same place.
    spot = number_rows(order.spot, np.where(order.cause >= 0, order.spot[order.cause], -1))
    usual_there = _usual_at_other_times(records, order, spot, known)
    # If all were queued there, nothing else tells what the step from one begin to the next takes.
    nobody = order.beside & (clear == 0) & np.isnan(usual_there)
    usual_there = np.where(nobody, _usual_steps(order, known), usual_there)
    first = first_of_run(records, order)
    own_ready, usual_ready = ready_by_batch(records, order, usual, first)
    by_batch = murky & ~np.isnan(own_ready) & ~np.isnan(usual_ready)
    by_batch &= _mostly(np.where(order.cause >= 0, order.spot[order.cause], -1), murky, by_batch)
    usual_there = np.where(by_batch, usual_ready, usual_there)
    filled = murky & ~np.isnan(usual_there)
    usual = np.where(filled, np.minimum(usual_there, order.gap), usual)
    murky &= ~filled
    own = np.where(by_batch & order.queued, own_ready, order.gap)
    queued = order.queued & ~np.isnan(usual) & ~by_batch
    later = called_later(records, order, usual)
    found = _carry_on(records, order, place, Gaps(own, usual), murky, queued & ~murky, later, first)
    # What batches make of a gap is in it already. What the first gap since the same cause says of
    # the following ones is, too, where it says something.
    says = ~order.queued[first] & (found.usual[first] <= _FIRST_MAX * found.usual)
    guess = found.usual * _ratio(found.own, found.usual, first)
    guess = np.where(says, np.where(by_batch, own_ready, guess), np.nan)
    seen = np.flatnonzero(~order.queued & ~np.isnan(order.gap + guess))
    more, guessed = (order.gap - found.usual)[seen], (guess - found.usual)[seen]
    # From step to step: who is always late is so in its first gap, too.
    cell, groups = number_rows(spot[seen], records.member[seen]), int(spot.max()) + 1
    told = follow_batches(cell, spot[seen], more, guessed, groups, NEARLY_ALL)[spot]
    told &= ~np.isnan(guess)
    own = own_with_chance(records, order, found.own, found.usual, spot)
    if told.any():
        by_first = own_with_chance(records, order, found.own, guess, spot)
        own = np.where(told, by_first, own)
    return Gaps(own, found.usual)


def _mostly(groups: Ints, of: Mask, good: Mask) -> Mask:
    """Tell which rows are in groups with mostly good rows: a group must not mix two methods."""
    group = number_rows(groups)
    count = int(group.max()) + 1
    every, known = (np.bincount(group[some], minlength=count) for some in (of, good))
    found: Mask = (known >= _MOSTLY * every)[group]
    return found


def _usual_at_other_times(records: Records, order: Order, spot: Ints, known: Mask) -> Floats:
    """Return for each row what its peers take at its place of the pattern at most times.

    Peers that nearly always have to queue there tell nothing. NaN: at least half of them tell
    nothing.
    """
    cell = number_rows(spot, records.member)
    size = int(cell.max()) + 1
    every = np.bincount(cell[known], minlength=size)
    clear = known & ~order.queued
    seen = np.bincount(cell[clear], minlength=size)
    middle = medians(cell[clear], order.gap[clear], size)
    spot_of = np.zeros(size, np.int64)
    spot_of[cell] = spot
    told = np.flatnonzero((seen > 0) & (3 * seen >= every))
    others = medians(spot_of[told], middle[told], int(spot.max()) + 1)[spot_of]
    without = medians_of_others(spot_of[told], middle[told])
    others[told] = without
    # A process that is the only one not to queue is late; what it takes is not usual.
    spots = int(spot.max()) + 1
    members = np.bincount(spot_of, minlength=spots)[spot_of]
    clear_of = np.bincount(spot_of[told], minlength=spots)[spot_of]
    clear_of[told] -= 1
    others[2 * clear_of < members - 1] = np.nan
    return others[cell]


def _usual_steps(order: Order, known: Mask) -> Floats:
    """Return for each row counted from a begin what any process takes at its place of the pattern.

    If nobody is seen there often, it is what the nearest place takes, of those that do not take
    longer than what all take here, queueing included.
    """
    mine = order.beside & known
    found = np.full(len(known), np.nan)
    clear = np.flatnonzero(mine & ~order.queued)
    count = int(order.spot.max()) + 1
    often = np.bincount(order.spot[clear], minlength=count) >= PAIR_ROWS_MIN
    seen = np.flatnonzero(often)
    if not len(seen):
        return found
    middle = medians(order.spot[clear], order.gap[clear], count)
    most = medians(order.spot[mine], order.gap[mine], count)
    spots = np.flatnonzero(~np.isnan(most))
    nearest = np.full(count, np.nan)
    for spot in spots.tolist():
        fits = seen[middle[seen] <= most[spot]]
        if often[spot]:
            nearest[spot] = middle[spot]
        elif len(fits):
            nearest[spot] = middle[fits[np.abs(fits - spot).argmin()]]
    found[mine] = nearest[order.spot[mine]]
    return found


def _ratio(own: Floats, usual: Floats, at: Ints) -> Floats:
    """Return own / usual at some rows; 1 if it is not known."""
    there = np.maximum(at, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = own[there] / usual[there]
    fine = (at >= 0) & (usual[there] > QUEUED_NS) & np.isfinite(found)
    return np.where(fine, np.clip(found, 0.5, 2.0), 1.0)


def _pace_seen(records: Records, order: Order, previous: Ints, step: Floats, first: Ints) -> Floats:
    """Return each process's steps between operations, relative to those of others at any time.

    A process that always waits behind a late one shows its own pace only if it was late itself for
    once, for example by a pause. Without that, a rank that is late by the same time in each step
    looks like one that is slower in everything. NaN: too few others are known.
    """
    before = np.maximum(previous, 0)
    clear = (previous >= 0) & ~order.queued & ~order.queued[before] & (step > QUEUED_NS)
    rows = np.flatnonzero(clear)
    found = np.full(records.members, np.nan)
    if not len(rows):
        return found
    there = np.flatnonzero(previous >= 0)
    pair = number_rows(order.spot[there], order.spot[before[there]])
    cell, is_clear = number_rows(pair, records.member[there]), clear[there]
    cells, pairs = int(cell.max()) + 1, int(pair.max()) + 1
    # Who is rarely seen there is seen when its batch is large.
    times, sizes = np.log(step[rows]), batch_sizes(records, order, first)[rows]
    by_batch = follow_batches(cell[is_clear], pair[is_clear], times, sizes, pairs)
    times -= np.where(by_batch[pair[is_clear]], sizes, 0.0)
    middle = medians(cell[is_clear], np.exp(times), cells)
    count = np.bincount(cell[is_clear], minlength=cells)
    seen_mostly = 2 * count > np.bincount(cell, minlength=cells)
    one = first_rows(cell)  # in the order of cells
    pair_of, member_of = pair[one], records.member[there][one]
    # Each process has one vote, however rarely it is seen there. If only few are mostly seen, they
    # are late, too, such as all of a slow node.
    few = 2 * np.bincount(pair_of, seen_mostly) < np.bincount(pair_of)
    voices = np.flatnonzero((count > 0) & ~(seen_mostly & few[pair_of]))
    others = medians(pair_of[voices], middle[voices], pairs)[pair_of]
    others[voices] = medians_of_others(pair_of[voices], middle[voices])
    votes = np.bincount(pair_of[voices], minlength=pairs)[pair_of]
    votes[voices] -= 1
    enough = votes >= _PACE_OTHERS_MIN
    told = enough & (count > 0) & ~np.isnan(others) & (others > 0)
    ratio = middle[told] / others[told]
    seen = medians(member_of[told], ratio, records.members)
    often = np.bincount(member_of[told], count[told], minlength=records.members)
    return np.where(often >= _PACE_STEPS_MIN, seen, np.nan)


def _carry_on(
    records: Records, order: Order, place: Ints, gaps: Gaps, murky: Mask, queued: Mask,
    later: Floats, first: Ints,
) -> Gaps:  # fmt: skip
    """Continue gaps from the last place where they are known, operation by operation.

    `murky`: the usual gap there is not known. `queued`: it is known, but not what the rank itself
    took. `place`: rows with the same place are compared. `later`: by how much a rank calls later
    than its peers; what a host comes late by once does not come again at each place. `first`: of
    first_of_run.
    """
    usual, own = gaps.usual, gaps.own
    # The row before it, of the same process and with the same cause.
    run = number_rows(records.member, order.cause)
    by_run = order_rows(run, records.begin, records.begin)
    previous = np.full(len(records), -1, np.int64)
    same = (run[by_run][1:] == run[by_run][:-1]) & (order.cause[by_run][1:] >= 0)
    previous[by_run[1:][same]] = by_run[:-1][same]
    has = previous >= 0
    before = np.maximum(previous, 0)
    step = np.where(has, order.gap - order.gap[before], order.gap)
    usual_step = np.where(has, usual - usual[before], usual)
    host_ns = np.maximum(np.nan_to_num(np.where(has, later - later[before], later)), 0.0)
    # A rank's pace: its own steps / the usual ones, where both are known.
    clear = ~murky & ~order.queued & ~np.isnan(step) & (usual_step > QUEUED_NS)
    clear &= ~(has & order.queued[before])
    with np.errstate(invalid="ignore", divide="ignore"):
        late = np.where(clear, np.maximum(step - usual_step, 0.0), 0.0)
        by_host = np.minimum(host_ns, late)
        # The host of a slow GPU is a bit late, too, where it waits for it.
        sums = [np.bincount(records.member, some, records.members) for some in (by_host, late)]
        of_host = (sums[0] > GPU_MAX * sums[1])[records.member]
        host_ns, by_host = np.where(of_host, host_ns, 0.0), np.where(of_host, by_host, 0.0)
        ratio = np.where(clear, (step - by_host) / usual_step, np.nan)
    fine = ~np.isnan(ratio)
    pace = medians(records.member[fine], ratio[fine], records.members)
    seen = _pace_seen(records, order, previous, step, first)
    pace = np.where(np.isnan(seen), pace, seen)
    pace = np.clip(np.nan_to_num(pace, nan=1.0), 0.25, 4.0)
    depth = np.zeros(len(records), np.int64)
    begin_of_run = np.ones(len(by_run), dtype=bool)
    begin_of_run[1:] = ~same
    start = np.maximum.accumulate(np.where(begin_of_run, np.arange(len(by_run)), 0))
    depth[by_run] = np.arange(len(by_run)) - start
    by_depth = order_groups(depth)
    cuts = np.flatnonzero(np.diff(depth[by_depth])) + 1
    usual, own = usual.copy(), own.copy()
    # In the order of time, so that each row continues from the one before.
    for rows in np.split(by_depth, cuts):
        # A rank that was late or early at the place before is so here, in proportion.
        hidden = rows[queued[rows]]
        own[hidden] = np.fmin(
            order.gap[hidden], usual[hidden] * _ratio(own, usual, previous[hidden])
        )
        todo = rows[murky[rows]]
        if not len(todo):
            continue
        base = np.where(has[todo], usual[before[todo]], 0.0)
        # Rows that were not queued tell how long the step takes; all use their median.
        told = ~order.queued[todo]
        # Counted from when it was ready there, not from when its stream was free.
        own_base = np.where(has[todo], own[before[todo]], 0.0)
        took = np.maximum(order.gap[todo] - own_base - host_ns[todo], 0.0)
        ready = base + took / pace[records.member[todo]]
        here = number_rows(place[todo])
        middle = medians(here[told], ready[told], int(here.max()) + 1)[here]
        nobody = np.isnan(middle)
        # If all were queued, they may have been ready at any time since the operation before; at
        # once is assumed. Most were ready, at the latest, when most began: the only one not queued
        # is late.
        usual[todo] = np.fmin(np.where(nobody, base, middle), usual[todo])
        by_ratio = np.fmin(order.gap[todo], middle * _ratio(own, usual, previous[todo]))
        queued_own = np.where(nobody, own_base, by_ratio)
        own[todo] = np.where(told, order.gap[todo], queued_own)
    return Gaps(own, usual)
