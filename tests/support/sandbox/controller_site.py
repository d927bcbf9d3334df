"""A sandbox cluster whose slurmctld has our epilog, and the service that stores reports there."""

import grp
import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nccl_inspector.model.card import Card
from nccl_inspector.render.json import card_from_json
from tests.sandbox import Cluster, Options, wait_until
from tests.sandbox.config import product_conf
from tests.sandbox.layout import HEAD, REPO, REPORT_USER
from tests.sandbox.machine import as_user
from tests.support.command_line import COMMAND

HOOK = "usr/lib/nccl-inspector/epilogctld/nccl-inspector-epilogctld"
ENV = {"PYTHONPATH": str(REPO / "python")}
WAIT_S = 4


@dataclass
class Service:
    """The controller's directories and its service, which runs as the account of the reports."""

    cluster: Cluster
    process: subprocess.Popen[str] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    wait_s: int = WAIT_S  # for summaries, of which the product's default is a quarter of an hour
    machine: str = HEAD  # where it runs

    @property
    def folder(self) -> Path:
        return self.cluster.layout.root / "ctl"

    @property
    def store(self) -> Path:
        return self.cluster.layout.root / "store"

    @property
    def conf(self) -> Path:
        return self.cluster.layout.root / "etc" / "controller.conf"

    def prepare(self) -> None:
        account = pwd.getpwnam(REPORT_USER)
        self.folder.mkdir()
        for path, uid, mode in (
            (self.folder / "queue", 0, 0o2770), (self.folder / "failed", account.pw_uid, 0o750),
            (self.folder / "state", account.pw_uid, 0o750), (self.folder / "dropped", 0, 0o2770),
            (self.store, account.pw_uid, 0o711),
        ):  # fmt: skip
            path.mkdir()
            os.chown(path, uid, account.pw_gid)
            path.chmod(mode)
        self.settings = {
            "controller_dir": str(self.folder), "store_dir": str(self.store),
            "controller_wait": f"{self.wait_s}s", "report_group": grp.getgrgid(0).gr_name,
            "admin_comment": "1",
        }  # fmt: skip
        self.conf.write_text(product_conf(self.cluster.layout, self.settings))

    def _argv(self, user: str, *words: str) -> list[str]:
        """The command as this user; his very first program, for the interpreter may be root's."""
        layout = self.cluster.layout
        program = [str(layout.own_program)] if layout.tree else [*COMMAND]
        return [*as_user(user), *program, *words, "--conf", str(self.conf)]

    def command(self, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.head.run(self._argv(user, *words), env=ENV)

    def start(self) -> None:
        argv = self._argv(REPORT_USER, "controller")
        where = self.cluster.head if self.machine == HEAD else self.cluster.node(self.machine)
        self.process = where.popen(argv, env=ENV)

    def stop(self, *, kill: bool = False) -> str:
        """End it; what it said."""
        assert self.process is not None
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        said = self.process.communicate(timeout=30)[1]
        self.process = None
        return said

    def at_work(self) -> str:
        """The host whose service works; empty: none."""
        try:
            return (self.folder / "state" / "lock").read_text().strip()
        except FileNotFoundError:
            return ""

    def queued(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "queue").iterdir())

    def wait_stored(self, job_id: int, attempt: int = 0) -> Card:
        path = self.store / str(job_id) / f"{attempt}.json"
        wait_until(path.exists, 60, f"the report of job {job_id} is stored")
        return card_from_json(path.read_bytes())

    def wait_empty(self) -> None:
        wait_until(lambda: not self.queued(), 30, "the queue is empty")


@contextmanager
def controlled(
    place: Path, *slurm_lines: str, monitoring: bool = False, wait_s: int = WAIT_S
) -> Iterator[Service]:
    """Give a cluster of its own below `place`, with the service's directories."""
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-epilogctld-", dir=place) as name:
        folder = Path(name)
        folder.chmod(0o755)
        script, root = folder / "epilogctld.sh", folder / "root"
        # slurmctld wants to see it at its start, when nobody knows yet where the cluster is.
        script.write_text(
            f"#!/bin/sh\nread -r root <{root}\n"
            f"NCCL_INSPECTOR_TEST_CONTROLLER_DIR=$root/ctl exec $root/root/{HOOK}\n"
        )
        script.chmod(0o755)
        lines = (f"EpilogSlurmctld={script}", *slurm_lines)
        state = Path(tempfile.mkdtemp(prefix="nccl-inspector-test-", dir=place))
        cluster = Cluster.up(state, Options(monitoring=monitoring, slurm_lines=lines))
        try:
            root.write_text(f"{cluster.layout.root}\n")
            found = Service(cluster, wait_s=wait_s)
            found.prepare()
            yield found
        finally:
            cluster.down()
