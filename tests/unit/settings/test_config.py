# SPDX-License-Identifier: Apache-2.0
import os
from dataclasses import fields
from pathlib import Path

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config, load_settings, parse_config, read_config


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("intervall = 3", "x.conf:1: unknown key"),
        ("# a\n\ninterval = -3", "x.conf:3: interval: not a duration"),
        ("interval = 99ms", "x.conf:1: interval: not between 100ms and 1h"),
        ("interval = 2h", "x.conf:1: interval: not between"),
        ("interval =", "x.conf:1: interval: not a duration"),
        ("interval = 1e3", "x.conf:1: interval: not a duration"),
        ("interval = 30s\ninterval = 5s", "x.conf:2: interval is set before, in line 1"),
        ("prom", "x.conf:1: not `key = value`"),
        ("default = json+prom", "x.conf:1: default: not one of prom, json, prom+json, report, off"),
        ("net = 1", "x.conf:1: net: not one of off, auto, on"),
        ("budget = -1", "x.conf:1: budget: not a number"),
        ("budget = 100.5", "x.conf:1: budget: not between 0 and 100"),
        ("deny_nccl = 2.28", "x.conf:1: deny_nccl: not versions such as"),
        ("deny_nccl = recommend", "x.conf:1: deny_nccl: not versions such as"),
        ("deny_nccl = 2.28.1,", "x.conf:1: deny_nccl: not versions such as"),
        ("deny_nccl = 2.28.9-2.28.10,2.28.5-2.27.9", "x.conf:1: deny_nccl: '2.28.5-2.27.9' runs"),
        ("dir = a\tb", "x.conf:1: dir: not a path without"),
        ("json_max = 1023K", "x.conf:1: json_max: not between 1M and 1T"),
        ("p2p = yes", "x.conf:1: p2p: not 0 or 1"),
        ("min_size = 2T", "x.conf:1: min_size: not between"),
        ("run_dir = run", "x.conf:1: run_dir: not an absolute path"),
        ("sample = 0", "x.conf:1: sample: not between 1 and"),
        ("min_gpus = many", "x.conf:1: min_gpus: not a number"),
        ("listen = 9435", "x.conf:1: listen: not an address such as"),
        ("listen = localhost:9435", "x.conf:1: listen: not an address such as"),
        ("listen = 127.0.0.1:65536", "x.conf:1: listen: not an address such as"),
        ("listen = 127.0.0.256:9435", "x.conf:1: listen: 127.0.0.256 is not an IP address"),
        ("cluster = a b", "x.conf:1: cluster: not one word"),
        ("profiler = lib/x.so", "x.conf:1: profiler: not an absolute path"),
        ("profiler = x.so", "x.conf:1: profiler: not an absolute path"),
    ],
)
def test_a_mistake_is_told_with_file_line_and_reason(text: str, reason: str) -> None:
    with pytest.raises(InspectorError) as caught:
        parse_config(text, "x.conf")
    assert str(caught.value).startswith(reason)


def test_every_setting_of_the_table_has_its_field() -> None:
    assert [setting.field for setting in load_settings().values()] == [
        field.name for field in fields(Config)
    ]


def test_the_loader_may_look_for_the_profiler() -> None:
    config = parse_config("profiler = libnccl-profiler-inspector.so", "x.conf")
    assert config.profiler == Path("libnccl-profiler-inspector.so")


def test_an_empty_file_gives_the_defaults_of_the_table() -> None:
    config = parse_config("", "x.conf")
    assert (config.default, config.interval_s, config.min_size_bytes) == ("off", 30.0, 8192)
    assert config.run_dir == Path("/run/nccl-inspector")


def test_values_may_have_units_blanks_and_comments() -> None:
    config = parse_config("interval=500ms # fast\n min_size = 1M\nagent_interval = 1.5\n", "x.conf")
    assert (config.interval_s, config.min_size_bytes, config.agent_interval_s) == (
        0.5,
        1 << 20,
        1.5,
    )


def test_the_settings_of_modes_and_keys_have_their_types() -> None:
    config = parse_config(
        "default = prom+json\ndir = my lines\nnet = auto\nbudget = 0.25\njson_max = 2G\n"
        "deny_nccl = 2.28.0-2.28.5,2.31.2\nphases = 1\n",
        "x.conf",
    )
    assert (config.default, config.dir, config.net, config.budget_percent) == (
        "prom+json", "my lines", "auto", 0.25,
    )  # fmt: skip
    assert (config.json_max_bytes, config.deny_nccl, config.phases) == (
        2 << 30, "2.28.0-2.28.5,2.31.2", True,
    )  # fmt: skip


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InspectorError, match="no such file"):
        read_config(tmp_path / "none.conf")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(InspectorError, match="cannot be read"):
        read_config(tmp_path / "x.conf")


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.conf")
    with pytest.raises(InspectorError, match="not a regular file"):
        read_config(tmp_path / "x.conf")


@pytest.mark.parametrize(("size_bytes", "good"), [(65536, True), (65537, False)])
def test_a_file_is_as_large_as_the_plugin_accepts(
    tmp_path: Path, size_bytes: int, good: bool
) -> None:
    (tmp_path / "x.conf").write_bytes(b"#" * size_bytes)
    if good:
        read_config(tmp_path / "x.conf")
        return
    with pytest.raises(InspectorError, match="larger than 64 KiB"):
        read_config(tmp_path / "x.conf")


def test_a_lone_carriage_return_ends_no_line() -> None:
    with pytest.raises(InspectorError, match="1: default: not one of"):
        parse_config("default = prom\rinterval = 1s\r", "x.conf")
    assert parse_config("default = prom\r\ninterval = 1s\r\n", "x.conf").default == "prom"
