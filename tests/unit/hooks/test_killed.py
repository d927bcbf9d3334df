# SPDX-License-Identifier: Apache-2.0
"""Hooks killed half-way: at each of their system calls, alone or with their children.

The rounds share one job id: whatever a killed hook leaves must neither keep that
job from working again nor stay.
"""

import os
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from nccl_inspector.agent import collect
from nccl_inspector.agent.manifest import parse_manifest
from nccl_inspector.agent.service import Agent
from nccl_inspector.errors import RefusedError
from nccl_inspector.settings.config import parse_config
from tests.support.hook_scripts import EMPTY, EPILOG, JOB, PROLOG, Node, sh
from tests.support.repository import BUILD

KILL_AT = BUILD / "host" / "kill_at"
STOPS_MIN = 100  # any shell needs more to start; fewer mean that nothing was killed
AGENTS_OWN = "prom/nccl_inspector_agent.prom"

pytestmark = [
    pytest.mark.long,  # each hook is killed some hundred times
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs the hooks as root"),
]


@pytest.fixture(params=["dash", "bash"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path / "run", sh(tmp_path, request.param))


@pytest.fixture
def agent(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """The node's agent; it waits neither an hour for what is half-made nor for counters."""
    monkeypatch.setattr(collect, "TORN_S", -1)
    run_fd = os.open(node.run_dir, os.O_RDONLY)
    config = parse_config(f"run_dir = {node.run_dir}\ncounters = 0\n", "test")
    one = Agent(config, run_fd)
    yield one
    one.close()
    os.close(run_fd)


def killed(node: Node, hook: Path, stop: int, how: str, **env: str) -> bool:
    """Run a hook that dies at this stop; False when it had ended before, and well."""
    done = subprocess.run(
        [KILL_AT, str(stop), how, node.shell, hook],
        env=JOB | {"NCCL_INSPECTOR_TEST_RUN_DIR": str(node.run_dir)} | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=10,
        check=False,
    )
    assert done.returncode in (0, 1)
    assert done.stdout + done.stderr == b""
    return done.returncode == 0


def check_no_lie(node: Node) -> None:
    """What says that it is whole is this job's, and is whole."""
    try:
        manifest = parse_manifest((node.job / "manifest").read_bytes())
    except (FileNotFoundError, RefusedError):
        return
    assert manifest.job_id == 42
    assert node.is_whole()


def attempts(node: Node) -> list[str]:
    """Return the restart counts of the whole directories that wait for the agent."""
    found = []
    for path in node.ended():
        try:
            found.append(str(parse_manifest((path / "manifest").read_bytes()).restart))
        except (FileNotFoundError, RefusedError):
            continue
    return sorted(found)


def check_swept(node: Node, agent: Agent) -> None:
    agent.run_pass(0)
    assert node.tree() == sorted([*EMPTY, "control/at_work", AGENTS_OWN])


@pytest.mark.parametrize("how", ["alone", "group"])
def test_a_prolog_killed_anywhere_leaves_nothing_that_lasts(
    node: Node, agent: Agent, how: str
) -> None:
    for stop in count():
        going_on = killed(node, PROLOG, stop, how)
        check_no_lie(node)
        agent.run_pass(0)
        if stop % 3:
            restart = str(stop % 3 - 1)  # the same attempt's again, or the next one's
            assert node.prolog(SLURM_JOB_RESTART_COUNT=restart) == ""
            assert node.is_whole()
            assert node.manifest()["restart"] == restart
        assert node.epilog() == ""
        assert not node.job.exists()
        check_swept(node, agent)
        if not going_on:
            assert stop > STOPS_MIN
            return


@pytest.mark.parametrize("how", ["alone", "group"])
def test_an_epilog_killed_anywhere_loses_nothing_and_leaves_nothing(
    node: Node, agent: Agent, how: str
) -> None:
    for stop in count():
        assert node.prolog() == ""
        (node.run_dir / "prom" / "42.prom").touch()
        going_on = killed(node, EPILOG, stop, how)
        assert node.is_whole() if node.job.exists() else attempts(node) == ["0"]
        expected = ["0"]
        if stop % 3 == 0:
            assert node.epilog() == ""
            assert not (node.run_dir / "prom" / "42.prom").exists()
        elif stop % 3 == 1:
            assert node.prolog(SLURM_JOB_RESTART_COUNT="1") == ""
            assert node.is_whole()
            assert node.epilog() == ""
            expected = ["0", "1"]
        else:
            agent.run_pass(0)
            assert not (node.run_dir / "prom" / "42.prom").exists()
            expected = ["0"] if node.job.exists() else []
            assert node.epilog() == ""
        assert attempts(node) == expected
        check_swept(node, agent)
        if not going_on:
            assert stop > STOPS_MIN
            return
