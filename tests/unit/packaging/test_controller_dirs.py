# SPDX-License-Identifier: Apache-2.0
"""The controller's directories as shipped: the hook as slurm, the service as nccl-inspector."""

import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.controller import due_reports
from nccl_inspector.controller.passes import Controller
from nccl_inspector.controller.pruning import CLOCK
from nccl_inspector.controller.queue import Queue
from nccl_inspector.controller.report_child import make_report
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.settings.config import Config, parse_config
from tests.support.queued_jobs import summarize
from tests.support.repository import PACKAGING, REPO

SLURM, SERVICE = 64030, 642
ACCOUNTS = (
    "root:x:0:0::/root:/bin/sh\n"
    "slurm:x:{0}:{0}::/:/bin/false\n"
    "nccl-inspector:x:{1}:{1}::/:/bin/false\n"
)
GROUPS = "root:x:0:\nslurm:x:{0}:\nnccl-inspector:x:{1}:\n"
UNIT = (PACKAGING / "nccl-inspector-controller.service").read_text("ascii")
OLD_DAYS = 400


@pytest.fixture
def root(open_path: Path) -> Path:
    """What systemd-tmpfiles makes of the shipped file."""
    if shutil.which("systemd-tmpfiles") is None or os.geteuid():
        pytest.skip("needs systemd-tmpfiles, as root")
    (open_path / "etc").mkdir()
    for name, text in (("passwd", ACCOUNTS), ("group", GROUPS)):
        (open_path / "etc" / name).write_text(text.format(SLURM, SERVICE))
    for name in ("var/spool", "var/lib"):
        (open_path / name).mkdir(parents=True)
    conf = PACKAGING / "tmpfiles-controller.conf"
    subprocess.run(["systemd-tmpfiles", f"--root={open_path}", "--create", conf], check=True)
    return open_path


@pytest.fixture
def config(root: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The defaults, below that root."""
    monkeypatch.setattr(due_reports, "SETTLE_S", 0.0)
    for module in ("owner", "sqlite_file"):
        monkeypatch.setattr(f"nccl_inspector.store.{module}.current_name", lambda _uid: None)
    default = parse_config("", "none")

    def below(path: Path) -> Path:
        return root / path.relative_to("/")

    return replace(
        default,
        controller_wait_s=0.0,
        controller_dir=below(default.controller_dir),
        report_dir=below(default.report_dir),
        store_dir=below(default.store_dir),
    )


def as_account(uid: int, work: Callable[[], object]) -> None:
    """Do it in a child without any right of root, as the unit does."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.umask(0o077)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def end(config: Config, job_id: int) -> None:
    """EpilogSlurmctld, as SlurmUser."""
    hook = REPO / "epilog" / "nccl-inspector-epilogctld"
    env = {
        "NCCL_INSPECTOR_TEST_CONTROLLER_DIR": str(config.controller_dir),
        "SLURM_JOB_ID": str(job_id), "SLURM_JOB_UID": "1000", "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_NAME": "train",
    }  # fmt: skip
    said = subprocess.run(
        ["/bin/sh", "-s"], env=env, user=SLURM, group=SLURM, extra_groups=[], capture_output=True,
        input=hook.read_bytes(), cwd="/",
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, b"")


@pytest.fixture
def log(root: Path) -> Iterator[Path]:
    """What the service logs, also from its child."""
    path = root / "log"
    handler = logging.FileHandler(path)
    logger = logging.getLogger("nccl-inspector-controller")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield path
    logger.setLevel(level)
    logger.removeHandler(handler)
    handler.close()


def test_on_the_shipped_directories_a_report_is_stored_and_what_is_old_goes(
    config: Config, root: Path, log: Path
) -> None:
    old_s = time.time() - OLD_DAYS * 86400

    def serve() -> None:
        queue = Queue(config.controller_dir)
        # Its templates would load a codec from a Python that only root may read.
        makers = replace(usual_makers(config), html=lambda _card: b"page")
        controller = Controller(config, queue, lambda due: make_report(due, config, makers))
        controller.one_pass(at_once=True)
        queue.close()

    (root / "boxes").mkdir()
    summarize(config, root / "boxes" / "42", 42)
    for shelf in (config.report_dir, config.store_dir):
        (shelf / "7").mkdir()
        os.utime(shelf / "7", (old_s, old_s))
    now_s = time.time()
    clock = config.controller_dir / CLOCK
    clock.write_text(f"{now_s - 8 * 3600} {now_s - 3600}\n")
    summary = config.report_dir / "42"
    for path in (summary, *summary.iterdir(), clock):
        os.chown(path, SERVICE, SERVICE)
    for shelf in (config.report_dir, config.store_dir):
        os.chown(shelf / "7", SERVICE, SERVICE)
    end(config, 42)
    as_account(SERVICE, serve)
    assert (config.store_dir / "42" / "0.json").exists()
    assert not (config.report_dir / "7").exists()
    assert not (config.store_dir / "7").exists()
    assert list((config.controller_dir / "queue").iterdir()) == []
    assert (config.controller_dir / "state" / "status.json").exists()
    said = [line for line in log.read_text().splitlines() if "in accounting" not in line]
    assert said == [
        "job 42: report of attempt 0 stored",
        "removed: node summaries of 1 job, over 30 days old; "
        "removed: reports of 1 job, over 365 days old",
    ]


def test_neither_account_can_replace_the_others_directories(config: Config) -> None:
    def must_fail(path: Path) -> Callable[[], None]:
        def work() -> None:
            try:
                path.mkdir()
            except PermissionError:
                return
            raise AssertionError(path)

        return work

    as_account(SLURM, must_fail(config.controller_dir / "state" / "x"))
    as_account(SLURM, must_fail(config.store_dir / "x"))
    for uid in (SLURM, SERVICE):
        as_account(uid, must_fail(config.controller_dir / "x"))
        as_account(uid, must_fail(config.store_dir.parent / "x"))


def test_the_units_account_is_the_one_that_the_directories_are_for() -> None:
    accounts = re.findall(r"^(?:User|Group)=(.*)$", UNIT, re.MULTILINE)
    assert accounts == ["nccl-inspector", "nccl-inspector"]
