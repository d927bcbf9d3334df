# SPDX-License-Identifier: Apache-2.0
"""The estimate knows the writer's bounds; that it is true is in tests/cluster/figures."""

import json
import re
from dataclasses import replace
from functools import cache

import pytest
from click.testing import CliRunner

from nccl_inspector.agent.counters.device_series import sample_series
from nccl_inspector.cli import cli
from nccl_inspector.counters.counter_table import names_of
from nccl_inspector.counters.sample import Device, Sample
from nccl_inspector.estimate.cost import (
    RULE_S,
    RULES_INTERVAL_S,
    RULES_SHARE,
    SHARD_RULE_S,
    add_up,
)
from nccl_inspector.estimate.pages import go_number, make_files
from nccl_inspector.estimate.shape import (
    GPU_SERIES_MAX,
    usual_metrics,
)
from nccl_inspector.exposition.process_file import parse_file
from nccl_inspector.exposition.text import SeriesLine
from nccl_inspector.monitoring.site import make_site
from tests.support.estimated_jobs import SHAPE

added = cache(add_up)


@pytest.mark.parametrize(("comms", "sizes"), [(1, 1), (6, 10), (20, 4), (100, 40)])
def test_the_agent_would_take_what_the_plugin_would_write(comms: int, sizes: int) -> None:
    shape = replace(SHAPE, comms=comms, sizes=sizes, p2p=3)
    series = parse_file(make_files(shape).raw, {}, {})
    assert len(series) == shape.process_series + len(usual_metrics("build"))
    assert len(series) <= GPU_SERIES_MAX


def test_jobs_and_nodes_added() -> None:
    one = added(replace(SHAPE, jobs=1, ranks=8))
    many = added(SHAPE)
    assert one.series == one.node_series
    assert many.series == 40 * 64 * many.node_series
    assert many.samples_per_s == pytest.approx(many.series / 30)
    uneven = added(replace(SHAPE, jobs=1, ranks=12))
    assert one.series < uneven.series < 2 * one.series


def test_what_does_not_change_between_two_scrapes_takes_less_disk() -> None:
    often = added(replace(SHAPE, scrape_s=15))
    seldom = added(SHAPE)
    assert seldom.disk_bytes_per_day < often.disk_bytes_per_day < 2 * seldom.disk_bytes_per_day


def test_short_jobs_take_memory_after_their_end() -> None:
    assert added(replace(SHAPE, job_hours=0.5)).memory_bytes > added(SHAPE).memory_bytes


def test_a_node_with_more_processes_than_the_agent_takes_is_capped() -> None:
    shape = replace(SHAPE, gpus_per_node=64, ranks=64)
    assert shape.shown(64) == 4800 // (shape.process_series + 1) < 64


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1"), (123456, "123456"), (1234567, "1.234567e+06"), (1e6, "1e+06"),
     (0.0384521484375, "0.0384521484375"), (1763723456.789, "1.763723456789e+09"),
     (0.00001, "1e-05"), (1310720.0, "1.31072e+06"), (352.5, "352.5")],
)  # fmt: skip
def test_numbers_are_as_go_writes_them(value: float, text: str) -> None:
    assert go_number(value) == text


def test_the_command_prints_a_page_and_json() -> None:
    words = ["estimate", "--jobs", "40", "--ranks", "512", "--comms", "6", "--sizes", "10"]
    page = CliRunner().invoke(cli, words)
    assert page.exit_code == 0
    assert "the busiest 38 of 120 kinds" in page.stdout
    assert max(map(len, page.stdout.splitlines())) <= 100
    figures = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert f"{figures['series']:,} series" in page.stdout


