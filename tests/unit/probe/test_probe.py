# SPDX-License-Identifier: Apache-2.0
"""Whole probes on this host: real processes, real TCP, and an srun that starts them here."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nccl_inspector.commands.probe import probe
from nccl_inspector.probe.launch import gpus_per_node
from nccl_inspector.probe.text import NOT_NCCL
from tests.support.command_line import COMMAND, environment
from tests.support.fake_srun import make_srun
from tests.support.repository import PYTHON_DIR

# Together they take longer than `make test` has for one subject.
pytestmark = pytest.mark.long

QUICK = ("--min-size", "256K", "--max-size", "512K", "--pair-size", "1M", "--seconds", "30")
# Sending 1 MiB takes at least 30 ms, and on n3 150 ms: more than a busy machine adds.
PACED = """
import os, socket, time
send = socket.socket.send
pause_s = 0.15 if os.environ.get("SLURMD_NODENAME") == "n3" else 0.03
def paced(self, data, *flags):
    if len(data) == 1 << 20:
        time.sleep(pause_s)
    return send(self, data, *flags)
socket.socket.send = paced
"""
ALL = ("n1", "n2", "n3", "n4")
# In the third operation the process ends, or hangs.
DIES = """
import os, sys, time
import threading
from {where} import TcpBackend
timed = TcpBackend.timed
count = [0]
def fails(self, operations):
    count[0] += 1
    if count[0] == 3:
        {what}
    return timed(self, operations)
TcpBackend.timed = fails
"""


def run_in_allocation(
    folder: Path, nodes: int, *words: str, odd: Sequence[str] = (), shim: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command as in an allocation of so many nodes; on the `odd` ones with the shim."""
    programs = make_srun(folder, odd, shim)
    environ = environment() | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": f"n[1-{nodes}]",
    }
    return subprocess.run(
        [*COMMAND, "probe", *QUICK, *words],
        capture_output=True,
        text=True,
        env=environ,
        timeout=100,
    )


def local(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(probe, [*QUICK, "--json", *words])
    assert done.exit_code in (0, 1), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [
        ("AllReduce", 2, 1), ("AllReduce", 4, 1.5), ("AllGather", 2, 0.5), ("AllGather", 4, 0.75),
        ("ReduceScatter", 4, 0.75),
    ],
)  # fmt: skip
def test_the_bus_bandwidth_has_the_factor_of_nccl_tests(
    collective: str, ranks: int, factor: float
) -> None:
    found = local("--local", str(ranks), "--collective", collective)
    assert [row["size_bytes"] for row in found["rows"]] == [256 << 10, 512 << 10]
    for row in found["rows"]:
        assert row["alg_gbs"] == pytest.approx(row["size_bytes"] / row["median_s"] / 1e9)
        assert row["bus_gbs"] == pytest.approx(row["alg_gbs"] * factor)
        assert row["least_s"] <= row["median_s"]
        assert row["repetitions"] >= 5
    assert found["wrong_ranks"] == []


def test_all_pairs_are_measured_in_both_directions_and_the_text_says_that_it_is_not_nccl(
    tmp_path: Path,
) -> None:
    done = run_in_allocation(tmp_path, 3, "--pairs")
    assert done.returncode in (0, 1), done.stderr
    text = done.stdout
    assert "AllReduce, 3 ranks on 3 nodes (n[1-3]), TCP" in text
    assert NOT_NCCL in " ".join(text.split())
    rows = re.findall(r"^ (n[123]) +(\S+) +(\S+) +(\S+)$", text, re.M)
    assert [row[0] for row in rows] == ["n1", "n2", "n3"]
    for at, row in enumerate(rows):
        cells = row[1:]
        assert cells[at] == "-"
        assert all(float(cell) > 0 for place, cell in enumerate(cells) if place != at)


@pytest.mark.long
def test_a_node_that_sends_slowly_is_named_and_no_other(tmp_path: Path) -> None:
    done = run_in_allocation(tmp_path, 4, "--pairs", "--json", odd=ALL, shim=PACED)
    found = json.loads(done.stdout)
    named = [[one["name"] for one in finding["entities"]] for finding in found["findings"]]
    assert named == [["n3"]], done.stdout
    assert done.returncode == 1
    low = [cell for cell in found["cells"] if cell["gbs"] < 0.01]
    assert {cell["sender"] for cell in low} == {"n3"}


def test_a_rank_that_dies_is_named_in_one_line_and_at_once(tmp_path: Path) -> None:
    shim = DIES.format(where="nccl_inspector.probe.tcp_backend", what="os._exit(9)")
    done = run_in_allocation(tmp_path, 3, odd=["n2"], shim=_with_product(shim))
    assert done.returncode == 3
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("nccl-inspector")]
    assert line.startswith("nccl-inspector: rank 1 (n2): its process has ended")
    assert done.stdout == ""


