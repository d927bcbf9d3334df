# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nccl_inspector.agent.kill_switch import disable
from nccl_inspector.agent.service import run_agent
from nccl_inspector.agent.signals import ASK_S, LiveSignals
from nccl_inspector.box.layout import STATE_FINALIZED
from nccl_inspector.settings.config import parse_config
from tests.support.boxes import JOB_UID, BoxOf, CommOf, metrics_text, write_box, write_user_file
from tests.support.live_node import Node, beating, op, rank_box, running


@pytest.fixture
def node(open_path: Path) -> Iterator[Node]:
    """A node without jobs."""
    with running(open_path) as one:
        yield one


@pytest.fixture
def signals(node: Node) -> Iterator[LiveSignals]:
    run_fd = os.open(node.run_dir, os.O_RDONLY)
    one = LiveSignals(run_fd, "")
    os.close(run_fd)
    yield one
    one.close()


def values(signals: LiveSignals, *jobs: int) -> dict[str, float]:
    """State, `inflight` or `p2p_inflight`, of the only job."""
    return {
        one.text.partition('state="')[2].partition('"')[0]
        or one.metric.name.removeprefix("nccl_inspector_job_").removesuffix("_seconds"): float(
            one.value
        )
        for one in signals.run_pass(dict.fromkeys(jobs or (42,), JOB_UID))
    }


def publishing(node: Node) -> Path:
    """The raw directory of a job that publishes."""
    raw = node.job()
    write_user_file(raw / "nccl_inspector_metrics_unknown_0_1.prom", metrics_text())
    return raw


def test_a_job_that_publishes_nothing_has_no_series(node: Node, signals: LiveSignals) -> None:
    node.start(node.job(), "0_1", rank_box(0))
    assert signals.run_pass({42: JOB_UID}) == []


def test_a_job_whose_processes_have_ended_has_zeros(node: Node, signals: LiveSignals) -> None:
    publishing(node)
    assert values(signals) == {
        "running": 0,
        "stopped": 0,
        "lost": 0,
        "inflight": 0,
        "p2p_inflight": 0,
    }


def test_every_state_is_counted_once(node: Node, signals: LiveSignals) -> None:
    raw = publishing(node)
    node.start(raw, "0_1", rank_box(0))
    node.start(raw, "0_2", rank_box(1, ago_s=60))
    write_box(raw, "0_3", rank_box(2))
    write_box(raw, "0_4", BoxOf(state=2))
    os.link(raw / "nccl_inspector_0_1.box", raw / "nccl_inspector_0_9.box")
    write_user_file(raw / "nccl_inspector_0_8.box", b"x" * 10000)
    assert values(signals) == {
        "running": 1,
        "stopped": 1,
        "lost": 1,
        "inflight": 0,
        "p2p_inflight": 0,
    }


def test_the_oldest_operation_counts_up_to_now(node: Node, signals: LiveSignals) -> None:
    raw = publishing(node)
    node.start(raw, "0_1", rank_box(0, operations=[op(3), op(40), op(1)], ago_s=5))
    node.start(raw, "0_2", rank_box(1, operations=[op(20)]))
    assert values(signals)["inflight"] == pytest.approx(45, abs=1)


def test_a_posted_receive_is_not_taken_for_a_collective(node: Node, signals: LiveSignals) -> None:
    posted = op(7200, peer=1)
    node.start(publishing(node), "0_1", rank_box(0, operations=[posted, op(3)], ago_s=1))
    found = values(signals)
    assert found["inflight"] == pytest.approx(4, abs=1)
    assert found["p2p_inflight"] == pytest.approx(7201, abs=1)


def test_operations_of_another_life_of_a_communicator_do_not_count(
    node: Node, signals: LiveSignals
) -> None:
    gone = BoxOf([CommOf(7, 0, 2, state=2)], operations=[op(50)], state=1, header=beating())
    raw = publishing(node)
    node.start(raw, "0_1", rank_box(0, operations=[op(40, comm_generation=3), op(90, comm=95)]))
    node.start(raw, "0_2", gone)
    assert values(signals)["inflight"] == 0


