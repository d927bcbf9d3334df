# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin as Slurm loads it, under a fake Slurm that prints what the plugin asks of it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "build" / "spank_nccl_inspector.so"
FAKE_SLURM = ROOT / "build" / "host" / "fake_slurm"

OPTION_VARIABLE = "SLURM_SPANK__SLURM_SPANK_OPTION_nccl_inspector_nccl_inspector"
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
OURS = {
    "NCCL_PROFILER_PLUGIN",
    "NCCL_INSPECTOR_ENABLE",
    "NCCL_INSPECTOR_RUN_DIR",
    "NCCL_INSPECTOR_PROM_DUMP",
    INTERVAL,
    "NCCL_INSPECTOR_ENABLE_P2P",
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES",
    "NCCL_INSPECTOR_SET_BY_SLURM",
}


class Host:
    """What one run of the fake Slurm printed."""

    def __init__(self, *args: str, environ: dict[str, str] | None = None) -> None:
        done = subprocess.run(
            [FAKE_SLURM, PLUGIN, *args],
            env=environ or {},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        self.code = done.returncode
        self.lines = done.stdout.splitlines()
        assert done.stderr == ""
        assert self.code in (0, 255), done.stdout

    def starting(self, prefix: str) -> list[str]:
        return [line.removeprefix(prefix) for line in self.lines if line.startswith(prefix)]

    @property
    def env(self) -> dict[str, str]:
        """The environment that the job's tasks get."""
        return dict(line.split("=", 1) for line in self.starting("env "))

    @property
    def messages(self) -> list[str]:
        return self.starting("error: ") + self.starting("info: ")

    @property
    def told_hooks(self) -> list[str]:
        return self.starting("job_control_setenv ")


def submit(*args: str, environ: dict[str, str] | None = None, by: str = "allocator") -> Host:
    return Host(f"--context={by}", "--word=conf=/nonexistent", *args, environ=environ)


class Node:
    """A node whose prolog has run for some jobs."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def prolog(self, job: int) -> Path:
        raw = self.run_dir / "jobs" / str(job) / "raw"
        raw.mkdir(parents=True)
        return raw

    def step(
        self,
        *args: str,
        job: int = 42,
        env: dict[str, str] | None = None,
        conf: str = "/nonexistent",
    ) -> Host:
        host = Host(
            "--context=remote",
            f"--word=run_dir={self.run_dir}",
            f"--word=conf={conf}",
            f"--job={job}",
            *[f"--env={name}={value}" for name, value in (env or {}).items()],
            *args,
        )
        assert host.code == 0
        assert "slurm_spank_user_init -> 0" in host.lines
        return host


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.prolog(42)
    return node


def test_the_library_exports_its_contract_and_no_more() -> None:
    out = subprocess.run(
        ["nm", "-D", "--defined-only", PLUGIN], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in out.splitlines()} == {
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "spank_plugin_version",
        "slurm_spank_init",
        "slurm_spank_init_post_opt",
        "slurm_spank_user_init",
    }


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("bogus", 'unknown mode "bogus"; modes: prom, report, off'),
        ("", 'unknown mode ""; modes: prom, report, off'),
        ("json", 'mode "json" is not available in this release; modes: prom, report, off'),
        ("prom+json", 'mode "prom+json" is not available in this release; modes:'),
        ("prom,interval=-3", 'interval="-3" is not a number with ms, s, m or h, from 100ms to 1h'),
        ("prom,color=red", 'unknown key "color"; keys: interval, p2p, min_size'),
        ("p" * 10_000, "the value has more than 1024 bytes; modes: prom, report, off"),
        ("prom\x1b[31m\n,p2p", 'unknown mode "prom?[31m?"'),
        ("%s%n%n", 'unknown mode "%s%n%n"'),
    ],
)
@pytest.mark.parametrize("by", ["allocator", "local"])
def test_a_bad_value_is_refused_at_submit_in_one_line(by: str, value: str, problem: str) -> None:
    host = submit(f"--option={value}", by=by)
    assert host.code == 255
    assert len(host.messages) == 1
    assert host.messages[0].startswith(f"nccl-inspector: {problem}")
    assert "\\x" not in host.messages[0]
    assert not host.told_hooks


@pytest.mark.parametrize("context", ["allocator", "local", "remote"])
def test_the_option_is_known_wherever_it_is_used(context: str) -> None:
    assert Host(f"--context={context}").starting("register ") == [
        "nccl-inspector MODE[,key=value] has_arg=1"
    ]


def test_slurmd_itself_gets_nothing() -> None:
    assert Host("--context=slurmd").lines == ["slurm_spank_init -> 0"]


@pytest.mark.parametrize("by", ["allocator", "local"])
@pytest.mark.parametrize("mode", ["prom", "report", "off"])
def test_the_hooks_are_told_the_mode_alone(by: str, mode: str) -> None:
    host = submit(f"--option={mode},interval=2,p2p", by=by)
    assert host.told_hooks == [f"NCCL_INSPECTOR={mode} overwrite=1"]


def test_the_last_option_wins_as_a_whole(node: Node) -> None:
    assert submit("--option=prom", "--option=off").told_hooks == ["NCCL_INSPECTOR=off overwrite=1"]
    host = node.step("--option=prom,interval=2", "--option=report")
    assert host.env["NCCL_INSPECTOR_PROM_DUMP"] == "0"
    assert host.env[INTERVAL] == "30000000"


@pytest.mark.parametrize(
    ("args", "environ", "told"),
    [
        ([], {}, []),  # an srun in this allocation may still want its directory
        (["--word=default=prom"], {}, ["NCCL_INSPECTOR=prom overwrite=1"]),
        (
            ["--word=default=prom"],
            {"SLURM_NCCL_INSPECTOR": "off"},
            ["NCCL_INSPECTOR=off overwrite=1"],
        ),
        (
            ["--word=default=prom"],
            {"SLURM_NCCL_INSPECTOR": ""},
            ["NCCL_INSPECTOR=prom overwrite=1"],
        ),
        (
            ["--option=report"],
            {"SLURM_NCCL_INSPECTOR": "off"},
            ["NCCL_INSPECTOR=report overwrite=1"],
        ),
    ],
)
def test_at_submit_option_variable_and_site_rank_in_this_order(
    args: list[str], environ: dict[str, str], told: list[str]
) -> None:
    assert submit(*args, environ=environ).told_hooks == told


def test_a_bad_variable_at_submit_is_told_and_refuses_nothing() -> None:
    host = submit(environ={"SLURM_NCCL_INSPECTOR": "bogus"})
    assert host.code == 0
    assert host.messages == [
        'nccl-inspector: SLURM_NCCL_INSPECTOR: unknown mode "bogus"; modes: prom, report, off'
    ]
    assert not host.told_hooks


def test_a_step_does_not_speak_for_its_job() -> None:
    inside = {"SLURM_JOB_ID": "42"}
    assert not submit("--option=off", by="local", environ=inside).told_hooks
    assert submit("--option=off", environ=inside).told_hooks  # sbatch in a job: a job of its own


def test_a_broken_file_on_the_submit_host_is_told_to_those_who_asked(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.write_text("oops\n")
    assert not submit(f"--word=conf={conf}").messages
    host = submit(f"--word=conf={conf}", "--option=prom")
    assert host.messages == [f'nccl-inspector: {conf}:1: "oops" is not `key = value\'']
    assert host.told_hooks == ["NCCL_INSPECTOR=prom overwrite=1"]


def test_a_job_that_asks_for_nothing_is_left_alone(node: Node) -> None:
    host = node.step(env={"PATH": "/bin"})
    assert host.env == {"PATH": "/bin"}
    assert not host.messages


def test_the_tasks_get_every_variable_of_the_contract(node: Node) -> None:
    host = node.step("--word=profiler=/opt/p.so", "--option=prom,interval=2,p2p=0,min_size=1M")
    env = host.env
    marker = env.pop("NCCL_INSPECTOR_SET_BY_SLURM").split()
    assert env == {
        "NCCL_PROFILER_PLUGIN": "/opt/p.so",
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": f"{node.run_dir}/jobs/42/raw",
        "NCCL_INSPECTOR_PROM_DUMP": "1",
        INTERVAL: "2000000",
        "NCCL_INSPECTOR_ENABLE_P2P": "0",
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": "1048576",
    }
    assert marker[0] == "42"
    assert {entry.split(":")[0] for entry in marker[1:]} == set(env)
    assert "NCCL_INSPECTOR_ENABLE:af63ac4c86019afc" in marker  # FNV-1a 64 of "1"
    assert not host.messages


@pytest.mark.parametrize(
    ("args", "env", "dump"),
    [
        (["--word=default=prom"], {}, "1"),
        (["--word=default=prom"], {"SLURM_NCCL_INSPECTOR": "report"}, "0"),
        (["--word=default=prom"], {"SLURM_NCCL_INSPECTOR": ""}, "1"),
        ([], {OPTION_VARIABLE: "report", "SLURM_NCCL_INSPECTOR": "prom"}, "0"),
        (["--option=prom"], {OPTION_VARIABLE: "report"}, "1"),
        (["--option=off"], {OPTION_VARIABLE: "report", "SLURM_NCCL_INSPECTOR": "prom"}, None),
        (["--word=default=prom", "--option=off"], {}, None),
    ],
)
def test_on_the_node_option_variables_and_site_rank_in_this_order(
    node: Node, args: list[str], env: dict[str, str], dump: str | None
) -> None:
    assert node.step(*args, env=env).env.get("NCCL_INSPECTOR_PROM_DUMP") == dump


@pytest.mark.parametrize("value", ["bogus", "prom,interval=-3", "p" * 5000, "json", "\x01"])
def test_a_bad_value_on_the_node_means_off_and_one_line(node: Node, value: str) -> None:
    for host in (
        node.step(f"--option={value}"),
        node.step(env={"SLURM_NCCL_INSPECTOR": value}),
        node.step(env={OPTION_VARIABLE: value}),
    ):
        assert len(host.messages) == 1
        assert host.messages[0].startswith("nccl-inspector: job 42: no metrics: ")
        assert not OURS & set(host.env)


def test_a_broken_file_means_off_and_one_line_with_file_line_and_reason(
    node: Node, tmp_path: Path
) -> None:
    conf = tmp_path / "conf"
    conf.write_text("default = prom\ninterval = soon\n")
    for args in ([], ["--option=prom"]):
        host = node.step(*args, conf=str(conf))
        assert host.messages == [
            f'nccl-inspector: job 42: no metrics: {conf}:2: interval="soon" is not a number with'
            " ms, s, m or h, from 100ms to 1h"
        ]
        assert not OURS & set(host.env)


def test_only_who_asked_sees_the_reason_on_his_terminal(node: Node) -> None:
    assert node.step("--word=bogus=1").starting("info: ")
    assert node.step("--word=bogus=1", "--option=prom").starting("error: ")


def test_words_of_plugstack_override_the_file(node: Node, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.write_text("default = prom\ninterval = 7s\nmin_size = 4K\n")
    env = node.step("--word=interval=9s", conf=str(conf)).env
    assert env[INTERVAL] == "9000000"
    assert env["NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES"] == "4096"


def test_without_the_prologs_directory_nothing_is_set(node: Node) -> None:
    host = node.step("--option=prom", job=43)
    assert host.starting("info: ") == [
        "nccl-inspector: job 43: no metrics: no directory "
        f"{node.run_dir}/jobs/43/raw (was the prolog run?)"
    ]
    assert not host.env


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_no_directory(node: Node) -> None:
    os.chown(node.prolog(43), 65534, 65534)
    host = node.step("--option=prom", job=43)
    assert len(host.messages) == 1
    assert not host.env


def test_an_inner_step_replaces_and_removes_what_its_batch_step_had(node: Node) -> None:
    batch = node.step("--option=prom").env
    inner = node.step("--option=report,interval=2", env=batch).env
    assert set(inner) == OURS
    assert inner["NCCL_INSPECTOR_PROM_DUMP"] == "0"
    assert inner[INTERVAL] == "2000000"
    assert node.step("--option=off", env=batch).env == {}


def test_a_job_in_a_job_loses_the_outer_ones_variables_also_when_off(node: Node) -> None:
    outer = node.step("--option=prom").env
    assert node.step(job=43, env=outer).env == {}
    node.prolog(44)
    inner = node.step("--option=prom", job=44, env=outer).env
    assert inner["NCCL_INSPECTOR_RUN_DIR"] == f"{node.run_dir}/jobs/44/raw"


def test_the_users_own_variable_wins_and_the_log_says_so(node: Node) -> None:
    host = node.step("--option=prom", env={INTERVAL: "5"})
    assert host.env[INTERVAL] == "5"
    assert host.env["NCCL_INSPECTOR_ENABLE"] == "1"
    assert host.starting("info: ") == [
        f"nccl-inspector: job 42: the user's own variables win: {INTERVAL}"
    ]


def test_with_the_users_own_profiler_nothing_of_ours_is_set(node: Node) -> None:
    mine = {"NCCL_PROFILER_PLUGIN": "/home/me/mine.so"}
    host = node.step("--option=prom", env=mine)
    assert host.env == mine
    assert host.starting("info: ") == [
        "nccl-inspector: job 42: the user's own variables win: NCCL_PROFILER_PLUGIN"
        " (nothing else is set)"
    ]


def test_a_value_too_long_to_be_ours_is_the_users(node: Node) -> None:
    mine = {"NCCL_PROFILER_PLUGIN": "x" * 8000, "NCCL_INSPECTOR_SET_BY_SLURM": "42 " + "y" * 8000}
    host = node.step("--option=prom", env=mine)
    assert host.env == {"NCCL_PROFILER_PLUGIN": mine["NCCL_PROFILER_PLUGIN"]}


def test_a_slurm_that_refuses_setenv_costs_one_line(node: Node) -> None:
    host = node.step("--option=prom", "--fail-setenv")
    assert host.messages == ["nccl-inspector: job 42: cannot change the environment"]
