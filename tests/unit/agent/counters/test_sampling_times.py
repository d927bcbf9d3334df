# SPDX-License-Identifier: Apache-2.0
"""An agent that samples: as a job starts, each minute, and when it has ended."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.agent.counters import job_counters, sources
from nccl_inspector.agent.counters import sampling_times as watch_module
from nccl_inspector.agent.counters.job_counters import FILE, job_gpus
from nccl_inspector.agent.counters.sampling_times import CounterWatch
from nccl_inspector.agent.counters.sources import Readers
from nccl_inspector.agent.counters.xid import NewXids, Xid
from nccl_inspector.agent.kill_switch import disable, enable
from nccl_inspector.agent.service import Agent, run_agent, run_collect
from nccl_inspector.counters.counter_record import CounterRecord
from nccl_inspector.counters.node_counters import NodeCounters
from nccl_inspector.counters.sample import GPU, Device, Sample
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.summary.codec import NodeSummary, decode
from nccl_inspector.system.clock import Clock
from tests.sandbox import wait_until
from tests.support.boxes import make_job, make_reports, make_run_dir, names, write_box
from tests.support.ended_jobs import BOX
from tests.support.fake_hardware import make_port, write
from tests.support.publishing import samples

# Together they take longer than `make test` has for one subject.
pytestmark = pytest.mark.long

PCI = "0000:10:00"


def two_gpus(clock: Clock) -> Sample:
    devices = [
        Device(
            "gpu", f"GPU{n}", {"pcie_replay": n}, {"nvlinks_active": 18}, {"pci": f"{n:04}:10:00"}
        )
        for n in range(2)
    ]
    links = [Device("nvlink", f"GPU{n}/0", {"replay": 4}, {}, {}) for n in range(2)]
    return Sample(GPU, clock.unix_s(), clock.boot_s(), (*devices, *links))


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    sys = tmp_path / "sys"
    make_port(sys)
    return Readers(sys=sys, proc=tmp_path, kernel_log=tmp_path / "no-log", gpus=two_gpus)


@pytest.fixture
def config(open_path: Path) -> Config:
    run_dir = make_run_dir(open_path / "run")
    return parse_config(f"run_dir = {run_dir}\n{make_reports(open_path)}", "test")


class Node:
    """An agent and its run directory."""

    def __init__(self, config: Config, readers: Readers) -> None:
        self.run_dir, self.reports = config.run_dir, config.report_dir
        self._config, self._readers = config, readers
        self._run_fd = os.open(config.run_dir, os.O_RDONLY)
        self.agent = Agent(config, self._run_fd, readers=readers)

    def start_again(self) -> None:
        self.agent.close()
        self.agent = Agent(self._config, self._run_fd, readers=self._readers)

    def close(self) -> None:
        self.agent.close()
        os.close(self._run_fd)

    @property
    def watch(self) -> CounterWatch:
        assert self.agent._watch is not None
        return self.agent._watch

    def passes_until(self, fact: Callable[[], bool]) -> Callable[[], bool]:
        """A pass, then whether it is so."""

        def look() -> bool:
            self.agent.run_pass(0)
            return fact()

        return look

    def start_job(self, job: int = 42, **words: object) -> Path:
        raw = make_job(
            self.run_dir / "jobs" / str(job), job, **{"start": int(time.time()), **words}
        )
        write_box(raw, "0_1", BOX)
        return raw.parent

    def end_job(self, job: int = 42) -> None:
        """As the epilog does."""
        ended = self.run_dir / "ended" / f"{job}.{time.time_ns()}"
        (self.run_dir / "jobs" / str(job)).rename(ended)

    def sampled(self, job: int = 42, times: int = 1) -> NodeCounters:
        """Run passes until every source was folded into the job so often; return what is kept."""
        path = self.run_dir / "jobs" / str(job) / FILE

        def enough() -> bool:
            self.agent.run_pass(10)
            spans = (
                CounterRecord.decode(path.read_bytes()).counters().spans if path.exists() else ()
            )
            return len(spans) == 3 and all(span.samples >= times for span in spans)

        wait_until(enough, 10, "sampled")
        return CounterRecord.decode(path.read_bytes()).counters()

    def summary(self, job: int = 42) -> NodeSummary:
        """Run passes until the job is collected; return its summary."""
        folder = self.reports / str(job)

        def done() -> bool:
            self.agent.run_pass(10)
            return folder.exists() and any(folder.glob("*.nodesummary"))

        wait_until(done, 20, "collected")
        (path,) = folder.glob("*.nodesummary")
        return decode(path.read_bytes())

    def own(self) -> dict[str, float]:
        return samples(self.run_dir / "prom" / "nccl_inspector_agent.prom")

    def text(self) -> str:
        return (self.run_dir / "prom" / "nccl_inspector_agent.prom").read_text()


@pytest.fixture
def node(config: Config, readers: Readers) -> Iterator[Node]:
    one = Node(config, readers)
    yield one
    one.close()


def counters(summary: NodeSummary) -> NodeCounters:
    assert summary.counters is not None
    return summary.counters


def test_a_job_is_sampled_at_its_start_and_at_its_end(node: Node, readers: Readers) -> None:
    job = node.start_job()
    node.sampled()
    assert (job / FILE).stat().st_mode & 0o777 == 0o600
    write(readers.sys / "class/infiniband/mlx5_0/ports/1/counters/link_downed", 3)
    node.end_job()
    found = counters(node.summary())
    (port,) = (one for one in found.devices if one.kind == "port")
    assert port.counts["link_downed"].total == 3
    assert port.counts["symbol_error"].total == 0
    assert {span.source: span.samples for span in found.spans} == {
        "infiniband": 2, "gpu": 2, "pressure": 2,
    }  # fmt: skip
    assert names(node.run_dir / "ended") == []


def test_a_running_job_is_sampled_each_minute_and_not_each_pass(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start_job()
    node.sampled()
    for _ in range(5):
        node.agent.run_pass(10)
    assert {span.samples for span in node.sampled().spans} == {1}
    monkeypatch.setattr(sources, "REST_TIMES", 0)
    monkeypatch.setattr(job_counters, "INTERVAL_S", 0.01)
    monkeypatch.setattr(job_counters, "_SLACK_S", 60.0)
    assert {span.samples >= 3 for span in node.sampled(times=3).spans} == {True}


def test_an_agent_that_starts_again_loses_nothing(node: Node, readers: Readers) -> None:
    node.start_job()
    node.sampled()
    downed = readers.sys / "class/infiniband/mlx5_0/ports/1/counters/link_downed"
    write(downed, 2)
    node.start_again()
    node.sampled(times=2)
    write(downed, 3)
    node.end_job()
    (port,) = (one for one in counters(node.summary()).devices if one.kind == "port")
    assert port.counts["link_downed"].total == 3


def test_a_job_has_its_own_gpus_only(node: Node) -> None:
    node.start_job(42, gpus="1")
    node.start_job(43, gpus="")
    node.start_job(44, gpus="7")  # MIG, or numbers of another order: nothing here fits
    node.sampled(44)
    one, two, three = (node.sampled(job) for job in (42, 43, 44))
    assert [d.name for d in one.devices if d.kind in ("gpu", "nvlink")] == ["GPU1", "GPU1/0"]
    assert not one.whole_node
    for whole in (two, three):
        assert whole.whole_node
        assert [d.name for d in whole.devices if d.kind == "gpu"] == ["GPU0", "GPU1"]


@pytest.mark.parametrize("text", ["", "all", "0-3", "0,", "0:1", "00000", "-1", "a" * 9999])
def test_what_names_no_gpus_names_none(text: str) -> None:
    assert job_gpus(text) == frozenset()
    assert job_gpus("0,13") == {"GPU0", "GPU13"}


def test_what_hangs_at_the_end_is_said_and_holds_no_collection(
    config: Config, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "HOLD_S", 0.3)

    def hang(_clock: Clock) -> Sample:
        time.sleep(1000)
        raise AssertionError

    node = Node(config, Readers(readers.sys, readers.proc, readers.kernel_log, hang))
    node.start_job()
    wait_until(node.passes_until(lambda: "infiniband" in node.watch.sources.latest), 5, "ports")
    begun = time.monotonic()
    node.agent.run_pass(0)
    assert time.monotonic() - begun < 1
    node.end_job()
    found = counters(node.summary())
    node.close()
    assert "gpu: no sample at the job's end" in found.problems
    assert {span.source for span in found.spans} == {"infiniband", "pressure"}


def test_an_agent_that_comes_when_the_job_is_over_has_no_counters(node: Node) -> None:
    node.start_job()
    node.end_job()
    assert counters(node.summary()).absent == "no agent sampled them"


def test_without_an_agent_it_is_said(config: Config) -> None:
    raw = make_job(config.run_dir / "ended" / f"42.{time.time_ns()}", 42)
    write_box(raw, "0_1", BOX)
    run_collect(config)
    summary = decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes())
    assert counters(summary).absent == "no agent sampled them"


def test_where_the_site_wants_none_there_are_none(config: Config, readers: Readers) -> None:
    node = Node(replace(config, counters=False), readers)
    job = node.start_job()
    node.agent.run_pass(10)
    assert names(job) == ["manifest", "raw"]
    node.end_job()
    assert node.summary().counters is None
    assert "counters" not in node.text()
    node.close()


def test_a_single_pass_waits_for_no_sample(config: Config) -> None:
    raw = make_job(config.run_dir / "ended" / f"42.{time.time_ns()}", 42)
    write_box(raw, "0_1", BOX)
    run_agent(config, once=True)
    assert (config.report_dir / "42" / "n1.0.nodesummary").exists()


def test_a_spoiled_file_is_begun_anew_and_said(node: Node) -> None:
    job = node.start_job()
    (job / FILE).write_bytes(b'{"format": 7}')
    assert "what was counted before cannot be read" in node.sampled().problems[0]


def test_a_users_link_in_its_place_is_impossible_and_would_not_be_followed(
    node: Node, tmp_path: Path
) -> None:
    job = node.start_job()
    (tmp_path / "shadow").write_text("root")
    (job / FILE).symlink_to(tmp_path / "shadow")
    node.sampled()
    assert (tmp_path / "shadow").read_text() == "root"
    assert not (job / FILE).is_symlink()


def test_a_full_file_system_costs_no_job_and_no_pass(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    node.start_job()
    with monkeypatch.context() as patched:
        patched.setattr(job_counters, "replace_file", full)
        for _ in range(3):
            node.agent.run_pass(10)
    said = [line for line in caplog.messages if "counters" in line]
    assert said == ["job 42: its counters cannot be written: No space left on device"]
    node.end_job()
    assert counters(node.summary()).spans


def test_a_directory_that_is_removed_under_us_is_forgotten(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "REST_TIMES", 0)  # on a busy machine it would rest for long
    job = node.start_job()
    node.sampled()
    shutil.rmtree(job)
    wait_until(node.passes_until(lambda: node.watch.is_idle), 30, "forgotten")


def test_the_next_attempt_of_a_job_begins_at_nothing(node: Node, readers: Readers) -> None:
    node.start_job()
    node.sampled()
    write(readers.sys / "class/infiniband/mlx5_0/ports/1/counters/link_downed", 9)
    node.end_job()
    node.start_job(restart=1)
    found = node.sampled()
    (port,) = (one for one in found.devices if one.kind == "port")
    assert port.counts["link_downed"].total == 0


def test_while_the_kill_switch_is_on_nothing_is_sampled(node: Node) -> None:
    disable(node.run_dir, "")
    job = node.start_job()
    for _ in range(3):
        node.agent.run_pass(10)
    assert FILE not in names(job)
    enable(node.run_dir)
    node.sampled()
    disable(node.run_dir, "")
    node.agent.run_pass(10)
    assert node.watch.is_idle


def test_the_nodes_series_are_there_while_a_job_runs(node: Node) -> None:
    node.agent.run_pass(10)
    assert "nccl_node_" not in node.text()
    node.start_job()
    node.sampled()
    node.agent.run_pass(10)
    text = node.text()
    for line in (
        'device="mlx5_0",port="1",event="link_downed"} 0',
        'device="mlx5_0",port="1",event="ack_timeout"} 0',
        'gpu="GPU1",event="pcie_replay"} 1',
        'gpu="GPU1",event="nvlink_replay"} 4',
        'gpu="GPU0"} 18',
        'source="gpu"} 1',
    ):
        assert line in text
    assert "ecn_marked" not in text  # the port has no such counter
    node.end_job()
    node.summary()
    node.agent.run_pass(10)
    assert "nccl_node_" not in node.text()


def test_numbers_that_nobody_renews_are_no_series(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start_job()
    node.sampled()
    monkeypatch.setattr("nccl_inspector.agent.counters.device_series.OLD_INTERVALS", -1)
    node.agent.run_pass(10)
    assert "nccl_node_" not in node.text()


def test_xids_go_to_the_job_of_their_gpu_and_are_counted_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start_job(42, gpus="0")
    node.start_job(43, gpus="1")
    node.sampled(43)
    now_us = int((time.monotonic() + 1) * 1e6)
    heard = [
        Xid(5, 1, "0000:10:00", 13),  # long before the jobs
        Xid(6, now_us, "0000:10:00", 79),
        Xid(7, now_us, "0001:10:00", 31),
        Xid(8, now_us, "0009:99:00", 79),  # nobody knows whose
    ]
    answers = iter([NewXids(tuple(heard), 2)])
    monkeypatch.setattr(node.watch._log, "read", lambda: next(answers, NewXids((), 0)))
    for _ in range(3):
        node.agent.run_pass(10)
    for job, gpu, number in ((42, "GPU0", 79), (43, "GPU1", 31)):
        found = node.sampled(job)
        assert [(one.gpu, one.number) for one in found.xids] == [
            (gpu, number), ("0009:99:00", 79),
        ]  # fmt: skip
        assert "2 records of the kernel log were overwritten" in " ".join(found.problems)
    assert 'gpu="GPU0",xid="79"' in node.text()
    node.start_again()
    monkeypatch.setattr(node.watch._log, "read", lambda: NewXids(tuple(heard), 0))
    node.agent.run_pass(10)
    assert len(node.sampled(42).xids) == 2


def test_without_a_kernel_log_the_job_says_so(node: Node) -> None:
    node.start_job()
    assert any(one.startswith("no XIDs: ") for one in node.sampled().problems)