# PyTorch's pipes.


@pytest.fixture
def pipe(node: Node) -> Iterator[tuple[Path, int]]:
    """The directory of a job that publishes, and the end from which PyTorch reads."""
    raw = publishing(node)
    path = raw / "fr_nccl_0_rank_0.pipe"
    os.mkfifo(path)
    os.chown(path, JOB_UID, JOB_UID)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield raw, fd
    os.close(fd)


def test_a_job_that_may_hang_is_asked_for_dumps_once(
    node: Node, signals: LiveSignals, pipe: tuple[Path, int]
) -> None:
    raw, fd = pipe
    node.start(raw, "0_1", rank_box(0, operations=[op(ASK_S + 60)]))
    for _ in range(3):
        values(signals)
    assert os.read(fd, 9) == b"1"


def test_a_job_that_goes_on_and_then_hangs_again_is_asked_again(
    node: Node, signals: LiveSignals, pipe: tuple[Path, int]
) -> None:
    raw, fd = pipe
    for age_s in (ASK_S + 60, 3, ASK_S + 60):
        with ExitStack() as ended:
            ended.callback((raw / "nccl_inspector_0_1.box").unlink)
            node.start(raw, "0_1", rank_box(0, operations=[op(age_s)]))
            values(signals)
    assert os.read(fd, 9) == b"11"


@pytest.mark.parametrize("operation", [op(ASK_S - 60), op(7200, peer=1)])
def test_a_younger_collective_or_a_posted_receive_asks_for_nothing(
    node: Node, signals: LiveSignals, pipe: tuple[Path, int], operation: dict[str, int]
) -> None:
    raw, fd = pipe
    node.start(raw, "0_1", rank_box(0, operations=[operation]))
    values(signals)
    assert os.read(fd, 9) == b""


def test_a_pipe_of_somebody_else_is_not_written_to(
    node: Node, signals: LiveSignals, pipe: tuple[Path, int]
) -> None:
    raw, fd = pipe
    os.chown(raw / "fr_nccl_0_rank_0.pipe", 0, 0)
    node.start(raw, "0_1", rank_box(0, operations=[op(ASK_S + 60)]))
    assert values(signals)["running"] == 1
    assert os.read(fd, 9) == b""


def test_ended_processes_leave_no_living_one_out(node: Node, signals: LiveSignals) -> None:
    raw = publishing(node)
    for number in range(300):
        write_box(raw, f"0_{1000 + number}", BoxOf(state=STATE_FINALIZED))
    node.start(raw, "9_5", rank_box(0))
    assert values(signals)["running"] == 1


def test_a_denied_process_runs_though_it_never_beats(node: Node, signals: LiveSignals) -> None:
    node.start(publishing(node), "0_1", rank_box(0, ago_s=4000, silent=2))
    assert values(signals)["running"] == 1


def test_a_job_that_is_gone_or_broken_has_no_series(node: Node, signals: LiveSignals) -> None:
    node.job(43)
    (node.run_dir / "jobs" / "43" / "manifest").write_text("format=1\n")
    assert signals.run_pass({42: JOB_UID, 43: JOB_UID}) == []


def test_the_agent_publishes_them_and_not_while_disabled(node: Node) -> None:
    node.start(publishing(node), "0_1", rank_box(0))
    reports = node.run_dir.parent / "reports"
    reports.mkdir()
    config = parse_config(f"run_dir = {node.run_dir}\nreport_dir = {reports}\n", "test")
    own = node.run_dir / "prom" / "nccl_inspector_agent.prom"
    run_agent(config, once=True)
    labels = 'cluster="c1",slurm_job_id="42",node="n1"'
    assert f'nccl_inspector_job_processes{{{labels},state="running"}} 1\n' in own.read_text()
    assert f"nccl_inspector_job_inflight_seconds{{{labels}}} 0.000\n" in own.read_text()
    disable(node.run_dir, "")
    run_agent(config, once=True)
    assert "nccl_inspector_job" not in own.read_text()
