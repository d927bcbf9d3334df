# SPDX-License-Identifier: Apache-2.0
"""A packed time line as columns: the same numbers as by way of its windows, or a refusal."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from nccl_inspector.analysis.slow_times.line_columns import (
    columns_of,
    columns_of_packed,
    common_window_s,
)
from nccl_inspector.analysis.slow_times.series import WINDOWS_MAX, make_track
from nccl_inspector.errors import RefusedError
from nccl_inspector.summary.columns import START_S_MAX, pack_line, unpack_line
from tests.support.full_boxes import big_process, full_box, read, spoil


def test_both_ways_to_unpack_a_line_agree() -> None:
    for line in big_process().lines:
        one, other = columns_of(line, 3), columns_of_packed(pack_line(line), 3)
        for name in one.__slots__:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_a_spoilt_line_is_refused_by_both_or_read_alike() -> None:
    good = pack_line(read(bytes(full_box())).lines[0])
    seen = 0
    for spoilt in spoil(good, 9):
        with suppress(RefusedError):
            other = columns_of_packed(spoilt, 0)
            # What both take they take alike; the numpy way also refuses what does not rise.
            assert np.array_equal(columns_of(unpack_line(spoilt), 0).ops, other.ops)
            seen += 1
    assert seen, "nothing was read at all"
    with pytest.raises(RefusedError):
        columns_of_packed(good[:-1], 0)


def test_lengths_of_windows_without_a_common_multiple_take_no_memory_and_no_error() -> None:
    """As boxes may claim them: their least common multiple does not fit a word."""
    assert common_window_s([10, 20, 40]) == 40
    assert common_window_s([2**31 - 1, 2**31 - 2, 2**31 - 3]) == START_S_MAX + 1
    (line, *_) = (columns_of(one, 0) for one in big_process().lines)
    odd = [replace(line, window_s=one) for one in (2**31 - 1, 2**31 - 2, 2**31 - 3)]
    assert make_track(odd, 3).windows <= WINDOWS_MAX


def test_a_line_with_a_window_longer_than_all_of_time_is_refused() -> None:
    line = read(bytes(full_box())).lines[0]
    with pytest.raises(RefusedError):
        unpack_line(pack_line(replace(line, window_s=1 << 40, windows=line.windows[:1])))
