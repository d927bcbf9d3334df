# SPDX-License-Identifier: Apache-2.0
"""A job of a week, and lines of its output."""

from dataclasses import replace
from datetime import UTC, datetime

from nccl_inspector.analysis.slow_times.throughput import LINE_BYTES_MAX
from nccl_inspector.settings.config import parse_config
from tests.support.summaries import HEAD

CONFIG = parse_config("", "none")
# A week around the end of summer time, 2026-10-25 01:00 UTC.
START = int(datetime(2026, 10, 22, tzinfo=UTC).timestamp())
WEEK = replace(HEAD, job_start=START, start=START, end=START + 7 * 86400)
LINES = (
    "[2026-10-23 12:00:00] throughput per GPU: 300 TFLOP/s\n"
    "[2026-10-27 11:00:00] throughput per GPU: 310 TFLOP/s\n"
)
# Each with a part that the built-in patterns once looked at again from each of its places.
HOSTILE = (
    "throughput per GPU:" + " " * LINE_BYTES_MAX,
    "throughput per GPU: ~" + " " * LINE_BYTES_MAX,
    "throughput per GPU" + " " * LINE_BYTES_MAX,
    "throughput per GPU: " + "1" * LINE_BYTES_MAX,
    "throughput per GPU (" * (LINE_BYTES_MAX // 20),
    "elapsed time per iteration (ms):" + " " * LINE_BYTES_MAX,
)
