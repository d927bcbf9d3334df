# SPDX-License-Identifier: Apache-2.0
"""What Slurm's commands print, of several releases, and a slurmctld that does not answer."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.doctor.bounded import gather
from nccl_inspector.doctor.facts import CannotTell, release_of
from nccl_inspector.doctor.processes import Running
from nccl_inspector.doctor.read_slurm import (
    clock_ahead,
    daemon_uid,
    parse_config,
    read_clock,
    read_slurm,
)
from nccl_inspector.settings.config import Config
from nccl_inspector.settings.config import parse_config as parse_settings

OLD = """Configuration data as of 2026-11-25T06:04:28
EpilogSlurmctld         = (null)
PlugStackConfig         = /etc/slurm/plugstack.conf
Prolog                  = /etc/slurm/prolog.d/*
SlurmUser               = slurm(64030)
SlurmctldHost[0]        = head(10.0.0.1)

Slurmctld(primary) at head is UP
"""
NEW = OLD.replace("Prolog    ", "Prolog[0] ") + "Prolog[1] = /opt/own\nSlurmctldHost[1] = spare\n"


def test_the_configuration_of_old_and_new_releases_is_read() -> None:
    old, new = parse_config(OLD), parse_config(NEW)
    assert old["Prolog"] == "/etc/slurm/prolog.d/*"
    assert new["Prolog"] == "/etc/slurm/prolog.d/*,/opt/own"
    assert new["SlurmctldHost"] == "head(10.0.0.1),spare"
    assert "EpilogSlurmctld" not in old
    assert daemon_uid(old, "SlurmUser") == 64030
    assert daemon_uid({"SlurmUser": "slurm"}, "SlurmUser") is None


@pytest.mark.parametrize(
    ("text", "release"),
    [("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 24.11.5\n", (24, 11)), ("bash: no", None)],
)
def test_the_release_is_read(text: str, release: tuple[int, int] | None) -> None:
    assert release_of(text) == release


@pytest.mark.parametrize(
    ("before", "after", "controller", "ahead"),
    [
        (100.2, 100.3, 100, 0.0),  # the controller's second began at 100.0
        (100.2, 100.3, 99, 0.2),
        (107.5, 107.6, 100, 6.5),
        (93.0, 93.5, 100, -6.5),
        (100.0, 104.0, 102, 0.0),  # a slow answer proves nothing
    ],
)
def test_clocks_differ_only_by_what_is_certain(
    before: float, after: float, controller: int, ahead: float
) -> None:
    assert clock_ahead(before, after, controller) == pytest.approx(ahead)


def commands(folder: Path, scontrol: str, sdiag: str = "exit 1") -> Config:
    for name, body in (("scontrol", scontrol), ("sdiag", sdiag)):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return parse_settings(f"scontrol = {folder}/scontrol\n", "test")


def test_a_scontrol_that_hangs_is_told_and_not_waited_for(tmp_path: Path) -> None:
    config = commands(tmp_path, '[ "$1" = --version ] && echo slurm 24.11.5 || sleep 60')
    begun = time.monotonic()
    found = gather({"it": lambda: read_slurm(config, ())})["it"]
    assert time.monotonic() - begun < 12
    assert found == CannotTell("scontrol show config: no answer in 4 s")


def test_without_slurm_it_says_so(tmp_path: Path) -> None:
    config = parse_settings(f"scontrol = {tmp_path}/none\n", "test")
    found = gather({"it": lambda: read_slurm(config, ())})["it"]
    assert isinstance(found, CannotTell)
    assert "No such file or directory" in found.reason


def test_the_controllers_clock_comes_from_sdiag(tmp_path: Path) -> None:
    said = f"sdiag output at Wed Nov 25 06:04:28 2026 ({int(time.time()) + 100})"
    config = commands(tmp_path, "exit 1", f"echo '{said}'")
    assert -101 < read_clock(config) < -98


def test_an_sdiag_of_another_form_is_no_clock(tmp_path: Path) -> None:
    config = commands(tmp_path, "exit 1", "echo sdiag output at noon")
    found = gather({"it": lambda: read_clock(config)})["it"]
    assert found == CannotTell("sdiag does not tell the controller's time")


SCONTROL = 'case "$*" in --version) echo slurm 24.11.5;; *config*) echo x = y;; *) echo "$@";; esac'


@pytest.mark.parametrize("uid", [33, 65534])
def test_no_program_of_another_account_is_run_because_it_is_called_slurmd(
    tmp_path: Path, uid: int
) -> None:
    config = commands(tmp_path, SCONTROL)
    program = tmp_path / "slurmd"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho slurm 22.05.8\n")
    program.chmod(0o755)
    theirs = Running(7, "slurmd", (str(program), "-N", "theirs"), uid, is_here=True)
    ours = replace(theirs, uid=os.geteuid())
    found = read_slurm(config, (theirs,))
    assert found.node_name != "theirs"
    assert not (tmp_path / "ran").exists()
    assert read_slurm(config, (theirs, ours)).node_name == "theirs"
    assert (tmp_path / "ran").exists()


def test_what_is_no_name_of_a_host_is_no_argument_of_scontrol(tmp_path: Path) -> None:
    config = commands(tmp_path, f'echo "$@" >>{tmp_path}/asked; {SCONTROL}')
    slurmd = Running(7, "slurmd", ("slurmd", "-N", "--all"), os.geteuid(), is_here=True)
    assert read_slurm(config, (slurmd,)).node_state == ""
    assert "node" not in (tmp_path / "asked").read_text()
