# SPDX-License-Identifier: Apache-2.0
"""Times and job numbers as users of sacct write them."""

from datetime import UTC, datetime

import click
import pytest

from nccl_inspector.commands.history import read_time
from nccl_inspector.slurm.job_argument import job_ids

NOW = datetime(2026, 8, 3, 14, 30, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", NOW),
        ("now-90", datetime(2026, 8, 3, 14, 28, 35, tzinfo=UTC)),
        ("now-1day", datetime(2026, 8, 2, 14, 30, 5, tzinfo=UTC)),
        ("now-2hours", datetime(2026, 8, 3, 12, 30, 5, tzinfo=UTC)),
        ("12h", datetime(2026, 8, 3, 2, 30, 5, tzinfo=UTC)),
        ("1w", datetime(2026, 7, 27, 14, 30, 5, tzinfo=UTC)),
        ("today", datetime(2026, 8, 3, tzinfo=UTC)),
        ("Yesterday", datetime(2026, 8, 2, tzinfo=UTC)),
        ("noon", datetime(2026, 8, 3, 12, tzinfo=UTC)),
        ("08:30", datetime(2026, 8, 3, 8, 30, tzinfo=UTC)),
        ("2026-08-01", datetime(2026, 8, 1, tzinfo=UTC)),
        ("2026-08-01T08:30:15", datetime(2026, 8, 1, 8, 30, 15, tzinfo=UTC)),
        ("08/01/26", datetime(2026, 8, 1, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_as_sacct_reads_it(text: str, meant: datetime) -> None:
    assert read_time(text, NOW.timestamp()) == meant.timestamp()


@pytest.mark.parametrize(
    "text", ["soon", "12", "now+1day", "2026-13-01", "25:00", "-1d", "\u0661h"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        read_time(text, NOW.timestamp())


def test_job_numbers_are_divided_by_commas() -> None:
    context, option = click.Context(click.Command("x")), click.Option(["-j"])
    assert job_ids(context, option, "4711,4712") == (4711, 4712)
    assert job_ids(context, option, "") == ()
    with pytest.raises(click.BadParameter, match="not a job id"):
        job_ids(context, option, "4711;rm")
