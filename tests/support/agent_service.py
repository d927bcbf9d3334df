# SPDX-License-Identifier: Apache-2.0
"""A running agent with a configuration of its own."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox import ClusterError, wait_until
from tests.support.boxes import make_run_dir
from tests.support.command_line import COMMAND, environment

OWN = "nccl_inspector_agent.prom"


@dataclass
class Service:
    """A running agent."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    conf: Path
    log: Path

    def configure(self, text: str) -> None:
        """Change the configuration and say so."""
        words = f"run_dir = {self.run_dir}\nreport_dir = {self.run_dir}\n"
        self.conf.write_text(words + text)
        self.process.send_signal(signal.SIGHUP)

    def until(self, done: Callable[[], object], what: str) -> None:
        """Wait for a fact; the agent must live meanwhile."""

        def reached() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return bool(done())

        try:
            wait_until(reached, 30, what)
        except ClusterError as error:
            raise AssertionError(f"{error}; the agent said: {self.log.read_text()}") from error

    def own(self) -> str:
        """What it publishes of itself."""
        path = self.run_dir / "prom" / OWN
        return path.read_text() if path.exists() else ""


@contextmanager
def service(tmp_path: Path, text: str = "", program: str = "", **more: str) -> Iterator[Service]:
    """Run an agent; `program`: Python that it executes first; `more`: of its environment."""
    run_dir = make_run_dir(tmp_path / "run")
    conf, log = tmp_path / "x.conf", tmp_path / "log"
    usual = {"run_dir": run_dir, "report_dir": run_dir, "agent_interval": "100ms"}
    lines = [f"{key} = {value}\n" for key, value in usual.items() if key not in text]
    conf.write_text("".join(lines) + text)
    code = f"{program}\nfrom nccl_inspector.cli import main; main()"
    words = [COMMAND[0], "-c", code] if program else COMMAND
    argv = [*words, "agent", "--conf", str(conf)]
    # As from a shell that lets nobody else read: what it publishes is for others all the same.
    with (
        log.open("wb") as out,
        subprocess.Popen(argv, env=environment() | more, stderr=out, umask=0o077) as process,
    ):
        one = Service(process, run_dir, conf, log)
        try:
            one.until(one.own, "the first pass")
            yield one
        finally:
            process.send_signal(signal.SIGCONT)  # if a test has stopped it
            process.terminate()
            process.wait(10)
