# SPDX-License-Identifier: Apache-2.0
"""One honest job beside the jobs of one user who takes all that he can get, on one node."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.agent import publish, signals
from nccl_inspector.agent.publish import NODE_BYTES_MAX
from nccl_inspector.agent.series_budget import series_limit
from nccl_inspector.agent.service import Agent
from nccl_inspector.estimate.cost import head_series_max
from tests.support.boxes import (
    BoxOf,
    give,
    line,
    lock_held,
    make_job,
    make_run_dir,
    metrics_text,
    write_box,
    write_user_file,
)
from tests.support.estimated_jobs import SHAPE
from tests.support.hostile_pages import full_box, page_text
from tests.support.marks import as_root
from tests.support.publishing import STEM, config_of, publisher

HONEST, ENEMY_UID = 900, 65533
HOSTILE = range(100, 120)
BW, OPERATIONS = "nccl_bus_bandwidth_gbs", "nccl_collective_operations_total"
GPUS = 8

pytestmark = as_root


def uuid_name(gpu: int) -> str:
    return f"GPU-{gpu:08x}-0000-1111-2222-333344445555"


class Enemy:
    """A job with the largest pages, other labels in each pass, full queues and many boxes."""

    FILES, SERIES = 16, 300

    def __init__(self, run_dir: Path, job: int, alive: ExitStack) -> None:
        place = run_dir / "jobs" / str(job)
        self._raw = make_job(place, job, uid=ENEMY_UID, gid=ENEMY_UID, gpus="0,1")
        give(self._raw, ENEMY_UID)
        self._job, self._round = job, 0
        box = write_user_file(self._raw / f"nccl_inspector_{STEM}.box", full_box())
        give(box, ENEMY_UID)
        alive.enter_context(lock_held(box))
        for number in range(255):
            os.link(box, self._raw / f"nccl_inspector_{number}_1.box")
        self._text = page_text(self.SERIES)

    def write(self, files: int = FILES) -> None:
        """Rewrite so many files under new names of series."""
        self._round += 1
        for number in range(files):
            word = f"{self._job:x}{self._round:04x}{number:02x}".encode()
            beside = self._raw / ".beside"
            write_user_file(beside, self._text.replace(b"@@@", word))
            give(beside, ENEMY_UID)
            beside.rename(self._raw / f"nccl_inspector_metrics_{uuid_name(number)}_{STEM}.prom")


class Honest:
    """Eight processes with as many series as the plugin writes."""

    def __init__(self, run_dir: Path, alive: ExitStack) -> None:
        self._raw = make_job(run_dir / "jobs" / str(HONEST), HONEST)
        for gpu in range(GPUS):
            alive.enter_context(lock_held(write_box(self._raw, f"0_{gpu}", BoxOf(state=1))))

    def write(self, value: int) -> None:
        for gpu in range(GPUS):
            rows = [
                line(name, f"{value}.25", rank=str(gpu), gpu=f"GPU{gpu}", comm=f"0x{comm}",
                     message_size=size)
                for comm in range(12) for size in ("1-2MB", "2-4MB", "64-128KB", "4-8MB", "8-16MB")
                for name in (BW, OPERATIONS)
            ]  # fmt: skip
            rows += [line("nccl_inspector_silent_seconds_total", gpu=f"GPU{gpu}")]
            beside = write_user_file(self._raw / ".beside", metrics_text(*rows))
            beside.rename(self._raw / f"nccl_inspector_metrics_{uuid_name(gpu)}_0_{gpu}.prom")


@pytest.fixture
def alive() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def page(run_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run_dir / "prom").iterdir()}


def alone(place: Path, value: int, alive: ExitStack) -> bytes:
    """What is published of the honest job where it is alone on its node."""
    run_dir = make_run_dir(place / f"alone{value}")
    Honest(run_dir, alive).write(value)
    with publisher(run_dir) as one:
        one.run_pass()
    return page(run_dir)[f"{HONEST}.prom"]


SIGNAL = re.compile(rb'^nccl_inspector_job_\w+\{[^}]*slurm_job_id="900"[^}]*\}', re.MULTILINE)


def signals_of(agent: bytes) -> list[bytes]:
    return SIGNAL.findall(agent)


@pytest.mark.long
def test_twenty_hostile_jobs_take_nothing_from_an_honest_one(
    tmp_path: Path, alive: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less time than there is, so that fewer jobs use it up.
    monkeypatch.setattr(publish, "PASS_S", 0.8)
    monkeypatch.setattr(signals, "PASS_S", 0.3)
    run_dir = make_run_dir(tmp_path / "run")
    honest = Honest(run_dir, alive)
    enemies = [Enemy(run_dir, job, alive) for job in HOSTILE]
    run_fd = os.open(run_dir, os.O_RDONLY)
    with closing(Agent(config_of(run_dir), run_fd, watching=False)) as agent:
        for number in range(6):
            honest.write(number)
            for enemy in enemies:
                enemy.write()
            agent.run_pass(0)
            now = page(run_dir)
            assert now[f"{HONEST}.prom"] == alone(tmp_path, number, alive), number
            total = sum(len(text) for name, text in now.items() if name[0].isdigit())
            assert total <= NODE_BYTES_MAX
            own = now["nccl_inspector_agent.prom"]
            assert len(signals_of(own)) == 7, "five signals, and two counts of what is left out"
            assert b'node="n1",reason="share"} 0\n' in own, "of the honest job nothing is left out"
    os.close(run_fd)
    left = re.findall(rb'slurm_job_id="1\d\d",node="n1",reason="share"\} ([1-9]\d*)\n', own)
    assert left, "what is left out of the others is counted"


def distinct(run_dir: Path, seen: set[bytes]) -> None:
    """Add the series that are published of jobs; a text each."""
    for text in page(run_dir).values():
        for row in text.splitlines():
            name, _, _ = row.rpartition(b" ")
            if b"slurm_job_id" in name:
                seen.add(name)


@pytest.mark.long
def test_a_job_that_names_its_series_anew_in_each_pass_has_a_bounded_number(
    tmp_path: Path, alive: ExitStack
) -> None:
    run_dir = make_run_dir(tmp_path / "run")
    enemy = Enemy(run_dir, 100, alive)
    run_fd = os.open(run_dir, os.O_RDONLY)
    seen: set[bytes] = set()
    agent = Agent(config_of(run_dir), run_fd, watching=False)
    for number in range(100):
        enemy.write(files=2)
        agent.run_pass(0)
        distinct(run_dir, seen)
        if number == 50:  # another agent goes on where the first one ended
            agent.close()
            agent = Agent(config_of(run_dir), run_fd, watching=False)
    own = page(run_dir)["nccl_inspector_agent.prom"]
    agent.close()
    os.close(run_fd)
    stated = head_series_max(replace(SHAPE, ranks=2, gpus_per_node=2))
    assert series_limit(2) < len(seen) <= stated
    assert re.search(rb'slurm_job_id="100",node="n1",reason="life"\} [1-9]', own)
