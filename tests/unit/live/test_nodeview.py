# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from nccl_inspector.agent.beat_age import Now
from nccl_inspector.box.layout import COMM, HEADER
from nccl_inspector.errors import InspectorError
from nccl_inspector.live.nodeview import NodeView
from nccl_inspector.live.view import LOCAL, TroubleKind
from tests.support.boxes import COMM_AT, JOB_UID, CommOf, KeyOf, write_box, write_user_file
from tests.support.live_node import (
    Node,
    give_link,
    kinds,
    only,
    op,
    put_word,
    rank_box,
    rewrite,
    words,
)
from tests.support.marks import as_root
from tests.support.repository import PYTHON_DIR


def test_the_first_look_has_no_rates_and_invents_none(node: Node) -> None:
    node.start(node.job(), "0_1", rank_box(0, [2.0] * 8))
    view = node.look()
    assert view.span_s is None
    assert only(view).flow is None
    assert only(view).ranks[0].flow is None


def test_rates_are_of_what_was_counted_between_two_looks(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter((100.0, 100.0, 102.0, 102.0))  # when each begins, and reads the box
    monkeypatch.setattr(
        "nccl_inspector.live.node_look.now", lambda: Now(time.time_ns(), next(looks))
    )
    path = node.start(node.job(), "0_1", rank_box(0, [50.0] * 10))
    view = node.view()
    view.look()
    rewrite(path, rank_box(0, [50.0] * 10 + [2.0] * 5))
    seen = view.look()
    flow = only(seen).flow
    assert flow
    assert seen.span_s == 2.0
    assert flow.operations_per_s == 2.5
    assert flow.gbs() == {LOCAL: pytest.approx((1 << 20) / 0.002 / 1e9)}


def test_a_group_is_not_counted_beside_its_sends_and_receives(node: Node) -> None:
    box = rank_box(0)
    box.keys = [KeyOf(0, [2_000_000] * 3, func=9), KeyOf(0, [2_000_000] * 3, func=11, algo=8)]
    path = node.start(node.job(), "0_1", rank_box(0))
    view = node.view()
    view.look()
    rewrite(path, box)
    flow = only(view.look()).flow
    assert flow
    assert flow.busy_s == {"p2p": pytest.approx(0.006)}


def test_who_comes_late_is_named_and_the_others_wait(node: Node) -> None:
    raw = node.job()
    paths = [node.start(raw, f"0_{rank}", rank_box(rank)) for rank in (0, 1)]
    view = node.view()
    view.look()
    for rank, path in enumerate(paths):
        rewrite(path, rank_box(rank, [42.0 if rank == 0 else 2.0] * 20))
    job = only(view.look())
    assert kinds(job) == [TroubleKind.LATE]
    assert words(job).startswith("rank 1 (n1, GPU0) comes late by 40")
    assert job.flow
    assert job.flow.waiting == pytest.approx(40 / 44, rel=0.03)
    assert [rank.name for rank in job.ranks] == ["rank 1", "rank 0"]


def test_one_rank_alone_has_no_waiting_share(node: Node) -> None:
    path = node.start(node.job(), "0_1", rank_box(0))
    view = node.view()
    view.look()
    rewrite(path, rank_box(0, [5.0] * 20))
    flow = only(view.look()).flow
    assert flow
    assert flow.waiting is None


@pytest.mark.usefixtures("still")
def test_a_killed_process_is_lost_and_comes_first(node: Node) -> None:
    node.start(node.job(41), "0_1", rank_box(0, operations=[op(600)]))
    raw = node.job(42)
    write_box(raw, "0_1", rank_box(0, ago_s=30))
    node.start(raw, "0_2", rank_box(1))
    view = node.look()
    assert [job.id for job in view.jobs] == [42, 41]
    worst = view.jobs[0]
    assert (worst.alive, worst.expected) == (1, 2)
    assert words(worst) == ("rank 0 (n1, GPU0) died without finalizing; its last beat was 30 s ago")


def test_a_process_that_ended_in_order_is_not_shown(node: Node) -> None:
    box = rank_box(0)
    box.state = 2
    write_box(node.job(), "0_1", box)
    assert only(node.look()).expected == 0


@pytest.mark.usefixtures("still")
def test_a_process_without_beats_has_stopped(node: Node) -> None:
    raw = node.job()
    node.start(raw, "0_1", rank_box(0, ago_s=40))
    node.start(raw, "0_2", rank_box(1, ago_s=5))
    job = only(node.look())
    assert (job.alive, job.expected) == (1, 2)
    assert words(job).startswith("rank 0 (n1, GPU0) has not beaten for 40 s")


def test_a_denied_process_never_beats_and_is_not_said_to_have_stopped(node: Node) -> None:
    node.start(node.job(), "0_1", rank_box(0, ago_s=4000, silent=2))
    job = only(node.look())
    assert kinds(job) == [TroubleKind.UNMEASURED]
    assert "NCCL 2.30.7 is on the deny list" in words(job)


def test_a_receive_posted_for_hours_is_no_trouble_and_hides_none(node: Node) -> None:
    posted = op(7200, peer=1)
    raw = node.job()
    node.start(raw, "0_1", rank_box(0, operations=[posted]))
    assert kinds(only(node.look())) == []
    node.start(raw, "0_2", rank_box(1, operations=[posted, op(90)], ago_s=2))
    job = only(node.look())
    assert kinds(job) == [TroubleKind.HUNG]
    assert "AllReduce" in words(job)


@pytest.mark.usefixtures("still")
def test_an_old_operation_is_named_with_who_did_not_call_it(node: Node) -> None:
    raw = node.job()
    called = [op(70, index=12), op(90, index=11)]
    waiting = node.start(raw, "0_1", rank_box(0, operations=called, ago_s=2))
    node.start(raw, "0_2", rank_box(1))
    put_word(waiting, COMM_AT + COMM.offsets["enqueued"], 12)
    job = only(node.look())
    assert kinds(job) == [TroubleKind.ABSENT, TroubleKind.HUNG]
    assert words(job) == (
        "rank 1 (n1, GPU0) did not call AllReduce of 1-2MB in world, in which 1 rank of this node "
        "has waited 92 s, and has nothing in flight\n"
        "rank 0 (n1, GPU0) has waited 92 s in AllReduce of 1-2MB in world, "
        "which rank 1 of this node did not call"
    )
    assert [rank.name for rank in job.ranks] == ["rank 1", "rank 0"]
    assert job.oldest_s == pytest.approx(92, abs=1)


@pytest.mark.usefixtures("still")
def test_who_did_not_call_but_waits_itself_is_not_named(node: Node) -> None:
    raw = node.job()
    waiting = node.start(raw, "0_1", rank_box(0, operations=[op(90, index=12)], ago_s=2))
    other = rank_box(1, operations=[op(80, comm=1, index=10)])
    across = CommOf(id=8, rank=0, nranks=2, nnodes=2, name="across")
    other.comms = [*other.comms, across]
    node.start(raw, "0_2", other)
    put_word(waiting, COMM_AT + COMM.offsets["enqueued"], 12)
    job = only(node.look())
    assert kinds(job) == [TroubleKind.HUNG]
    assert "did not call" not in words(job)
    assert "those on other nodes are not seen" in job.ranks[1].troubles[0].words


@pytest.mark.parametrize(("age_s", "usual_ms"), [(8, 2.0), (50, 20000.0), (90, 40000.0)])
def test_an_operation_that_is_young_for_its_kind_is_not_suspect(
    node: Node, age_s: float, usual_ms: float
) -> None:
    node.start(node.job(), "0_1", rank_box(0, [usual_ms] * 10, [op(age_s)]))
    job = only(node.look())
    assert job.troubles == ()
    assert job.oldest_s == pytest.approx(age_s, abs=1)


@pytest.mark.usefixtures("still")
def test_a_wait_that_is_longer_than_ever_is_shown_before_a_minute(node: Node) -> None:
    node.start(node.job(), "0_1", rank_box(0, [2.0] * 10, [op(15)]))
    assert kinds(only(node.look())) == [TroubleKind.HUNG]


def test_drops_and_sampling_are_told(node: Node) -> None:
    path = node.start(node.job(), "0_1", rank_box(0, sampling=4))
    put_word(path, HEADER.offsets["dropped"], 3)
    job = only(node.look())
    assert kinds(job) == [TroubleKind.DROPS, TroubleKind.UNMEASURED]
    assert job.drops == 3
    assert "one operation in 4" in words(job)


def test_a_box_made_anew_begins_anew(node: Node) -> None:
    raw = node.job()
    path = node.start(raw, "0_1", rank_box(0, [2.0] * 100))
    view = node.view()
    view.look()
    path.rename(raw / "old")
    node.start(raw, "0_1", rank_box(0, [2.0]))
    assert only(view.look()).flow is None


@pytest.mark.parametrize("what", ["garbage", "link", "fifo"])
def test_a_hostile_box_is_said_and_harms_no_other(node: Node, what: str) -> None:
    raw = node.job()
    node.start(raw, "0_1", rank_box(0))
    bad = raw / "nccl_inspector_0_2.box"
    if what == "garbage":
        write_user_file(bad, b"NCCLIBOX" + b"\xff" * 5000)
    elif what == "link":
        give_link(bad, raw / "nccl_inspector_0_1.box")
    else:
        os.mkfifo(bad)
    view = node.look()
    assert only(view).alive == 1
    assert len(view.unread) == (0 if what == "garbage" else 1)


def test_a_garbage_box_that_lives_is_said(node: Node) -> None:
    box = rank_box(0)
    box.header["version"] = 99
    node.start(node.job(), "0_1", box)
    view = node.look()
    assert only(view).expected == 0
    why = "bad_box: unknown version 99"
    assert view.unread == (f"job 42: nccl_inspector_0_1.box is refused: {why}",)


@as_root
def test_a_directory_that_is_not_roots_is_not_taken(node: Node) -> None:
    place = node.job().parent
    for path in (place, place / "manifest"):
        os.chown(path, JOB_UID, -1)
    view = node.look()
    assert view.jobs == ()
    assert view.unread == ("job 42: wrong_owner",)


def test_a_job_that_is_not_here_is_said(node: Node) -> None:
    view = NodeView(node.run_dir, 99).look()
    assert view.jobs == ()
    assert view.unread == ("job 99: it does not run on this node, or is not measured (mode off)",)


def test_without_a_run_directory_it_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InspectorError, match="none/jobs: No such file"):
        NodeView(tmp_path / "none", None).look()


