# SPDX-License-Identifier: Apache-2.0
"""What systemd is told: units that fit together, and the lines of the docs about it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nccl_inspector.agent.kill_switch import Disabled, read_switch
from nccl_inspector.agent.service import STALE_S
from tests.support.repository import PACKAGING

AGENT, COLLECT, CONTROLLER = (
    (PACKAGING / f"nccl-inspector-{name}.service").read_text("ascii")
    for name in ("agent", "collect", "controller")
)
TMPFILES = PACKAGING / "tmpfiles.conf"
RUN_DIR = "run/nccl-inspector"


def create(root: Path, *words: str) -> None:
    """Do as the boot does: all directories and files that the configuration names."""
    if shutil.which("systemd-tmpfiles") is None:
        pytest.skip("no systemd-tmpfiles here")
    subprocess.run(["systemd-tmpfiles", f"--root={root}", "--create", *words], check=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node's root with our package and the page's line that keeps it disabled."""
    for name, text in (
        ("usr/lib/tmpfiles.d/nccl-inspector.conf", TMPFILES.read_text("ascii")),
        ("etc/tmpfiles.d/nccl-inspector-off.conf", page_line()),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text, "ascii")
    (tmp_path / "run").mkdir()
    return tmp_path


def page_line() -> str:
    page = (PACKAGING / "doc" / "operate.md").read_text("utf-8")
    (line,) = re.findall(r"^ +(f! .*)\n", page, re.MULTILINE)
    return f"{line}\n"


def lines(unit: str, *keys: str) -> list[str]:
    return [line for line in unit.splitlines() if line.partition("=")[0] in keys]


def test_the_timers_service_makes_its_directories_as_the_agents_does() -> None:
    (made,) = lines(AGENT, "ExecStartPre")
    assert lines(COLLECT, "ExecStartPre") == [made]
    assert made.endswith("--create /usr/lib/tmpfiles.d/nccl-inspector.conf")


def test_the_timers_service_has_the_agents_bounds_and_reads_no_kernel_log() -> None:
    def bounds(unit: str) -> list[str]:
        after = unit[unit.index("MemoryMax") :].partition("[Install]")[0]
        return [line for line in after.split("\n") if line and not line.startswith("#")]

    assert bounds(COLLECT) == [line.removesuffix(" CAP_SYSLOG") for line in bounds(AGENT)]


def test_the_agent_may_read_the_kernel_log_and_ask_the_gpus() -> None:
    (capabilities,) = lines(AGENT, "CapabilityBoundingSet")
    assert "CAP_SYSLOG" in capabilities
    assert lines(AGENT, "PrivateDevices", "ProtectKernelLogs", "DevicePolicy") == []


@pytest.mark.parametrize("unit", [AGENT, CONTROLLER], ids=["agent", "controller"])
def test_systemd_ends_a_service_that_hangs_and_starts_it_again(unit: str) -> None:
    assert lines(unit, "Type", "NotifyAccess", "Restart") == [
        "Type=notify",
        "NotifyAccess=main",
        "Restart=always",
    ]
    (families,) = lines(unit, "RestrictAddressFamilies")
    assert "AF_UNIX" in families, "the socket of systemd"
    (watchdog,) = lines(unit, "WatchdogSec")
    assert float(watchdog.partition("=")[2]) == STALE_S
    assert lines(unit, "LimitCORE") == ["LimitCORE=0"], "a core has data of users"


def test_the_agents_series_go_however_it_ends() -> None:
    (after,) = lines(AGENT, "ExecStopPost")
    assert after.endswith("/find /run/nccl-inspector/prom -name *.prom -delete")


def test_slurmd_does_not_wait_long_for_an_agent_that_hangs_at_boot() -> None:
    assert "Before=slurmd.service" in AGENT
    (limit,) = lines(AGENT, "TimeoutStartSec")
    assert 12 < float(limit.partition("=")[2]) <= 60, "a whole first pass, and not much more"


def test_the_readmes_line_keeps_a_node_disabled_through_a_boot(root: Path) -> None:
    create(root, "--boot")
    assert read_switch(root / RUN_DIR) == Disabled(0, "NCCL 2.99 hangs")


def test_that_line_does_not_disable_a_node_that_is_up(root: Path) -> None:
    create(root)
    assert read_switch(root / RUN_DIR) is None
    assert (root / RUN_DIR / "control").is_dir()