def test_a_rank_that_hangs_is_told_in_one_line_within_the_limit(tmp_path: Path) -> None:
    shim = DIES.format(where="nccl_inspector.probe.tcp_backend", what="time.sleep(60)")
    before_s = time.monotonic()
    done = run_in_allocation(tmp_path, 2, "--timeout", "3", odd=["n2"], shim=_with_product(shim))
    assert done.returncode == 3
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("nccl-inspector")]
    assert line == "nccl-inspector: rank 1 (n2): it has not answered for 3 s"
    assert time.monotonic() - before_s < 45


def _with_product(shim: str) -> str:
    """The shim, which finds the product as the rank itself does later."""
    return f"import sys\nsys.path.insert(0, {os.fspath(PYTHON_DIR)!r})\n{shim}"


def test_data_that_arrive_changed_are_a_finding(tmp_path: Path) -> None:
    shim = """
from nccl_inspector.probe.tcp_backend import TcpBackend
exchange = TcpBackend._exchange
def corrupts(self, to, out, source, into):
    exchange(self, to, out, source, into)
    if len(into) > 1000:
        into[500] ^= 1
TcpBackend._exchange = corrupts
"""
    done = run_in_allocation(tmp_path, 3, "--json", odd=["n2"], shim=_with_product(shim))
    found = json.loads(done.stdout)
    # It hands on what it has received: the ranks behind it see it, too.
    assert 1 in found["wrong_ranks"]
    (finding,) = found["findings"]
    assert (finding["severity"], done.returncode) == ("C", 1)
    assert finding["title"].startswith("wrong data arrived at ")


def test_an_srun_that_fails_is_quoted(tmp_path: Path) -> None:
    programs = make_srun(tmp_path)
    (programs / "srun").write_text("#!/bin/sh\necho 'srun: error: no such partition' >&2\nexit 1\n")
    environ = environment() | {
        "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[1-2]",
    }  # fmt: skip
    done = subprocess.run(
        [*COMMAND, "probe"], capture_output=True, text=True, env=environ, timeout=60
    )
    assert done.returncode == 3
    assert done.stderr == (
        "nccl-inspector: srun ended (exit status 1): srun: error: no such partition\n"
    )


def test_gpus_without_pytorch_are_an_error_and_never_a_figure_of_tcp() -> None:
    done = CliRunner().invoke(
        probe, [*QUICK, "--local", "2", "--backend", "nccl", "--python", _python_without_torch()]
    )
    assert done.exit_code == 3
    assert "this Python has no PyTorch" in done.output


def _python_without_torch() -> str:
    with pytest.raises(ModuleNotFoundError):
        __import__("torch")
    return sys.executable


def test_somebody_without_the_key_is_not_taken_for_a_rank(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shim = f"""
import socket, sys
if "-c" in sys.orig_argv:
    stranger = socket.create_connection(("127.0.0.1", {port}))
    stranger.sendall(b"GET / HTTP/1.0" + bytes(40) + b'{{"rank": 0, "node": "evil"}}')
    sys.stranger = stranger
"""
    done = run_in_allocation(tmp_path, 2, "--port", str(port), "--json", odd=["n1"], shim=shim)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"] == ["n1", "n2"]


@pytest.mark.long
def test_a_saved_probe_is_what_the_next_one_of_its_kind_is_compared_with(tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    first = local("--local", "2", "--save", str(path))
    assert first["verdict"] == "NO EXPECTATION"
    assert first["expected"] is None
    again = local("--local", "2", "--baseline", str(path), "--threshold", "0", "--save", str(path))
    best = max(row["bus_gbs"] for row in first["rows"])
    assert again["expected"]["gbs"] == pytest.approx(best)
    assert again["expected"]["probes"] == 1
    wrong = CliRunner().invoke(
        probe, [*QUICK, "--local", "2", "--expect", "100000", "--save", str(path)]
    )
    assert f"not saved in {path}: something is wrong" in wrong.output
    other = local("--local", "3", "--baseline", str(path))
    assert other["verdict"] == "NO EXPECTATION"
    assert len(path.read_text().splitlines()) == 2


def test_a_baseline_that_is_broken_is_told_with_its_line_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    path = tmp_path / "probes.jsonl"
    local("--local", "2", "--save", str(path))
    path.write_text(path.read_text() + '{"format": 1, "kind": {"back')
    done = CliRunner().invoke(probe, [*QUICK, "--local", "2", "--baseline", str(path)])
    assert done.exit_code == 3
    assert done.output == f"nccl-inspector: {path}:2: invalid JSON\n"


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 0),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "gpu:h100:2"}, 2),
        ({"SLURM_GPUS": "16"}, 8),
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS": "8"}, 4),
        ({"SLURM_GPUS_ON_NODE": "-1", "SLURM_GPUS": "x"}, 0),
    ],
)
def test_the_number_of_gpus_is_what_slurm_says(environ: dict[str, str], count: int) -> None:
    assert gpus_per_node(environ, 2) == count
