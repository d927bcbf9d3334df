# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin in sbatch, srun and salloc, as Slurm loads it there."""

import subprocess
from pathlib import Path

import pytest

from tests.support.spank_host import INTERVAL, OPTION_VARIABLE, PLUGIN, Host, Node, submit


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
        "slurm_spank_task_init",
        "slurm_spank_task_exit",
        "slurm_spank_job_prolog",
        "slurm_spank_job_epilog",
    }


@pytest.mark.parametrize("mode", ["prom", "off"])
def test_scrontab_takes_the_option_and_says_that_it_has_no_effect(mode: str) -> None:
    host = submit(f"--option={mode}", name="scrontab")
    assert host.code == 0
    assert [line for line in host.messages if "has no effect in a crontab" in line] == host.messages
    assert len(host.messages) == 1
    assert not submit(name="scrontab").messages
    assert not submit(f"--option={mode}").messages
    assert submit("--option=bogus", name="scrontab").code == 255


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("bogus", 'unknown mode "bogus"; modes: prom, json, prom+json, report, off'),
        ("", 'unknown mode ""; modes: prom, json, prom+json, report, off'),
        ("json+prom", 'unknown mode "json+prom"; modes: prom, json, prom+json, report, off'),
        ("json,dir", "dir needs a value: dir=...; keys: interval, p2p,"),
        ("json,dir=a\nb", 'dir="a?b" is not a path without control characters; keys:'),
        ("json,json_max", 'json_max="1" is not bytes, with K, M, G or T, from 1M to 1T; keys:'),
        ("prom,net=maybe", 'net="maybe" is not off, auto or on; keys:'),
        ("prom,budget=5", 'unknown key "budget"; keys: interval,'),
        ("prom,deny_nccl=2.28.1", 'unknown key "deny_nccl"; keys: interval,'),
        ("prom,interval=-3", 'interval="-3" is not a number with ms, s, m or h, from 100ms to 1h'),
        ("prom,color=red", 'unknown key "color"; keys: interval, p2p, min_size'),
        ("p" * 10_000, "the value has more than 1024 bytes; modes: prom, json"),
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
@pytest.mark.parametrize("mode", ["prom", "json", "prom+json", "report", "off"])
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
        'nccl-inspector: SLURM_NCCL_INSPECTOR: unknown mode "bogus"; '
        "modes: prom, json, prom+json, report, off"
    ]
    assert host.told_hooks == ["NCCL_INSPECTOR=off overwrite=1"], "as its nodes will"


def test_a_step_does_not_speak_for_its_job() -> None:
    inside = {"SLURM_JOB_ID": "42"}
    assert not submit("--option=off", by="local", environ=inside).told_hooks
    assert submit("--option=off", environ=inside).told_hooks  # sbatch in a job: a job of its own


@pytest.mark.parametrize(
    ("by", "environ"),
    [("allocator", {"SLURM_JOB_ID": "42"}), ("local", {})],
    ids=["sbatch", "srun"],
)
def test_a_job_that_is_submitted_from_a_measured_one_starts_clean(
    node: Node, by: str, environ: dict[str, str]
) -> None:
    outer = node.step("--option=prom").env
    outer |= {
        OPTION_VARIABLE: "prom",
        "SLURM_SPANK_NCCL_INSPECTOR": "prom",
        "_SLURM_SPANK_OPTION_nccl_inspector_nccl_inspector": "prom",  # salloc leaves this, too
        "NCCL_DEBUG": "WARN",
        INTERVAL: "7",  # the user's by now
    }
    host = submit(by=by, environ=outer | environ)
    assert host.own_env == {"NCCL_DEBUG": "WARN", INTERVAL: "7"} | environ
    assert not host.told_hooks


@pytest.mark.parametrize("by", ["allocator", "local"])
def test_an_option_replaces_the_variable_for_everything_in_the_job(by: str) -> None:
    wish = {"SLURM_NCCL_INSPECTOR": "report"}
    assert submit("--option=prom", by=by, environ=wish).own_env == {}
    assert submit(by=by, environ=wish).own_env == wish


def test_in_a_measured_job_only_an_option_of_the_steps_own_replaces_the_variable() -> None:
    inside = {"SLURM_JOB_ID": "42", OPTION_VARIABLE: "prom", "SLURM_NCCL_INSPECTOR": "off"}
    # Slurm passes the job's option first.
    assert submit("--option=prom", by="local", environ=inside).own_env == inside
    both = submit("--option=prom", "--option=prom", by="local", environ=inside)
    assert "SLURM_NCCL_INSPECTOR" not in both.own_env
    other = submit("--option=report", by="local", environ=inside)
    assert "SLURM_NCCL_INSPECTOR" not in other.own_env


def test_a_step_of_a_measured_job_keeps_the_jobs_option() -> None:
    inside = {"SLURM_JOB_ID": "42", OPTION_VARIABLE: "prom", "SLURM_SPANK_NCCL_INSPECTOR": "prom"}
    assert submit(by="local", environ=inside).own_env == inside


def test_a_broken_file_on_the_submit_host_is_told_to_those_who_asked(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.write_text("oops\n")
    assert not submit(f"--word=conf={conf}").messages
    host = submit(f"--word=conf={conf}", "--option=prom")
    assert host.messages == [f'nccl-inspector: {conf}:1: "oops" is not `key = value\'']
    assert host.told_hooks == ["NCCL_INSPECTOR=prom overwrite=1"]
