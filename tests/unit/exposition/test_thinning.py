# SPDX-License-Identifier: Apache-2.0
import re

import pytest

from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.exposition.process_file import parse_file
from nccl_inspector.exposition.text import SeriesLine, render
from nccl_inspector.exposition.thinning import importance, text_bytes, thin
from tests.support.boxes import fixed_chance, line, metrics_text

PLUGINS = [metric.name for metric in load_metrics().values() if metric.source == "plugin"]


def page(processes: int, kinds: int = 3) -> list[tuple[str, SeriesLine]]:
    """All metrics of several processes, some kinds or peers of each."""
    found = []
    for process in range(processes):
        rows = [
            line(name, "0.25", rank=str(process), message_size=f"{kind + 1}-{kind + 2}MB",
                 comm=f"0x{kind}", reason="stale")
            for kind in range(kinds) for name in PLUGINS
        ]  # fmt: skip
        unique = dict.fromkeys(rows)
        series = parse_file(metrics_text(*unique), {"process": f"0_{process}"}, {})
        found += [(str(process), one) for one in series.values()]
    return found


def render_page(series: list[SeriesLine]) -> str:
    return render(series).decode()


def test_a_page_that_fits_is_kept_as_it_is() -> None:
    whole = page(2)
    assert thin(whole, text_bytes(one for _, one in whole)) == [one for _, one in whole]


@pytest.mark.parametrize("percent", [0, 1, 5, 20, 50, 80, 99])
def test_what_is_kept_fits_and_is_whole_lines_under_their_own_help_and_type(percent: int) -> None:
    whole = page(3)
    room = text_bytes(one for _, one in whole) * percent // 100
    text = render_page(thin(whole, room))
    assert len(text.encode()) <= room
    lines = set(render_page([one for _, one in whole]).splitlines())
    assert set(text.splitlines()) <= lines
    families = re.findall(r"^# HELP (\w+) .*\n# TYPE (\w+) \w+\n(\w+)\{", text, re.MULTILINE)
    assert all(one == two == three for one, two, three in families)
    assert len(families) == text.count("# HELP") == text.count("# TYPE")


def test_what_is_by_peer_goes_first_then_by_size_and_what_tells_of_a_hang_last() -> None:
    whole = page(2)
    size = text_bytes(one for _, one in whole)
    gone: list[str] = []
    for room in range(size, 0, -size // 200):
        left = {one.metric.group for one in thin(whole, room)}
        gone += [group for group in ("network_state", "network", "collective", "p2p",
                                     "process", "communicator")
                 if group not in left and group not in gone]  # fmt: skip
    assert gone[:2] == ["network_state", "network"]
    assert set(gone[2:4]) == {"collective", "p2p"}
    assert gone[4:] == ["process", "communicator"]


def test_every_metric_has_its_place() -> None:
    last = max(load_metrics().values(), key=importance)
    assert last.name.endswith(("inflight_seconds", "_throughput_timestamp_seconds"))
    rates = load_metrics()["nccl_bus_bandwidth_gbs"], load_metrics()["nccl_collective_bytes_total"]
    assert importance(rates[0]) > importance(rates[1])


def test_no_process_loses_more_than_another() -> None:
    whole = page(4, kinds=6)
    room = text_bytes(one for _, one in whole) * 2 // 3
    kept = thin(whole, room)
    sources = {id(one): source for source, one in whole}
    for name in PLUGINS:
        counts = dict.fromkeys("0123", 0)
        for one in kept:
            if one.metric.name == name:
                counts[sources[id(one)]] += 1
        assert max(counts.values()) - min(counts.values()) <= 1, name


def test_a_value_that_gains_digits_changes_nothing_in_the_choice() -> None:
    chance = fixed_chance(3)
    whole = page(2, kinds=8)
    room = text_bytes(one for _, one in whole) // 2
    before = [one.text for one in thin(whole, room)]
    for _ in range(20):
        longer = [
            (source, one._replace(value=str(chance.randrange(10 ** chance.randrange(1, 20)))))
            for source, one in whole
        ]
        assert [one.text for one in thin(longer, room)] == before
