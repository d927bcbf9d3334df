# SPDX-License-Identifier: Apache-2.0
"""What a summary keeps of NCCL's logs, and what of a user's bytes is refused."""

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from nccl_inspector.errors import RefusedError
from nccl_inspector.report.kept_logs import JOB_CHARS_MAX, kept_logs
from nccl_inspector.summary.codec import NodeSummary
from nccl_inspector.summary.nccl_logs import (
    FILE_CHARS_MAX,
    LogFile,
    excerpt,
    fit,
    pack_logs,
    unpack_logs,
)
from tests.support.summaries import HEAD

LINE = "n1:1:1 [0] NCCL WARN x"


def packed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value).encode())


def test_only_lines_that_say_something_are_kept_and_they_stay_whole() -> None:
    text = f"\nnoise\n{LINE}\n  n1:1:1 [0] NCCL INFO Using network IB\nend".encode()
    found = excerpt("a.log", text)
    assert found == LogFile("a.log", False, f"{LINE}\n  n1:1:1 [0] NCCL INFO Using network IB")
    assert unpack_logs(pack_logs([found])) == (found,)


def test_of_too_many_lines_the_first_and_the_last_stay_whole() -> None:
    lines = [f"n1:1:1 [0] NCCL WARN line {at}" for at in range(100)]
    found = fit(LogFile("a.log", False, "\n".join(lines)), 500)
    kept = found.text.splitlines()
    assert found.is_cut
    assert len(found.text) <= 500
    assert (kept[0], kept[-1]) == (lines[0], lines[-1])
    assert set(kept) <= set(lines)


def test_without_lines_nothing_is_kept() -> None:
    assert pack_logs([excerpt("a.log", b"nothing of NCCL's\n")]) == b""
    assert unpack_logs(b"") == ()


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        packed(None),
        packed({}),
        packed([1]),
        packed([["a", False]]),
        packed([["a", 0, LINE]]),
        packed([[1, False, LINE]]),
        packed([["a", False, None]]),
        packed([["a" * 300, False, LINE]]),
        packed([["a", False, "x" * (FILE_CHARS_MAX + 2)]]),
        zlib.compress(b" " * (32 << 20)),
        zlib.compress(b"[" * 100_000),
    ],
)
def test_what_is_no_log_is_refused_and_left_out_of_the_report(data: bytes) -> None:
    with pytest.raises(RefusedError):
        unpack_logs(data)
    assert kept_logs([NodeSummary(HEAD, (), nccl_logs=data)]) == ()


def test_the_logs_of_very_many_nodes_are_bounded() -> None:
    row = ["nccl.1.0.0.0.n1.1.log", False, f"{LINE}\n" * (FILE_CHARS_MAX // 24)]
    data = packed([row] * 20)
    nodes = [NodeSummary(replace(HEAD, node=f"n{at}"), (), nccl_logs=data) for at in range(100)]
    kept = sum(len(one.file.text) for one in kept_logs(nodes))
    assert JOB_CHARS_MAX * 0.9 < kept <= JOB_CHARS_MAX
