# SPDX-License-Identifier: Apache-2.0
"""Node lists made short, and expanded again (Slurm's own lists: tests/unit/report)."""

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import compress, compress_within, expand
from tests.support.boxes import fixed_chance


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["head"], "head"),
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n3", "n1", "n2", "n1"], "n[1-3]"),
        (["n8", "n9", "n10", "n11"], "n[8-11]"),
        (["n08", "n09", "n10", "n100"], "n[08-10,100]"),
        (["n1", "n01", "n001"], "n[1,01,001]"),
        (["r1n1x", "r1n2x", "r2n1x"], "r1n[1-2]x,r2n1x"),
        (["n", "n1", "n2"], "n,n[1-2]"),
        (["n" + "9" * 30, "n1"], f"n{'9' * 30},n1"),
    ],
)
def test_names_that_count_up_become_one_range(nodes: list[str], text: str) -> None:
    assert compress(nodes) == text
    assert sorted(expand(text)) == sorted(set(nodes))


def test_any_names_come_back() -> None:
    chance = fixed_chance(11)
    for _ in range(300):
        nodes = {
            chance.choice(("n", "gpu-", "r1n", "a.b-", ""))
            + str(chance.randrange(1, 120)).zfill(chance.randrange(1, 5))
            + chance.choice(("", "x", "-ib"))
            for _ in range(chance.randrange(1, 60))
        }
        assert sorted(expand(compress(nodes))) == sorted(nodes)


def test_a_list_that_is_too_long_keeps_whole_names_and_counts_the_rest() -> None:
    nodes = [f"n{number}" for number in range(1, 2001, 2)]
    text, rest = compress_within(nodes, 100)
    shown = expand(text)
    assert 80 < len(text) <= 100
    assert shown == nodes[: len(shown)]
    assert len(shown) + rest == len(nodes)
    assert compress_within(nodes[:3], 100) == ("n[1,3,5]", 0)
    assert compress_within(["a-name-that-is-longer"], 10) == ("", 1)


def test_a_long_name_times_many_numbers_does_not_fill_the_memory() -> None:
    with pytest.raises(InspectorError, match="a name is too long"):
        expand(f"{'n' * 100_000}[1-65536]")
    assert len(expand(f"{'n' * 200}[1-65536]")) == 65536


def test_many_names_that_fit_are_made_short_as_a_whole() -> None:
    assert compress_within(expand("n[1-65536]x"), 100) == ("n[1-65536]x", 0)


def test_as_many_names_as_fit_are_shown_whatever_they_are() -> None:
    chance = fixed_chance(7)
    for _ in range(300):
        names = {
            chance.choice(("n", "r1n", "")) + chance.choice(("", "0", "7")) + str(number)
            for number in chance.sample(range(40), 20)
        } | {"n", "7x"}
        chars = chance.randrange(60)
        order = expand(compress_within(names, 10_000)[0])
        fitting = max(at for at in range(len(order) + 1) if len(compress(order[:at])) <= chars)
        text, rest = compress_within(names, chars)
        assert (expand(text), rest) == (order[:fitting], len(order) - fitting)
