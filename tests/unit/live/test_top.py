# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from click.testing import CliRunner, Result

from nccl_inspector.cli import cli
from nccl_inspector.errors import InspectorError
from tests.support.live_node import Node, rank_box


def top(*words: str) -> Result:
    """The command in this process, without a terminal."""
    return CliRunner().invoke(cli, ["top", "--interval", "0.1", *words])


def test_without_a_terminal_it_is_one_table(node: Node) -> None:
    node.start(node.job(), "0_1", rank_box(0))
    done = top("--run-dir", str(node.run_dir))
    assert done.exit_code == 0
    assert done.stdout.count("JOB USER") == 1
    assert "\x1b" not in done.stdout
    assert "rates over" in done.stdout


def test_a_job_is_shown_with_its_ranks(node: Node) -> None:
    node.start(node.job(), "0_1", rank_box(0))
    assert "\nrank 0 GPU0" in top("42", "--run-dir", str(node.run_dir)).stdout


def test_json_has_the_figures(node: Node) -> None:
    node.start(node.job(user="a\x1bb"), "0_1", rank_box(0))
    done = top("--run-dir", str(node.run_dir), "--json")
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["id"], job["alive"], job["ranks"][0]["name"]) == (42, 1, "rank 0")
    assert done.stdout.rstrip("\n").isprintable()


def test_a_job_that_is_not_here_is_exit_status_1(node: Node) -> None:
    done = top("7", "--run-dir", str(node.run_dir))
    assert done.exit_code == 1
    assert "job 7: it does not run on this node, or is not measured" in done.stdout


@pytest.mark.parametrize(
    "words", [("0",), ("x",), ("--interval", "0"), ("--window", "2x"), ("--window", "0m")]
)
def test_odd_words_are_refused(words: tuple[str, ...]) -> None:
    assert top(*words).exit_code == 2


def test_a_prometheus_that_is_not_there_is_an_error_for_the_user() -> None:
    done = top("--prometheus", "http://127.0.0.1:1")
    assert isinstance(done.exception, InspectorError)
    assert str(done.exception) == "http://127.0.0.1:1: Connection refused"
