# SPDX-License-Identifier: Apache-2.0
"""The files for Enroot, against the settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.doctor.check import Outcome, run_check
from nccl_inspector.doctor.read_enroot import read_enroot
from nccl_inspector.doctor.registry import BY_ID
from nccl_inspector.settings.config import parse_config
from tests.support.doctor_facts import healthy
from tests.support.repository import PACKAGING

SHIPPED = PACKAGING / "enroot"
FSTAB, HOOK = SHIPPED / "50-nccl-inspector.fstab", SHIPPED / "50-nccl-inspector.sh"


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    """The shipped hook, with the mode that it is installed with."""
    path = tmp_path / HOOK.name
    path.write_bytes(HOOK.read_bytes())
    path.chmod(0o755)
    return path


def evidence(fstab: Path, hook: Path, conf: str = "") -> str:
    enroot = read_enroot(parse_config(conf, "x.conf"), fstab, hook)
    result = run_check(BY_ID["enroot-files"], replace(healthy(), enroot=enroot))
    assert result.outcome is not Outcome.CANNOT_TELL
    return result.evidence


def test_the_shipped_files_fit_the_default_settings(hook: Path) -> None:
    assert evidence(FSTAB, hook) == ""


@pytest.mark.parametrize(
    ("conf", "missing"),
    [
        ("run_dir = /local/nccl", "/local/nccl/control (setting `run_dir`)"),
        ("profiler = /opt/libx.so", "/opt/libx.so (setting `profiler`)"),
    ],
)
def test_a_setting_that_the_fstab_does_not_follow_is_named(
    hook: Path, conf: str, missing: str
) -> None:
    assert evidence(FSTAB, hook, conf) == f"{FSTAB} does not mount {missing}"


def test_a_plugin_that_the_loader_finds_needs_no_mount(hook: Path) -> None:
    assert evidence(FSTAB, hook, "profiler = libnccl-profiler-inspector.so") == ""


def test_a_line_that_was_commented_out_mounts_nothing(hook: Path, tmp_path: Path) -> None:
    fstab = tmp_path / "fstab"
    fstab.write_text(FSTAB.read_text().replace("/run/nccl", "#/run/nccl"))
    assert "control (setting `run_dir`)" in evidence(fstab, hook)


def test_a_mount_at_another_place_inside_does_not_help(hook: Path, tmp_path: Path) -> None:
    fstab = tmp_path / "fstab"
    fstab.write_text(FSTAB.read_text().replace("     /usr/lib/nccl-inspector  ", " /opt/nccl "))
    assert "(setting `profiler`)" in evidence(fstab, hook)


def test_where_neither_is_installed_nothing_is_said(tmp_path: Path) -> None:
    assert evidence(tmp_path / "no.fstab", tmp_path / "no.sh") == ""


def test_one_without_the_other_is_told(hook: Path, tmp_path: Path) -> None:
    assert "no.sh: No such file" in evidence(FSTAB, tmp_path / "no.sh")
    assert "no.fstab: No such file" in evidence(tmp_path / "no.fstab", hook)
    hook.chmod(0o644)
    assert "is not executable: its mode is 0644" in evidence(FSTAB, hook)
