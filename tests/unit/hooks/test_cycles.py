# SPDX-License-Identifier: Apache-2.0
"""Ten thousand attempts of jobs through hooks and agent, without Slurm and with accidents.

Eight jobs live at once, in random order, their hooks beside each other and beside
the agent's pass; some hooks are killed, missing or run twice, some jobs are
requeued, every id is used again and again. The restart count numbers the attempts,
so that each has a summary of its own.
"""

import os
import pwd
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nccl_inspector.agent import collect
from nccl_inspector.agent.service import Agent
from nccl_inspector.box.layout import HEADER
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.summary.codec import decode
from tests.support.boxes import (
    JOB_UID,
    MS,
    BoxOf,
    CommOf,
    KeyOf,
    box_bytes,
    fixed_chance,
    give,
    line,
    lock_held,
    metrics_text,
    put,
    write_box,
    write_user_file,
)
from tests.support.hook_scripts import EMPTY, EPILOG, JOB, PROLOG, Node

ATTEMPTS = 10_000
ALIVE = 8
JOB_IDS = range(1, 200)
WITNESSES = (900, 901, 902)
PASS_EVERY, LOOK_EVERY, BOX_EVERY = 20, 100, 50  # steps, steps, attempts
KILL_WITHIN_S = 0.005  # a hook's whole time, about

BOX = BoxOf([CommOf(7, 0, 2, name="world")], [KeyOf(0, [5 * MS] * 20)])
PLAIN_BOX = bytes(box_bytes(BOX))
SERIES = metrics_text(line("nccl_gpu_info", gpu="GPU0", gpu_uuid="u", pci_bus_id="p"))
STEM = "0_1"
NONE = 0  # no hook to wait for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs the hooks as root"),
    pytest.mark.long,
    pytest.mark.timeout(600),
]

Prints = dict[str, tuple[int, int, int, bytes]]


