"""Every form of the option, with every command, default, export and variable, on a real Slurm.

The table that comes out goes onto the page of what was verified.
"""

import itertools
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, Cluster, wait_until
from tests.tools import verified

# What a user may write, and what he then gets; None: nothing written.
GIVEN = {
    "nothing": ((), None),
    "prom": (("--nccl-inspector=prom",), "prom"),
    "report": (("--nccl-inspector=report",), "report"),
    "off": (("--nccl-inspector=off",), "off"),
    "prom with keys": (("--nccl-inspector=prom,interval=250ms,p2p=0",), "prom 250ms p2p=0"),
    "a bare key": (("--nccl-inspector=prom+json,verbose",), "prom+json verbose"),
    "twice": (("--nccl-inspector=report", "--nccl-inspector=prom"), "prom"),
    "a blank for the =": (("--nccl-inspector", "json,dir=a b"), "json in a b"),
}
DEFAULTS = {"no default": None, "default=prom": "prom"}
VARIABLES = {"": None, "SLURM_NCCL_INSPECTOR=report": "report"}
EXPORTS = ("ALL", "NONE", "HOME,EDITOR=vi")
LOGIN = ("sbatch", "#SBATCH", "srun", "salloc")

# Prints what the plugin would do with the environment of this very process.
OBSERVE = """#!/bin/sh
if [ -z "$NCCL_PROFILER_PLUGIN" ]; then echo off; exit 0; fi
case $NCCL_INSPECTOR_PROM_DUMP$NCCL_INSPECTOR_JSON in
10) mode=prom ;; 11) mode=prom+json ;; 01) mode=json ;; 00) mode=report ;; *) mode=? ;;
esac
case $NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS in
1000000) ;; 250000) mode="$mode 250ms" ;; *) mode="$mode ?" ;; esac
[ "$NCCL_INSPECTOR_ENABLE_P2P" = 1 ] || mode="$mode p2p=$NCCL_INSPECTOR_ENABLE_P2P"
[ "${NCCL_INSPECTOR_DUMP_VERBOSE-0}" = 0 ] || mode="$mode verbose"
[ -z "${NCCL_INSPECTOR_DUMP_DIR-}" ] || mode="$mode in $NCCL_INSPECTOR_DUMP_DIR"
raw=/run/nccl-inspector/jobs/$SLURM_JOB_ID/raw
[ "$NCCL_INSPECTOR_RUN_DIR" = "$raw" ] || mode="$mode elsewhere"
[ "${NCCL_INSPECTOR_SET_BY_SLURM%% *}" = "$SLURM_JOB_ID" ] || mode="$mode of another job"
echo "$mode"
"""


@dataclass(frozen=True)
class Run:
    """One command; `number` names the file into which its tasks say what they see."""

    number: int
    command: str
    given: str
    default: str
    variable: str
    export: str
    inside: bool  # in the script of a job that was submitted with --nccl-inspector=prom

    @property
    def expected(self) -> str:
        """The first of: the command line, the variable, the job around (srun only), the site."""
        around = "prom" if self.inside and self.command == "srun" else None
        wishes = GIVEN[self.given][1], VARIABLES[self.variable], around, DEFAULTS[self.default]
        return next((wish for wish in wishes if wish), "off")

    def script(self, home: Path) -> str:
        """A line of shell that runs it; a batch job asks its own step and one more."""
        given, observe, out = GIVEN[self.given][0], str(home / "observe"), f"r/{self.number}"
        words = shlex.join(given)
        before = f"{self.variable} " if self.variable else ""
        if self.command == "srun":
            place = "--overlap" if self.inside else "--mem=10"
            return (
                f"{before}srun -Q -n1 {place} --export={self.export} {words} {observe} >{out} 2>&1"
            )
        if self.command == "salloc":
            inner = f"srun -Q -n1 --export={self.export} {observe}"
            return f"{before}salloc -Q -n1 --mem=10 {words} {inner} >{out} 2>&1"
        lines = ["#!/bin/sh"]
        if self.command == "#SBATCH":
            lines += [f"#SBATCH {shlex.join(pair)}" for pair in _options(given)]
            words = ""
        lines += [observe, f"/usr/bin/srun -Q -n1 {observe}"]
        text = shlex.quote("\n".join(lines))
        sbatch = f"sbatch -Q -n1 --mem=10 -o {home}/{out} --export={self.export} {words}"
        return f"printf '%s\\n' {text} >s/{self.number}; {before}{sbatch} s/{self.number}"

    @property
    def answers(self) -> int:
        return 2 if self.command in ("sbatch", "#SBATCH") else 1


