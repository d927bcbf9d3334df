# SPDX-License-Identifier: Apache-2.0
"""The command on a pseudo terminal: drawn in place, and nothing of it left."""

import errno
import fcntl
import os
import pty
import re
import select
import signal
import termios
import time
from collections.abc import Callable
from struct import pack

import pytest

from tests.support.command_line import COMMAND
from tests.support.live_node import Node, rank_box
from tests.support.repository import PYTHON_DIR

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
COLOUR = re.compile(r"\x1b\[[0-9]+m")


class Terminal:
    """A program on a terminal of its own."""

    def __init__(
        self, node: Node, *words: str, columns: int = 80, script: str = "", **env: str
    ) -> None:
        """Run it on the terminal itself, or as "$@" of a script of a shell with job control."""
        self.said = ""
        argv = [*COMMAND, "top", "--run-dir", str(node.run_dir), *words]
        if script:
            argv = ["/bin/bash", "-mc", script, "-", *argv]
        variables = {"TERM": "xterm", "PYTHONPATH": str(PYTHON_DIR)} | env
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(argv[0], argv, variables)  # noqa: S606
        self.resize(columns)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, pack("HHHH", 24, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)

    def _read(self) -> bool:
        """Take what it has said; False at its end."""
        try:
            part = os.read(self.fd, 65536)
        except OSError as err:  # nobody has it open any more
            if err.errno != errno.EIO:
                raise
            return False
        self.said += part.decode()
        return True

    def wait_for(self, check: Callable[[str], bool]) -> None:
        """Wait until what it has said is so."""
        end = time.monotonic() + 15
        while not check(self.said):
            ready = select.select([self.fd], [], [], end - time.monotonic())[0]
            assert ready, f"not in {self.said!r}"
            assert self._read(), f"ended: {self.said!r}"

    def end(self, number: signal.Signals) -> int:
        """Send a signal; the exit status."""
        os.kill(self.pid, number)
        return self.wait()

    def wait(self) -> int:
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def busy(node: Node) -> Node:
    """A node with a job in which something is wrong."""
    node.start(node.job(), "0_1", rank_box(0, ago_s=300))
    return node


def test_it_is_drawn_in_place_and_ctrl_c_leaves_the_terminal_as_it_was(busy: Node) -> None:
    terminal = Terminal(busy, "--interval", "0.1")
    terminal.wait_for(lambda said: said.count("JOB USER") >= 2)
    assert terminal.end(signal.SIGINT) == 0
    assert terminal.said.startswith(ENTER)
    assert terminal.said.endswith(LEAVE)
    assert "\x1b[?25h" in terminal.said
    assert "Traceback" not in terminal.said
    assert COLOUR.search(terminal.said)


def test_keys_choose_a_job_and_show_its_ranks(busy: Node) -> None:
    terminal = Terminal(busy, "--interval", "60")
    terminal.wait_for(lambda said: "q quit" in said)
    terminal.press("\x1b[B")
    terminal.wait_for(lambda said: "\x1b[7m" in said)
    terminal.press("\r")
    terminal.wait_for(lambda said: "rank 0 GPU0" in said)
    terminal.press("/gone\r")
    terminal.wait_for(lambda said: 'only "gone"' in said)
    terminal.press("q")
    assert terminal.wait() == 0
    assert terminal.said.endswith(LEAVE)


def test_the_terminal_echoes_again_after_the_last_key(busy: Node) -> None:
    terminal = Terminal(busy, "--interval", "60")
    assert terminal.echoes()
    terminal.wait_for(lambda said: "q quit" in said)
    assert not terminal.echoes()
    terminal.press("q")
    assert terminal.wait() == 0
    assert terminal.echoes()


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_draws_again(busy: Node) -> None:
    terminal = Terminal(busy, "--interval", "60", script='"$@"; stty -a; fg')
    terminal.wait_for(lambda said: "q quit" in said)
    terminal.press("\x1a")
    terminal.wait_for(lambda said: said.count(ENTER) == 2)
    in_shell = terminal.said[terminal.said.index(LEAVE) : terminal.said.rindex(ENTER)]
    assert " echo " in in_shell, "stty found it as a shell needs it"
    terminal.press("q")
    terminal.wait()
    assert terminal.said.endswith(LEAVE)


@pytest.mark.long
def test_a_termination_leaves_the_terminal_too(busy: Node) -> None:
    terminal = Terminal(busy, "--interval", "60")
    terminal.wait_for(lambda said: "JOB USER" in said)
    assert terminal.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert terminal.said.endswith(LEAVE)


@pytest.mark.long
def test_another_width_is_drawn_at_once(busy: Node) -> None:
    terminal = Terminal(busy, "--interval", "60")
    terminal.wait_for(lambda said: "JOB USER" in said)
    terminal.resize(200)
    terminal.wait_for(lambda said: "WHAT IS WRONG" in said)
    assert terminal.end(signal.SIGINT) == 0


@pytest.mark.long
def test_an_error_leaves_the_terminal_and_then_is_one_line(busy: Node) -> None:
    terminal = Terminal(busy, "--interval", "0.1")
    terminal.wait_for(lambda said: "JOB USER" in said)
    (busy.run_dir / "jobs").rename(busy.run_dir / "gone")
    assert terminal.wait() == 1
    (busy.run_dir / "gone").rename(busy.run_dir / "jobs")
    after = terminal.said[terminal.said.rindex(LEAVE) + len(LEAVE) :]
    assert after == f"nccl-inspector: {busy.run_dir}/jobs: No such file or directory\r\n"


@pytest.mark.long
def test_no_color_is_respected(busy: Node) -> None:
    terminal = Terminal(busy, "--interval", "60", NO_COLOR="1")
    terminal.wait_for(lambda said: "has not beaten" in said)
    assert terminal.end(signal.SIGINT) == 0
    assert not COLOUR.search(terminal.said)


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("--once",)])
def test_a_dumb_terminal_and_once_give_one_plain_table(busy: Node, words: tuple[str, ...]) -> None:
    terminal = Terminal(busy, "--interval", "0.1", *words, TERM="dumb")
    assert terminal.wait() == 0
    assert "\x1b" not in terminal.said
    assert terminal.said.count("JOB USER") == 1