def test_the_bound_of_a_jobs_series_goes_by_its_gpus_and_its_life() -> None:
    one = added(replace(SHAPE, jobs=1, ranks=8))
    assert 8 * 2000 < one.head_series_max < 8 * 2000 + 50
    assert added(replace(SHAPE, ranks=12)).head_series_max > one.head_series_max * 1.4
    assert added(SHAPE).head_series_max == 64 * one.head_series_max
    assert one.head_series_max >= 4 * one.node_series, "no usual job comes near"
    longer = added(replace(SHAPE, jobs=1, ranks=8, job_hours=24))
    assert longer.head_series_max == one.head_series_max
    assert longer.life_series_max == 7 * one.head_series_max


def test_the_page_says_the_bound() -> None:
    page = CliRunner().invoke(cli, ["estimate", "--ranks", "8"]).stdout
    bound = added(replace(SHAPE, ranks=8)).head_series_max
    assert f"at most     {bound:,} series of a job in a Prometheus' head" in page


def test_where_one_prometheus_ends_the_page_says_how_many_are_needed() -> None:
    few = CliRunner().invoke(cli, ["estimate", "--ranks", "8"]).stdout
    assert "hosts       a Prometheus 2.42 with 64 GB of memory can hold the series of " in few
    assert "shards" not in few
    # Half of 64 GB, at 6.8 kB a series; node lists and ended series add some.
    series = added(SHAPE).host_nodes * added(SHAPE).node_series
    assert 32e9 / 9000 < series < 32e9 / 6800
    words = "--jobs", "1000", "--ranks", "80", "--memory", "100"
    many = " ".join(CliRunner().invoke(cli, ["estimate", *words]).stdout.split())
    found = re.search(r"let (\d+) Prometheus servers .* --set shards=(\d+)\)", many)
    assert found is not None
    assert 3 <= int(found[1]) == int(found[2])


def test_as_many_servers_are_needed_as_the_series_and_the_rules_take() -> None:
    shape = replace(SHAPE, jobs=1000, ranks=80)
    kinds = 10_000 * 8 * shape.kinds_shown
    most_s = RULES_SHARE * RULES_INTERVAL_S
    by_rules = -(-kinds * SHARD_RULE_S // most_s)
    little, much = add_up(shape, 4e9), add_up(shape, 1e12)
    assert (little.hosts - 1) * little.host_nodes < 10_000 <= little.hosts * little.host_nodes
    assert little.hosts > by_rules
    assert much.host_nodes > 10_000
    assert much.hosts == by_rules > 1, "the rules need more than the memory does"
    assert much.rules_s == pytest.approx(kinds * RULE_S)
    assert much.rules_nodes * much.rules_s / 10_000 == pytest.approx(most_s, rel=1e-3)


def test_the_rules_are_evaluated_as_often_as_the_site_does_by_default() -> None:
    assert make_site([])["record_interval"] == f"{RULES_INTERVAL_S / 60:g}m"


def test_nonsense_is_refused() -> None:
    assert CliRunner().invoke(cli, ["estimate", "--ranks", "0"]).exit_code == 2
    assert CliRunner().invoke(cli, ["estimate"]).exit_code == 2
    for option in ("--memory", "--job-hours"):
        assert CliRunner().invoke(cli, ["estimate", "--ranks", "8", option, "nan"]).exit_code == 2


def test_counters_cost_what_a_port_and_a_gpu_that_count_everything_have() -> None:
    def readings(kind: str) -> dict[str, int]:
        return dict.fromkeys(names_of(kind), 0)

    def sample(source: str, *devices: Device) -> list[SeriesLine]:
        taken = Sample(source, 0, 0, devices)
        return list(sample_series(taken, {"cluster": "c", "node": "n1"}))

    port = Device("port", "mlx5_0/1", readings("port"), {}, {})
    gpu = Device("gpu", "GPU0", readings("gpu"), {"nvlinks_active": 18}, {})
    real = len(sample("infiniband", port)) * 3 + len(sample("gpu", gpu)) * 8
    counted = replace(SHAPE, counters=True, ports=3)
    sources = len(usual_metrics("agent_source")) * 3
    assert added(counted).node_series - added(SHAPE).node_series == real + sources
