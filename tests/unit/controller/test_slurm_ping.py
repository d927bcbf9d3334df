# SPDX-License-Identifier: Apache-2.0
"""Asking `scontrol ping` without waiting for it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.controller import slurm_ping
from nccl_inspector.controller.slurm_ping import Answer, SlurmPing
from tests.sandbox import wait_until
from tests.support.fake_scontrol import Scontrol

SAYS = "echo 'Slurmctld(primary) at n1.x.org is DOWN'; echo 'Slurmctld(backup) at n2 is UP'"


@pytest.fixture
def slurm(tmp_path: Path) -> Scontrol:
    return Scontrol(tmp_path)


@pytest.fixture
def ping(slurm: Scontrol) -> Iterator[SlurmPing]:
    one = SlurmPing(slurm.path)
    yield one
    one.close()


def next_answer(ping: SlurmPing) -> Answer | None:
    heard: list[Answer | None] = []

    def is_heard() -> bool:
        heard.extend(ping.heard(time.monotonic()))
        return bool(heard)

    wait_until(is_heard, 10, "the question is over", 0.01)
    return heard[0]


def test_the_answer_comes_later(slurm: Scontrol, ping: SlurmPing) -> None:
    slurm.says(SAYS)
    assert ping.heard(time.monotonic()) == ()
    assert next_answer(ping) == Answer(("n1", "n2"), "n2")
    assert slurm.asked() == ["ping"]


def test_it_is_asked_again_after_a_pause(
    slurm: Scontrol, ping: SlurmPing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_ping, "ASK_S", 0.1)
    slurm.says("exit 1")
    assert next_answer(ping) is None
    slurm.says(SAYS)
    assert next_answer(ping) == Answer(("n1", "n2"), "n2")


@pytest.mark.parametrize("script", [f"{SAYS}; exit 1", "exit 0", "echo what; exit 0", "kill -9 $$"])
def test_what_fails_or_cannot_be_read_is_no_answer(
    slurm: Scontrol, ping: SlurmPing, script: str
) -> None:
    slurm.says(script)
    assert next_answer(ping) is None


def test_a_missing_scontrol_is_no_answer(ping: SlurmPing) -> None:
    assert next_answer(ping) is None


def test_a_question_that_takes_too_long_is_ended(
    slurm: Scontrol, ping: SlurmPing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_ping, "ANSWER_S", 0.5)
    slurm.says(f"echo $$ >{tmp_path}/pid; exec sleep 60")
    assert next_answer(ping) is None
    pid = (tmp_path / "pid").read_text().strip()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 5, "scontrol has ended")


def test_while_scontrol_hangs_nobody_waits_and_nothing_more_is_asked(
    slurm: Scontrol, ping: SlurmPing, tmp_path: Path
) -> None:
    slurm.says(f"echo $$ >{tmp_path}/pid; exec sleep 60")
    began_s = time.monotonic()
    for _ in range(100):
        assert ping.heard(time.monotonic() + 100) == ()
    assert time.monotonic() - began_s < 1
    wait_until(lambda: slurm.asked() == ["ping"], 5, "it is asked")
    wait_until((tmp_path / "pid").exists, 5, "it says who it is")
    ping.close()
    pid = (tmp_path / "pid").read_text().strip()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 5, "it ends with the service")
