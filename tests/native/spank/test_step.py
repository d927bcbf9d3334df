# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin in slurmstepd, as Slurm loads it there."""

import os
from pathlib import Path

import pytest

from nccl_inspector.settings.deny_nccl import advised
from tests.support.spank_host import INTERVAL, MANIFEST, OPTION_VARIABLE, OURS, Node, submit


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.prolog(42)
    return node


def test_a_job_that_asks_for_nothing_is_left_alone(node: Node) -> None:
    host = node.step(env={"PATH": "/bin"})
    assert host.env == {"PATH": "/bin"}
    assert not host.messages


def test_the_tasks_get_every_variable_of_the_contract(node: Node) -> None:
    ours = "/opt/nccl-inspector/libnccl-profiler-inspector.so"
    host = node.step(f"--word=profiler={ours}", "--option=prom,interval=2,p2p=0,min_size=1M")
    env = host.env
    marker = env.pop("NCCL_INSPECTOR_SET_BY_SLURM").split()
    assert env == {
        "NCCL_PROFILER_PLUGIN": ours,
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": f"{node.run_dir}/jobs/42/raw",
        "NCCL_INSPECTOR_CONTROL_DIR": f"{node.run_dir}/control",
        "NCCL_INSPECTOR_PROM_DUMP": "1",
        "NCCL_INSPECTOR_JSON": "0",
        "NCCL_INSPECTOR_PHASES": "0",
        "NCCL_INSPECTOR_HOST_TIME": "0",
        "NCCL_INSPECTOR_NET": "off",
        "NCCL_INSPECTOR_BUDGET_PERCENT": "1.000",
        INTERVAL: "2000000",
        "NCCL_INSPECTOR_ENABLE_P2P": "0",
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": "1048576",
        "NCCL_RAS_ADDR": "localhost:61336",  # 61000 + 8 * 42
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
        ([], {OPTION_VARIABLE: "report", "SLURM_NCCL_INSPECTOR": "prom"}, "1"),
        (["--option=prom"], {OPTION_VARIABLE: "report"}, "1"),
        (["--option=report"], {OPTION_VARIABLE: "report", "SLURM_NCCL_INSPECTOR": "off"}, None),
        (["--word=default=prom", "--option=off"], {}, None),
    ],
)
def test_on_the_node_variable_option_and_site_rank_in_this_order(
    node: Node, args: list[str], env: dict[str, str], dump: str | None
) -> None:
    assert node.step(*args, env=env).env.get("NCCL_INSPECTOR_PROM_DUMP") == dump


JSON_ONLY = {
    "NCCL_INSPECTOR_DUMP_DIR": "lines of mine",
    "NCCL_INSPECTOR_DUMP_VERBOSE": "1",
    "NCCL_INSPECTOR_JSON_GZIP": "1",
    "NCCL_INSPECTOR_JSON_MAX_BYTES": str(64 << 20),
    "NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES": "4096",
}
JSON_KEYS = "dir=lines of mine,verbose,gzip,json_max=64M,json_min_size=4K"


@pytest.mark.parametrize(("mode", "dump"), [("json", "0"), ("prom+json", "1")])
def test_the_json_modes_say_where_lines_go_and_how(node: Node, mode: str, dump: str) -> None:
    env = node.step(f"--option={mode},{JSON_KEYS}").env
    assert set(env) == OURS | set(JSON_ONLY)
    assert env["NCCL_INSPECTOR_PROM_DUMP"] == dump
    assert env["NCCL_INSPECTOR_JSON"] == "1"
    assert env == env | JSON_ONLY
    assert "NCCL_INSPECTOR_DUMP_DIR" not in node.step(f"--option={mode}").env


@pytest.mark.parametrize("mode", ["prom", "report"])
def test_keys_of_json_lines_do_nothing_in_the_other_modes(node: Node, mode: str) -> None:
    env = node.step(f"--option={mode},{JSON_KEYS}").env
    assert set(env) == OURS
    assert env["NCCL_INSPECTOR_JSON"] == "0"