@as_root
def test_a_user_sees_his_own_job_and_is_told_of_the_others(node: Node) -> None:
    for folder in (node.run_dir, node.run_dir / "prom"):
        folder.chmod(0o755)
    (node.run_dir / "jobs").chmod(0o711)
    node.start(node.job(41), "0_1", rank_box(0))
    other = node.job(42, uid=65533)
    os.chown(other, 65533, -1)
    for job in (41, 42, 43):
        (node.run_dir / "jobs" / str(job)).mkdir(exist_ok=True)
        (node.run_dir / "jobs" / str(job)).chmod(0o711)
        (node.run_dir / "prom" / f"{job}.prom").touch()
    code = (
        "import os, sys; from pathlib import Path\n"
        "from nccl_inspector.live.nodeview import NodeView\n"
        f"os.setuid({JOB_UID}); view = NodeView(Path(sys.argv[1]), None).look()\n"
        "print([job.id for job in view.jobs], *view.unread, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, node.run_dir],
        capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PYTHON_DIR)},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "[41]",
        "job 42: unreadable: Permission denied",
        "job 43: gone",
    ], done.stderr


@as_root
def test_a_user_sees_a_job_without_series_by_his_processes_in_it(node: Node) -> None:
    for folder in (node.run_dir, node.run_dir / "prom"):
        folder.chmod(0o755)
    (node.run_dir / "jobs").chmod(0o711)
    node.start(node.job(41), "0_1", rank_box(0))
    node.job(42)
    for job in (41, 42):
        (node.run_dir / "jobs" / str(job)).chmod(0o711)
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from nccl_inspector.live.nodeview import NodeView\n"
        f"os.setuid({JOB_UID}); view = NodeView(Path(sys.argv[1]), None).look()\n"
        "print([job.id for job in view.jobs], *view.unread, sep='\\n')"
    )
    with ExitStack() as processes:
        for job, uid in ((41, JOB_UID), (42, JOB_UID), (43, JOB_UID), (44, 65533)):
            env = {"SLURM_JOB_ID": str(job), "OTHER": "SLURM_JOB_ID=45"}
            one = subprocess.Popen(["sleep", "60"], env=env, user=uid)
            processes.callback(one.wait)
            processes.callback(one.kill)
        done = subprocess.run(
            [sys.executable, "-c", code, node.run_dir],
            capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PYTHON_DIR)},
        )  # fmt: skip
    assert done.stdout.splitlines() == [
        "[41, 42]",
        "job 43: it does not run on this node, or is not measured (mode off)",
        "job 42: none of its processes on this node uses NCCL now",
    ], done.stderr
