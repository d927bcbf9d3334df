# SPDX-License-Identifier: Apache-2.0
"""A job id that Slurm gave again, and attempts that cannot be read."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.summary.attempts import Loaded, load_summaries
from nccl_inspector.summary.codec import NodeSummary, decode_head, encode
from tests.support.command_line import environment
from tests.support.summaries import FIRST, write_summary

DAY_S = 86400
FIRST_S = 100 * DAY_S


def put(reports: Path, node: str = "n1", **words: object) -> None:
    values: dict[str, object] = {"node": node, "nodelist": node, "start": FIRST_S, **words}
    write_summary(reports / "42", NodeSummary(replace(FIRST, **values), ()))  # type: ignore[arg-type]


def spoil(reports: Path, name: str, ahead_s: int) -> None:
    """Write one that cannot be read, so much later (or before) than all others were."""
    path = reports / "42" / f"{name}.nodesummary"
    path.write_bytes(b"garbage")
    written_s = path.stat().st_mtime + ahead_s
    os.utime(path, (written_s, written_s))


def shown(loaded: Loaded) -> tuple[str, int, int]:
    return loaded.head.user, loaded.head.restart, loaded.head.start


@pytest.mark.parametrize("uid", [1, 7], ids=["same user", "another"])
def test_the_newest_job_is_shown_though_the_older_had_more_attempts(
    tmp_path: Path, uid: int
) -> None:
    put(tmp_path, "n1", restart=1, uid=uid, user="bob")
    put(tmp_path, "n2", restart=0, start=FIRST_S + DAY_S)
    loaded = load_summaries(42, tmp_path, None)
    assert (shown(loaded), loaded.attempts) == (("amy", 0, FIRST_S + DAY_S), (0,))
    assert loaded.problems == (
        "n1: its summary of attempt 1 is of another job of this number (user bob, cluster c1)",
    )
    with pytest.raises(InspectorError, match="job 42 has no attempt 1; it has 0"):
        load_summaries(42, tmp_path, 1)


def test_of_the_newest_job_the_highest_attempt_is_shown(tmp_path: Path) -> None:
    put(tmp_path, "n1", restart=7, uid=7)
    for restart in (0, 1, 2):
        put(tmp_path, f"n{restart}", restart=restart, start=FIRST_S + DAY_S * (1 + restart))
    loaded = load_summaries(42, tmp_path, None)
    assert (shown(loaded), loaded.attempts) == (("amy", 2, FIRST_S + 3 * DAY_S), (0, 1, 2))
    assert load_summaries(42, tmp_path, 0).head.restart == 0


def test_a_higher_attempt_counts_where_the_clocks_of_nodes_differ(tmp_path: Path) -> None:
    put(tmp_path, "n1", restart=0, start=FIRST_S)
    put(tmp_path, "n2", restart=1, start=FIRST_S - 600)
    loaded = load_summaries(42, tmp_path, None)
    assert (loaded.head.restart, loaded.attempts, loaded.problems) == (1, (0, 1), ())


def test_the_many_nodes_of_an_older_job_are_one_line(tmp_path: Path) -> None:
    for number in range(1, 301):
        put(tmp_path, f"n{number}", nodelist="n[1-300]", uid=7, user="bob")
    put(tmp_path, "m1", start=FIRST_S + 1)
    assert load_summaries(42, tmp_path, None).problems == (
        "n[1-300]: the summaries are of another job of this number (user bob, cluster c1)",
    )


def test_a_latest_attempt_that_cannot_be_read_is_said_before_an_earlier_is_shown(
    tmp_path: Path,
) -> None:
    put(tmp_path, restart=0)
    spoil(tmp_path, "n1.1", 5)
    with pytest.raises(InspectorError) as told:
        load_summaries(42, tmp_path, None)
    assert str(told.value) == (
        "attempt 1 of job 42 cannot be read: n1: its summary cannot be read: "
        "bad_summary: no first line; --attempt 0 shows an earlier one"
    )
    assert load_summaries(42, tmp_path, 0).problems == ()
    with pytest.raises(InspectorError, match="attempt 1 of job 42 cannot be read: n1: "):
        load_summaries(42, tmp_path, 1)


def test_what_was_written_before_the_newest_job_and_cannot_be_read_does_not_matter(
    tmp_path: Path,
) -> None:
    put(tmp_path, restart=1)
    spoil(tmp_path, "n1.0", -DAY_S)
    spoil(tmp_path, "n1.2", -DAY_S)
    loaded = load_summaries(42, tmp_path, None)
    assert (loaded.head.restart, loaded.attempts, loaded.problems) == (1, (1,), ())


def test_a_first_attempt_written_last_that_cannot_be_read_may_be_a_newer_job_and_is_told(
    tmp_path: Path,
) -> None:
    put(tmp_path, restart=1)
    spoil(tmp_path, "n2.0", DAY_S)
    (problem,) = load_summaries(42, tmp_path, None).problems
    assert problem.startswith("n2: its summary of attempt 0, written after these, cannot be read")


def test_a_head_longer_than_the_usual_is_read_whole(tmp_path: Path) -> None:
    nodelist = ",".join(f"n{number}x" for number in range(1, 4000, 2))
    put(tmp_path, "n1x", nodelist=nodelist)
    assert load_summaries(42, tmp_path, None).head.nodelist == nodelist


@pytest.mark.parametrize("data", [b"", b"{}\n", b"{", b"[]\n", b"{}" * 5000, b"\xff\n"])
def test_a_first_line_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match="bad_summary"):
        decode_head(data)


def test_a_first_line_needs_nothing_after_it() -> None:
    data = encode(FIRST, [b"x" * 100])
    assert decode_head(data[: data.index(b"\n") + 1]) == FIRST


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_the_older_jobs_summaries_are_not_the_new_users_to_read(open_path: Path) -> None:
    put(open_path, "n1", restart=1, uid=7, user="bob")
    older = open_path / "42" / "n1.1.nodesummary"
    older.chmod(0o600)
    put(open_path, "n2", start=FIRST_S + DAY_S)
    (open_path / "42" / "n2.0.nodesummary").chmod(0o644)
    code = "import os, sys; from pathlib import Path\n"
    code += "from nccl_inspector.summary.attempts import load_summaries as load\n"
    code += "os.setuid(65534); loaded = load(42, Path(sys.argv[1]), None)\n"
    code += "print(loaded.head.user, loaded.head.restart, loaded.problems)"

    def told() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, open_path],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        return done.stdout + done.stderr

    os.utime(older, (FIRST_S, FIRST_S))
    assert told() == "amy 0 ()\n"
    os.utime(older)
    assert "attempt 1 of job 42 cannot be read: n1: " in told()
    assert "unreadable: Permission denied; --attempt 0 shows an earlier one" in told()