def _options(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Each option with its value, one a line of a script."""
    if words and "=" not in words[0]:
        yield words
    else:
        yield from ((word,) for word in words)


def runs(default: str, *, inside: bool) -> list[Run]:
    """Every combination under one default of the site."""
    commands = ("sbatch", "salloc", "srun") if inside else LOGIN
    product = itertools.product(commands, GIVEN, VARIABLES, EXPORTS)
    return [
        Run(number, command, given, default, variable, export, inside)
        for number, (command, given, variable, export) in enumerate(product)
    ]


def carry_out(cluster: Cluster, chosen: list[Run]) -> dict[Run, list[str]]:
    """Run all, six at a time, from a login shell or in a measured job; what their tasks saw."""
    home = cluster.home()
    setup = "rm -rf r s; mkdir r s"
    assert cluster.run_as(JOB_USER, ["sh", "-c", setup]).returncode == 0
    cluster.run_as(JOB_USER, ["sh", "-c", "cat >observe; chmod 755 observe"], stdin=OBSERVE)
    scripts = "\0".join(run.script(home) for run in chosen)
    argv = ["xargs", "-0", "-P6", "-I{}", "sh", "-c", "{}"]
    if chosen[0].inside:
        cluster.run_as(JOB_USER, ["sh", "-c", "cat >all"], stdin=scripts)
        outer = f"#!/bin/sh\ncd {home}; {shlex.join(argv)} <all\n"
        words = ("-N1", "-n4", "--mem=100", "--nccl-inspector=prom", "-o", "outer")
        cluster.wait_for_job(cluster.sbatch(*words, script=outer), 150)
    else:
        done = cluster.run_as(JOB_USER, argv, stdin=scripts, timeout=150)
        assert done.returncode == 0, done.stderr
    results = home / "r"

    def seen(run: Run) -> list[str]:
        path = results / str(run.number)
        return path.read_text().splitlines() if path.exists() else []

    wait_until(
        lambda: all(len(seen(run)) >= run.answers for run in chosen),
        60, "every command's tasks have said what they see", 0.2,
    )  # fmt: skip
    return {run: seen(run) for run in chosen}


def table(all_seen: dict[Run, list[str]], commands: Iterable[str]) -> verified.Rows:
    """What was seen, by what was given; a cell is one mode if all commands and exports agree."""
    columns = list(itertools.product(DEFAULTS, VARIABLES))
    rows = [["given", *(" and ".join(filter(None, column)) for column in columns)]]
    for given in GIVEN:
        row = [f"`{shlex.join(GIVEN[given][0])}`" if GIVEN[given][0] else given]
        for default, variable in columns:
            words = {
                word
                for run, seen in all_seen.items()
                if run.command in commands
                and (run.given, run.default, run.variable) == (given, default, variable)
                for word in seen
            }
            row.append(" / ".join(sorted(words)))
        rows.append(row)
    return rows


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("inside", [False, True], ids=["login", "measured job"])
@pytest.mark.case("Options", "every form, with every command, default, export and variable")
def test_every_form_of_the_option_means_what_it_says(
    healthy_cluster: Cluster, inside: bool
) -> None:
    cluster = healthy_cluster
    all_seen: dict[Run, list[str]] = {}
    for default in DEFAULTS:
        cluster.set_plugstack(*(["default=prom"] if DEFAULTS[default] else []))
        all_seen |= carry_out(cluster, runs(default, inside=inside))
    wrong = {run: seen for run, seen in all_seen.items() if set(seen) != {run.expected}}
    assert not wrong, f"{len(wrong)} of {len(all_seen)}, the first: {next(iter(wrong.items()))}"
    how = "each with --export=ALL, =NONE and a list"
    if inside:
        title = f"In the script of a job with `--nccl-inspector=prom`: srun, {how}"
        verified.leave_table(title, table(all_seen, ["srun"]))
        title = f"Jobs of their own, submitted by that script: sbatch and salloc, {how}"
        verified.leave_table(title, table(all_seen, ["sbatch", "salloc"]))
    else:
        title = f"From a login shell: sbatch, `#SBATCH`, srun, and an srun in salloc, {how}"
        verified.leave_table(title, table(all_seen, LOGIN))