def prints(*paths: Path) -> Prints:
    """Return what tells files and all below them from others: inode, size, time, content."""
    found: Prints = {}
    for top in paths:
        for path in (top, *top.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            size, changed = (status.st_size, status.st_mtime_ns) if content else (0, 0)
            found[str(path)] = status.st_ino, size, changed, content
    return found


class Site:
    """A node, its agent, and the jobs on it."""

    def __init__(self, node: Node, config: Config, chance: random.Random) -> None:
        self.node = node
        self.report_dir = config.report_dir
        self.chance = chance
        self.attempts = 0
        self.boxes: list[tuple[int, int]] = []  # job, attempt
        self.kills = 0
        self._doomed: set[int] = set()
        self._stderr = os.open(node.run_dir.with_name("stderr"), os.O_WRONLY | os.O_CREAT)
        self._run_fd = os.open(node.run_dir, os.O_RDONLY)
        self.agent = Agent(config, self._run_fd)

    def close(self) -> None:
        self.agent.close()
        os.close(self._run_fd)
        os.close(self._stderr)

    def start(self, hook: Path, job: int, attempt: int, killed: float = 0) -> int:
        """Start a hook, which dies before its end with probability `killed`; return its id."""
        pid = os.posix_spawn(
            hook,
            [str(hook)],
            JOB
            | {
                "NCCL_INSPECTOR_TEST_RUN_DIR": str(self.node.run_dir),
                "SLURM_JOB_ID": str(job),
                "SLURM_JOB_RESTART_COUNT": str(attempt),
            },
            file_actions=[(os.POSIX_SPAWN_DUP2, self._stderr, 2)],
            setpgroup=0,
        )
        if self.chance.random() < killed:
            self._doomed.add(pid)
            time.sleep(self.chance.random() * KILL_WITHIN_S)
            os.killpg(pid, signal.SIGKILL)
        return pid

    def wait(self, pid: int) -> None:
        """Wait for a hook, which ends with 0 unless we killed it."""
        if pid == NONE:
            return
        status = os.waitpid(pid, 0)[1]
        if pid in self._doomed:
            self._doomed.remove(pid)
            self.kills += status != 0
            assert status in (0, signal.SIGKILL)
        else:
            assert status == 0

    def life(self, job: int) -> Iterator[int]:
        """Live one job's life; each item is a hook that must end before the next step, or NONE."""
        while True:
            self.attempts += 1
            attempt = self.attempts
            if self.chance.random() > 0.03:  # else this attempt has no prolog
                yield from self._measured(job, attempt)
            fate = self.chance.random()
            if fate < 0.05:
                continue  # requeued, its epilog missing
            yield self.start(EPILOG, job, attempt, killed=0.1)
            if fate < 0.1:
                continue  # requeued
            yield self.start(EPILOG, job, attempt)
            return

    def _measured(self, job: int, attempt: int) -> Iterator[int]:
        yield self.start(PROLOG, job, attempt, killed=0.1)
        place = self.node.run_dir / "jobs" / str(job)
        if not (place / "manifest").exists() or self.chance.random() < 0.2:
            if self.chance.random() < 0.3:
                return
            yield self.start(PROLOG, job, attempt)
        elif f"\nrestart={attempt}\n" not in (text := (place / "manifest").read_text()) or (
            not text.endswith("\nend\n")
        ):
            return  # killed before it had taken the last attempt's away, or in the middle
        with ExitStack() as alive:
            if attempt % BOX_EVERY == 0:
                self._work(place / "raw", job, attempt, alive)
            before = prints(place)
            if self.chance.random() < 0.2:  # meanwhile somebody else's, who has no directory
                yield self.start(EPILOG, self.chance.choice(JOB_IDS) + 1000, 0)
            else:
                yield NONE
            assert prints(place) == before
        assert f"\nrestart={attempt}\n" in (place / "manifest").read_text()

    def _work(self, raw: Path, job: int, attempt: int, alive: ExitStack) -> None:
        """Be a process of the job."""
        data = bytearray(PLAIN_BOX)
        put(data, HEADER, 0, procid=attempt)
        box = write_user_file(raw / f"nccl_inspector_{STEM}.box", bytes(data))
        write_user_file(raw / f"nccl_inspector_metrics_unknown_{STEM}.prom", SERIES)
        alive.enter_context(lock_held(box))
        self.boxes.append((job, attempt))

    def collect_all(self) -> None:
        """Let the agent work until no ended job waits."""
        while True:
            self.agent.run_pass(1)
            if not self.node.ended():
                return

    def check_summaries(self) -> None:
        for job, attempt in self.boxes:
            path = self.report_dir / str(job) / f"n1.{attempt}.nodesummary"
            summary = decode(path.read_bytes())
            assert (summary.head.job_id, summary.head.restart) == (job, attempt)
            assert [one.facts.procid for one in summary.processes] == [attempt]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, as a node's: each summary is synced, and a disk may be busy."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def site(memory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(collect, "TORN_S", -1)  # nobody wants to look at what is half-made
    reports = memory / "reports"
    reports.mkdir()
    give(reports)
    node = Node(memory / "run", Path("/bin/sh"))
    user = pwd.getpwuid(JOB_UID).pw_name
    # Counters would be written into the witnesses' directories, too.
    config = parse_config(
        f"run_dir = {node.run_dir}\nreport_dir = {reports}\nreport_user = {user}\ncounters = 0\n",
        "test",
    )
    seed = int(os.environ.get("CYCLES_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"CYCLES_SEED={seed}")
    one = Site(node, config, fixed_chance(seed))
    yield one
    one.close()


def run_jobs(site: Site, look: Prints, watched: list[Path]) -> None:
    """Let jobs live until there were ATTEMPTS, then let those that live come to their end."""
    lives: dict[int, tuple[Iterator[int], int]] = {}  # and the hook at work
    steps = 0
    while lives or site.attempts < ATTEMPTS:
        steps += 1
        if site.attempts < ATTEMPTS and len(lives) < ALIVE:
            job = site.chance.choice([one for one in JOB_IDS if one not in lives])
            life = site.life(job)
        else:
            job = site.chance.choice(sorted(lives))
            life, pid = lives.pop(job)
            site.wait(pid)
        if (started := next(life, None)) is not None:
            lives[job] = life, started
        if steps % PASS_EVERY == 0:
            site.agent.run_pass(0)
        if steps % LOOK_EVERY == 0:
            assert prints(*watched) == look


def test_ten_thousand_cycles_leave_nothing_and_touch_no_other_job(site: Site) -> None:
    run_dir = site.node.run_dir
    with ExitStack() as alive:
        for job in WITNESSES:
            site.wait(site.start(PROLOG, job, 0))
            raw = run_dir / "jobs" / str(job) / "raw"
            alive.enter_context(lock_held(write_box(raw, STEM, BoxOf(state=1))))
            write_user_file(raw / f"nccl_inspector_metrics_unknown_{STEM}.prom", SERIES)
        site.agent.run_pass(0)
        watched = [run_dir / "jobs" / str(job) for job in WITNESSES]
        watched += [run_dir / "prom" / f"{job}.prom" for job in WITNESSES]
        look = prints(*watched)
        run_jobs(site, look, watched)
        site.collect_all()
        assert prints(*watched) == look
        assert sorted(path.name for path in (run_dir / "jobs").iterdir()) == [
            str(job) for job in WITNESSES
        ]
    site.check_summaries()
    for job in WITNESSES:
        site.wait(site.start(EPILOG, job, 0))
    site.collect_all()
    site.agent.stop()
    assert site.node.tree() == sorted([*EMPTY, "control/at_work"])
    assert run_dir.with_name("stderr").read_bytes() == b""
    assert site.kills > ATTEMPTS // 50
    assert len(site.boxes) > ATTEMPTS // BOX_EVERY // 2
