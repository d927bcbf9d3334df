# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector probe`: the bandwidth of this allocation, and which node is slow.

It imports modules only when it needs them, because the agent starts through the same cli.py.
"""

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nccl_inspector.commands.card_output import exit_judging
from nccl_inspector.commands.options import json_option, path_type
from nccl_inspector.errors import InspectorError

if TYPE_CHECKING:
    from nccl_inspector.probe.baseline import Expectation
    from nccl_inspector.probe.launch import Step
    from nccl_inspector.probe.result import Kind
    from nccl_inspector.probe.whole import Wanted

_COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter")
_SIZE_MIN, _SIZE_MAX = 4 << 10, 16 << 30
_NODELISTS = "SLURM_JOB_NODELIST", "SLURM_NODELIST"
_SILENT = "no node list: run it in an allocation (salloc, sbatch), or give --local"


def _columns() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _size(_context: click.Context, _option: click.Parameter, text: str) -> int:
    from nccl_inspector.probe.words import parse_size

    try:
        size = parse_size(text)
    except InspectorError as err:
        raise click.BadParameter(str(err)) from None
    if not _SIZE_MIN <= size <= _SIZE_MAX:
        raise click.BadParameter("not from 4K to 16G")
    return size


def _step(
    backend: str, per_node: int, local: int, python: str, interface: str, answer_s: float
) -> "Step":
    """Return what to start.

    Raises:
        InspectorError: there is no allocation, or its variables are not valid.
    """
    from nccl_inspector.model.hostlist import expand
    from nccl_inspector.probe.launch import Step, default_python, gpus_per_node

    nodes = 1
    if not local:
        listed = next(filter(None, map(os.environ.get, _NODELISTS)), "")
        nodes = len(expand(listed))
        if not nodes:
            raise click.UsageError(_SILENT)
    gpus = gpus_per_node(os.environ, nodes)
    is_chosen = backend != "auto" or bool(local)
    if backend == "auto":
        backend = "nccl" if gpus and not local else "tcp"
    count = local or per_node or (gpus if backend == "nccl" else 1)
    if not count:
        raise InspectorError("Slurm says of no GPU in this allocation: give --per-node")
    return Step(
        nodes, count, backend, python or default_python(backend), interface, answer_s, is_chosen
    )  # fmt: skip


def _expectation(
    expect: float | None, baseline: Path | None, kind: "Kind | None"
) -> "Expectation | None":
    from nccl_inspector.probe.baseline import Expectation, expectation_of, read_results

    if expect is not None:
        return Expectation(expect, "--expect")
    if baseline is None or kind is None:
        return None
    return expectation_of(read_results(baseline), kind, baseline)


def _read(paths: Sequence[Path], expect: float | None, threshold: float, *, as_json: bool) -> int:
    """Judge outputs of nccl-tests; return the exit status. Other files are named and left out."""
    from nccl_inspector.probe.judge import judge_run, worst_exit_code
    from nccl_inspector.probe.nccl_tests import read_output
    from nccl_inspector.probe.text import render_runs, runs_json

    runs, unreadable = [], 0
    for path in paths:
        try:
            runs += read_output(path)
        except InspectorError as err:
            click.echo(f"nccl-inspector: {err}", err=True)
            unreadable += 1
    expectation = _expectation(expect, None, None)
    judged = [(run, judge_run(run, expectation, threshold)) for run in runs]
    status = worst_exit_code([one for _, one in judged])
    if unreadable and status == 0:
        status = 3
    if as_json:
        click.echo(json.dumps({"exit_status": status, "runs": runs_json(judged)}))
    elif judged:
        click.echo(render_runs(judged, _columns()), nl=False)
    return status


def _measure(step: "Step", wanted: "Wanted", local: int, port: int, files: tuple[Path | None, ...],
             expect: float | None, threshold: float, *, as_json: bool) -> int:  # fmt: skip
    from nccl_inspector.probe.baseline import read_results, save_result
    from nccl_inspector.probe.judge import judge_probe
    from nccl_inspector.probe.text import probe_json, render_probe
    from nccl_inspector.probe.whole import run_probe

    baseline, save = files
    if baseline is not None:
        read_results(baseline)  # a file that cannot be read is told before anything is measured
    result = run_probe(
        step, wanted, int(time.time()), port,
        lambda words: click.echo(words, err=True), here=bool(local),
    )  # fmt: skip
    judged = judge_probe(result, _expectation(expect, baseline, result.kind), threshold)
    if as_json:
        click.echo(json.dumps(probe_json(result, judged)))
    else:
        click.echo(render_probe(result, judged, _columns()), nl=False)
    if save is not None and judged.findings:
        click.echo(f"nccl-inspector: not saved in {save}: something is wrong", err=True)
    elif save is not None:
        save_result(save, result)
    return judged.exit_code


@click.command()
@click.option("--collective", type=click.Choice(_COLLECTIVES, case_sensitive=False),
              default="AllReduce", show_default=True, help="What to measure.")  # fmt: skip
@click.option("--backend", type=click.Choice(("auto", "nccl", "tcp")), default="auto",
              help="nccl: through PyTorch; tcp: between the hosts, without GPUs. "
              "[default: nccl if the allocation has GPUs]")  # fmt: skip
@click.option("--pairs", is_flag=True,
              help="Also measure each pair of nodes, and name the slow node or pair.")  # fmt: skip
@click.option("--expect", type=click.FloatRange(0, 1e6, min_open=True), metavar="GB/s",
              help="The bus bandwidth to expect.")  # fmt: skip
@click.option("--baseline", type=path_type, metavar="FILE",
              help="Expect the median of the probes of the same kind in FILE.")  # fmt: skip
@click.option("--save", type=path_type, metavar="FILE",
              help="Append this probe to FILE, for --baseline, if nothing is wrong.")  # fmt: skip
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.9, show_default=True,
              help="The share of the expected bandwidth that is enough.")  # fmt: skip
@click.option("--read", "reads", type=path_type, multiple=True, metavar="FILE",
              help="Measure nothing; judge the output of nccl-tests or rccl-tests in FILE, text "
              "or JSON; may be repeated, and further FILEs may follow.")  # fmt: skip
@click.argument("files", nargs=-1, type=path_type, metavar="[FILE]...")
@click.option("--min-size", "least", callback=_size, default="1M", show_default=True,
              metavar="SIZE", help="The smallest size, in bytes or with K, M, G.")  # fmt: skip
@click.option("--max-size", "most", callback=_size, default="1G", show_default=True,
              metavar="SIZE", help="The largest size; each is twice the one before.")  # fmt: skip
@click.option("--pair-size", callback=_size, default="64M", show_default=True,
              metavar="SIZE", help="What a rank sends at a time with --pairs.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(1, 3600), default=60.0, show_default=True,
              help="About how long to measure the sizes; larger ones may be left out.")  # fmt: skip
@click.option("--timeout", "answer_s", type=click.FloatRange(1, 3600), default=60.0,
              show_default=True, help="Give up if a rank does not answer for so long, in "
              "seconds.")  # fmt: skip
@click.option("--per-node", type=click.IntRange(1, 64),
              help="Ranks on each node. [default: one for each GPU; 1 with tcp]")  # fmt: skip
@click.option("--interface", default="", metavar="NAME",
              help="The network interface that ranks listen on, such as ib0. [default: the one "
              "that leads to where the probe was started]")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=0,
              help="The port that ranks connect to. [default: any free one]")  # fmt: skip
@click.option("--python", default="", metavar="PATH",
              help="The nodes' Python with PyTorch. [default: python3 in PATH]")  # fmt: skip
@click.option("--local", type=click.IntRange(1, 64), metavar="N",
              help="Without Slurm: measure N processes on this host.")  # fmt: skip
@json_option
@click.pass_context
def probe(
    context: click.Context, /, collective: str, backend: str, pairs: bool, expect: float | None,
    baseline: Path | None, save: Path | None, threshold: float, reads: tuple[Path, ...],
    files: tuple[Path, ...], least: int, most: int, pair_size: int, seconds: float,
    answer_s: float, per_node: int | None, interface: str, port: int, python: str,
    local: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure the bandwidth of this allocation, and name the node or pair that is slow.

    Run it in a job, before its work: it starts one srun, with a task for each GPU. With GPUs it
    measures NCCL through PyTorch; without, TCP between the hosts. Or it judges what nccl-tests
    printed (--read).

    Exit status 0: nothing is wrong; 1: below what was expected, or a finding; 3: it could not
    measure or read.
    """
    if files and not reads:
        raise click.UsageError("FILE belongs to --read.")

    def make() -> int:
        from nccl_inspector.probe.whole import Wanted

        if reads:
            return _read([*reads, *files], expect, threshold, as_json=as_json)
        if least > most:
            raise click.UsageError("--min-size is larger than --max-size.")
        step = _step(backend, per_node or 0, local or 0, python, interface, answer_s)
        wanted = Wanted(collective, least, most, seconds, pairs, pair_size)
        return _measure(step, wanted, local or 0, port, (baseline, save), expect, threshold,
                        as_json=as_json)  # fmt: skip

    exit_judging(context, make)
