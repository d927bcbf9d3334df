# SPDX-License-Identifier: Apache-2.0
"""A site with PrivateData: who may read what a node publishes of everybody's jobs."""

import grp
import logging
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nccl_inspector.agent.endpoint import Endpoint
from nccl_inspector.agent.service import Agent, run_agent
from nccl_inspector.agent.status import read_status
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config
from tests.support.boxes import BoxOf, lock_held, make_job, make_run_dir, write_box, write_user_file
from tests.support.marks import as_root
from tests.support.processes import free_address
from tests.support.publishing import GAUGE, GOOD, PROM, STEM, config_of

pytestmark = as_root
GROUP = grp.getgrgid(65534).gr_name
STRANGER = 65533


@pytest.fixture
def config() -> Iterator[Config]:
    """A node whose `prom/` is closed, with a job that publishes; everybody may go there."""
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        run_dir = make_run_dir(Path(place) / "run")
        raw = make_job(run_dir / "jobs" / "42")
        write_user_file(raw / PROM, GOOD)
        with lock_held(write_box(raw, STEM, BoxOf(state=1))):
            yield replace(config_of(run_dir), prom_group=GROUP)


@contextmanager
def agent_of(config: Config) -> Iterator[Agent]:
    run_fd = os.open(config.run_dir, os.O_RDONLY)
    one = Agent(config, run_fd, watching=False)
    try:
        yield one
    finally:
        one.close()
        os.close(run_fd)


def reads(run_dir: Path, *groups: int) -> bool:
    """Whether a stranger with these groups can read a job's published series."""
    prom_fd = os.open(run_dir / "prom", os.O_RDONLY)
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            fd = os.open("42.prom", os.O_RDONLY, dir_fd=prom_fd)
            os._exit(0 if GAUGE.encode() in os.read(fd, 65536) else 1)
        finally:
            os._exit(2)
    os.close(prom_fd)
    return os.waitpid(pid, 0)[1] == 0


def mode_of(run_dir: Path) -> tuple[int, int]:
    status = (run_dir / "prom").stat()
    return status.st_mode & 0o7777, status.st_gid


def test_without_the_setting_everybody_reads_them_as_ever(config: Config) -> None:
    run_agent(replace(config, prom_group=""), once=True)
    assert mode_of(config.run_dir) == (0o755, 0)
    assert reads(config.run_dir)


def test_with_it_only_the_group_does(config: Config) -> None:
    run_agent(config, once=True)
    assert mode_of(config.run_dir) == (0o750, 65534)
    assert not reads(config.run_dir)
    assert reads(config.run_dir, 65534), "node_exporter's account is in the group"
    assert os.getegid() == 0


def test_a_mode_that_systemd_tmpfiles_sets_again_stays_for_one_pass_at_most(
    config: Config,
) -> None:
    with agent_of(config) as agent:
        agent.run_pass(0)
        (config.run_dir / "prom").chmod(0o755)
        os.chown(config.run_dir / "prom", 0, 0)
        agent.run_pass(0)
        assert mode_of(config.run_dir) == (0o750, 65534)


def test_taking_the_setting_away_opens_the_directory_again(config: Config) -> None:
    with agent_of(config) as agent:
        agent.run_pass(0)
        agent.configure(replace(config, prom_group=""))
        assert mode_of(config.run_dir) == (0o755, 0)


def test_a_group_that_does_not_exist_is_an_error_and_nothing_is_published(config: Config) -> None:
    with pytest.raises(InspectorError, match="prom_group = nonesuch: there is no such group"):
        run_agent(replace(config, prom_group="nonesuch"), once=True)
    assert not list((config.run_dir / "prom").iterdir())


def test_the_http_endpoint_reads_a_closed_directory(config: Config) -> None:
    run_agent(config, once=True)
    run_fd = os.open(config.run_dir, os.O_RDONLY)
    one = Endpoint(free_address(), run_fd, {"cluster": "", "node": "n1"}, 120)
    try:
        with urllib.request.urlopen(f"http://{one.address}/metrics", timeout=5) as answer:
            assert GAUGE.encode() in answer.read()
    finally:
        one.close()
        os.close(run_fd)


def test_a_user_who_may_not_look_is_told_of_no_trouble(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with agent_of(config) as agent:
        agent.run_pass(0)
        assert not caplog.records
        before = read_status(config.run_dir, config.agent_interval_s).trouble
        os.seteuid(STRANGER)
        try:
            after = read_status(config.run_dir, config.agent_interval_s).trouble
        finally:
            os.seteuid(0)
        assert after == before