def test_a_step_in_another_mode_loses_what_was_about_json_lines(node: Node) -> None:
    batch = node.step(f"--option=json,{JSON_KEYS}").env
    assert set(node.step("--option=prom", env=batch).env) == OURS
    assert node.step("--option=off", env=batch).env == {}
    assert node.step(job=43, env=batch).env == {}
    assert submit(environ=batch | {"SLURM_JOB_ID": "42"}).own_env == {"SLURM_JOB_ID": "42"}


@pytest.mark.parametrize(
    ("mode", "told"), [("prom", True), ("prom+json", False), ("json", False), ("report", False)]
)
def test_nvidias_own_plugin_is_told_where_its_prometheus_files_go(
    node: Node, mode: str, told: bool
) -> None:
    env = node.step("--word=profiler=/opt/nvidia/inspector.so", f"--option={mode}").env
    raw = f"{node.run_dir}/jobs/42/raw"
    assert env.get("NCCL_INSPECTOR_DUMP_DIR") == (raw if told else None)
    assert "NCCL_INSPECTOR_DUMP_DIR" not in node.step("--option=prom", env=env).env


LOG = {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_TIMESTAMP_FORMAT"}


@pytest.mark.parametrize("key", ["debug", "debug=warn"])
def test_nccls_warnings_go_into_a_file_for_each_task(node: Node, key: str) -> None:
    raw = f"{node.run_dir}/jobs/42/raw"
    batch = node.step(f"--option=prom,{key}").env
    assert set(batch) == OURS | LOG
    assert batch["NCCL_DEBUG"] == "WARN"
    assert batch["NCCL_DEBUG_FILE"] == f"{raw}/nccl.42.batch.0.0.%h.%p.log"
    step = node.step(f"--option=prom,{key}", "--step=3", "--task=17", env=batch).env
    assert step["NCCL_DEBUG_FILE"] == f"{raw}/nccl.42.3.0.17.%h.%p.log"
    assert set(node.step("--option=prom", "--step=4", env=step).env) == OURS


def test_a_restarted_job_does_not_write_into_the_log_of_the_one_before(node: Node) -> None:
    node.write_manifest(42, MANIFEST | {"restart": "2"})
    env = node.step("--option=prom,debug", env={"SLURM_RESTART_COUNT": "2"}).env
    assert env["NCCL_DEBUG_FILE"].endswith("/nccl.42.batch.2.0.%h.%p.log")


def test_the_users_own_level_of_the_log_wins_and_is_told_once(node: Node) -> None:
    host = node.step("--option=prom,debug=info", env={"NCCL_DEBUG": "VERSION"})
    assert set(host.env) == OURS | {"NCCL_DEBUG"}
    assert host.env["NCCL_DEBUG"] == "VERSION"
    assert host.messages == ["nccl-inspector: job 42: the user's own variables win: NCCL_DEBUG"]


def test_each_step_has_a_ras_address_of_its_own(node: Node) -> None:
    node.prolog(43)
    batch = node.step("--option=prom").env
    steps = [node.step("--option=prom", f"--step={step}", env=batch).env for step in range(6)]
    neighbour = node.step("--option=prom", job=43).env
    found = [env["NCCL_RAS_ADDR"] for env in (batch, *steps, neighbour)]
    assert len(set(found)) == len(found)
    ports = [int(address.removeprefix("localhost:")) for address in found]
    assert min(ports) >= 61000, "no port that Linux gives to connections"
    assert max(ports) <= 65535


@pytest.mark.parametrize("step", [0, 7, 4535, 4536, 0xFFFFFFF0])
@pytest.mark.parametrize("job", [1, 566, 567, 0xFFFFFF00])
def test_the_port_of_ras_stays_in_its_range(node: Node, job: int, step: int) -> None:
    node.prolog(job)
    address = node.step("--option=prom", f"--step={step}", job=job).env["NCCL_RAS_ADDR"]
    assert address == f"localhost:{61000 + (8 * job + step + 2) % 4536}"


def test_the_users_own_word_about_ras_wins(node: Node) -> None:
    mine = {"NCCL_RAS_ADDR": "localhost:28028"}
    host = node.step("--option=prom", env=mine)
    assert host.env == host.env | mine
    assert host.messages == ["nccl-inspector: job 42: the user's own variables win: NCCL_RAS_ADDR"]
    silent = node.step("--option=prom", env={"NCCL_RAS_ENABLE": "0"})
    assert "NCCL_RAS_ADDR" not in silent.env
    assert not silent.messages
    assert "NCCL_RAS_ADDR" in node.step("--option=prom", env={"NCCL_RAS_ENABLE": "1"}).env


def test_without_the_setting_ras_listens_where_nccl_wants(node: Node) -> None:
    assert "NCCL_RAS_ADDR" not in node.step("--option=prom,ras=0").env
    batch = node.step("--option=prom").env
    assert "NCCL_RAS_ADDR" not in node.step("--option=prom,ras=0", "--step=0", env=batch).env


def test_a_site_can_have_the_warnings_of_every_job(node: Node) -> None:
    env = node.step("--word=default=report", "--word=debug=warn").env
    assert env["NCCL_DEBUG"] == "WARN"
    assert not LOG & set(node.step("--word=debug=warn").env), "only of jobs that are measured"


def test_the_users_own_directory_wins(node: Node) -> None:
    mine = {"NCCL_INSPECTOR_DUMP_DIR": "/home/me/lines"}
    host = node.step(f"--option=json,{JSON_KEYS}", env=mine)
    assert host.env == host.env | mine
    assert host.messages == [
        "nccl-inspector: job 42: the user's own variables win: NCCL_INSPECTOR_DUMP_DIR"
    ]
    assert not node.step("--option=prom", env=mine).messages, "nothing of ours would be there"


def test_what_the_site_sets_for_the_plugin_reaches_the_task(node: Node) -> None:
    denied = "2.28.0-2.28.5,recommended"
    words = ["default=json", "dir=/scratch", "net=auto", "phases=1", "host_time=1", "budget=0.25"]
    words.append(f"deny_nccl={denied}")
    env = node.step(*(f"--word={word}" for word in words)).env
    assert env["NCCL_INSPECTOR_JSON"] == "1"
    assert env["NCCL_INSPECTOR_DUMP_DIR"] == "/scratch"
    assert env["NCCL_INSPECTOR_NET"] == "auto"
    assert env["NCCL_INSPECTOR_PHASES"] == "1"
    assert env["NCCL_INSPECTOR_HOST_TIME"] == "1"
    assert env["NCCL_INSPECTOR_BUDGET_PERCENT"] == "0.250"
    assert env["NCCL_INSPECTOR_DENY_NCCL"] == ",".join(
        ["2.28.0-2.28.5", *(one.versions for one in advised())]
    )


@pytest.mark.parametrize(
    "value", ["bogus", "prom,interval=-3", "p" * 5000, "json+prom", "json,dir", "\x01"]
)
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


def test_only_who_asked_sees_the_reason_on_his_terminal_and_only_once(node: Node) -> None:
    assert node.step("--word=bogus=1").starting("info: ")
    assert node.step("--word=bogus=1", "--option=prom").starting("error: ")
    elsewhere = node.step("--word=bogus=1", "--option=prom", "--node=7")
    assert elsewhere.starting("info: ")
    assert not elsewhere.starting("error: ")


@pytest.mark.parametrize(("restarts", "measured"), [("0", True), ("1", True), ("2", False)])
def test_a_directory_of_an_earlier_attempt_is_not_used(
    node: Node, restarts: str, measured: bool
) -> None:
    node.write_manifest(42, MANIFEST | {"restart": "1"})
    host = node.step("--option=prom", env={"SLURM_RESTART_COUNT": restarts})
    assert ("NCCL_INSPECTOR_ENABLE" in host.env) == measured
    assert any("is of an earlier attempt" in line for line in host.messages) != measured
    assert node.step("--option=prom").env, "the variable may be lost, as with env -i"


def test_a_setting_of_the_agents_among_the_words_is_told_where_it_belongs(node: Node) -> None:
    (line,) = node.step("--word=default=prom", "--word=sweep_after=5m").messages
    assert line.endswith(
        "plugstack.conf: sweep_after is the agent's, only nccl-inspector.conf may have it"
    )


def test_words_of_plugstack_override_the_file(node: Node, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.write_text("default = prom\ninterval = 7s\nmin_size = 4K\n")
    env = node.step("--word=interval=9s", conf=str(conf)).env
    assert env[INTERVAL] == "9000000"
    assert env["NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES"] == "4096"


@pytest.mark.parametrize(
    ("policy", "measured"),
    [
        ("partitions=gpu", True),
        ("partitions=debug,gpu", True),
        ("partitions=debug", False),
        ("min_gpus=8", True),
        ("min_gpus=9", False),
        ("sample=42", True),
        ("sample=5", False),
    ],
)
def test_a_policy_bounds_the_sites_default_but_not_a_wish(
    node: Node, policy: str, measured: bool
) -> None:
    words = "--word=default=prom", f"--word={policy}"
    assert bool(node.step(*words).env) == measured
    assert not node.step(*words).messages, "that the default is for others is no news"
    assert node.step(*words, "--option=prom").env
    assert node.step(*words, env={"SLURM_NCCL_INSPECTOR": "report"}).env["NCCL_INSPECTOR_ENABLE"]
    assert not node.step(*words, "--option=off").env


@pytest.mark.parametrize(
    ("told", "environment", "measured"),
    [
        ("high", "", True),
        ("normal", "high", False),  # slurmd's word counts
        ("", "high", True),
        ("", "normal", False),
        ("", "", False),
    ],
)
def test_the_qos_is_slurmds_or_else_the_environments(
    node: Node, told: str, environment: str, measured: bool
) -> None:
    node.write_manifest(42, MANIFEST | {"qos": told})
    env = {"SLURM_JOB_QOS": environment} if environment else {}
    host = node.step("--word=default=prom", "--word=qos=urgent,high", env=env)
    assert ("NCCL_INSPECTOR_ENABLE" in host.env) == measured
    assert not host.messages


def test_every_component_of_a_het_job_is_sampled_alike(node: Node) -> None:
    words = "--word=default=prom", "--word=sample=42"
    node.prolog(43)
    assert not node.step(*words, job=43).env
    node.write_manifest(43, MANIFEST | {"job_id": "43", "het_job_id": "42"})
    assert node.step(*words, job=43).env


def test_a_policy_without_a_manifest_means_off_and_one_line(node: Node) -> None:
    path = node.run_dir / "jobs" / "42" / "manifest"
    path.write_text("format=1\njob_id=42\n")
    host = node.step("--word=default=prom", "--word=min_gpus=1")
    assert not host.env
    assert host.messages == [f"nccl-inspector: job 42: no metrics: cannot read {path}"]


def test_nothing_is_set_while_the_node_is_disabled(node: Node) -> None:
    (node.run_dir / "control").mkdir()
    (node.run_dir / "control" / "disabled").write_text("1700000000 trouble\n")
    host = node.step("--option=prom")
    assert not host.env
    assert host.messages == ["nccl-inspector: job 42: no metrics: disabled on this node"]
    (node.run_dir / "control" / "disabled").unlink()
    assert node.step("--option=prom").env


def test_a_task_of_an_array_hands_its_number_to_its_steps_and_to_no_other_job(node: Node) -> None:
    batch = node.step("--option=prom", "--array=40_7").env
    assert batch["NCCL_INSPECTOR_ARRAY_TASK"] == "40_7"
    # In a step Slurm goes by the environment, which a job has from the one that submitted it.
    step = node.step("--option=prom", "--step=0", "--array=40_7", env=batch).env
    assert step["NCCL_INSPECTOR_ARRAY_TASK"] == "40_7"
    node.prolog(50)
    other = node.step("--option=prom", job=50, env=batch).env
    assert "NCCL_INSPECTOR_ARRAY_TASK" not in other
    assert other["NCCL_INSPECTOR_RUN_DIR"].endswith("/50/raw")
    its_step = node.step("--option=prom", "--step=0", "--array=40_7", job=50, env=other).env
    assert "NCCL_INSPECTOR_ARRAY_TASK" not in its_step
    unmeasured = node.step("--option=prom", "--step=0", "--array=40_7", job=50, env=batch).env
    assert "NCCL_INSPECTOR_ARRAY_TASK" not in unmeasured


def test_without_the_prologs_directory_nothing_is_set(node: Node) -> None:
    host = node.step("--option=prom", job=43)
    assert host.starting("error: ") == [
        f"nccl-inspector: job 43: no metrics: no directory {node.run_dir}/jobs/43/raw "
        "(no prolog was run, or the job was submitted with off)"
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
