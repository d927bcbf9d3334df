# SPDX-License-Identifier: Apache-2.0
"""Judge a probe, or a run of nccl-tests: compared with what was expected, and node by node."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CRITICAL,
    EXIT_HEALTHY,
    EXIT_NO_DATA,
    EXIT_WARNING,
    HIGH,
    MEDIUM,
    WARNING,
    Entity,
    Evidence,
    Finding,
)
from nccl_inspector.model.wording import cut_list, number, percent
from nccl_inspector.nccl_log.catalogue import LogRule, Matcher
from nccl_inspector.nccl_log.record import Level
from nccl_inspector.probe.baseline import Expectation
from nccl_inspector.probe.nccl_tests import PerfRun
from nccl_inspector.probe.odd import Odd, find_odd
from nccl_inspector.probe.result import ProbeResult
from nccl_inspector.probe.words import size_words

_CELLS_SHOWN = 4
_NODES_NAMED = 8


class Verdict(StrEnum):
    """The verdict on the bandwidth as a whole."""

    AS_EXPECTED = "AS EXPECTED"
    BELOW = "BELOW"
    NO_EXPECTATION = "NO EXPECTATION"
    NO_DATA = "NO DATA"


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict, a sentence that gives its figures, and the findings."""

    verdict: Verdict
    words: str
    expectation: Expectation | None
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """Return 0, 1 if something is wrong, or 3 if there is nothing to judge."""
        if self.findings:
            return EXIT_WARNING
        return EXIT_NO_DATA if self.verdict is Verdict.NO_DATA else EXIT_HEALTHY


def _source(expectation: Expectation) -> str:
    if not expectation.probes:
        return expectation.source
    return f"median of {number(expectation.probes, 'probe')} in {expectation.source}"


def _compare(
    best_gbs: float, at: str, expectation: Expectation | None, threshold: float
) -> tuple[Verdict, str, list[Finding]]:
    if expectation is None:
        return (
            Verdict.NO_EXPECTATION,
            f"{best_gbs:.3g} GB/s {at}; nothing to compare with: give --expect or --baseline",
            [],
        )
    share = best_gbs / expectation.gbs
    words = (
        f"{best_gbs:.3g} GB/s {at} is {percent(share)} of {expectation.gbs:.3g} GB/s "
        f"({_source(expectation)})"
    )
    if share >= threshold:
        return Verdict.AS_EXPECTED, words, []
    finding = Finding(
        rules.PROBE_BELOW.id, WARNING, MEDIUM,
        f"bus bandwidth is {percent(share)} of what was expected",
        f"{words}; the threshold is {percent(threshold)}.",
        evidence=(
            Evidence("probe", "bus bandwidth", best_gbs, "GB/s", expectation.gbs,
                     expectation.probes or None),
        ),
        actions=(rules.PROBE_BELOW.action,),
    )  # fmt: skip
    return Verdict.BELOW, words, [finding]


def _odd_finding(odd: Odd) -> Finding:
    cells = cut_list(
        (f"{one.sender} -> {one.receiver} {one.gbs:.3g} GB/s" for one in odd.cells), _CELLS_SHOWN
    )
    figure = Evidence("probe", "bandwidth", odd.gbs, "GB/s", odd.reference_gbs, len(odd.cells))
    spread = Evidence("probe", "robust z", odd.z, "sigma")
    if len(odd.nodes) == 1:
        return Finding(
            rules.PROBE_SLOW_NODE.id, WARNING, MEDIUM,
            f"node {odd.nodes[0]} has {percent(odd.share)} of the bandwidth of other nodes",
            f"{cells}; other nodes among themselves: {odd.reference_gbs:.3g} GB/s (median).",
            entities=(Entity("node", odd.nodes[0]),),
            evidence=(figure, spread),
            actions=(rules.PROBE_SLOW_NODE.action,),
        )  # fmt: skip
    return Finding(
        rules.PROBE_SLOW_PAIR.id, WARNING, MEDIUM,
        f"nodes {odd.nodes[0]} and {odd.nodes[1]} have {percent(odd.share)} of the bandwidth of "
        "other pairs",
        f"{cells}; all other pairs: {odd.reference_gbs:.3g} GB/s (median).",
        entities=(Entity("pair", " - ".join(odd.nodes)),),
        evidence=(figure, spread),
        actions=(rules.PROBE_SLOW_PAIR.action,),
    )  # fmt: skip


def _wrong_finding(title: str, detail: str, count: int) -> Finding:
    return Finding(
        rules.PROBE_WRONG.id, CRITICAL, HIGH, title, detail,
        evidence=(Evidence("probe", "wrong", count, ""),),
        actions=(rules.PROBE_WRONG.action,),
    )  # fmt: skip


def judge_probe(result: ProbeResult, expectation: Expectation | None, threshold: float) -> Judged:
    """Judge a probe: its best size, its matrix, and whether data arrived unchanged."""
    best = result.best
    if best is None or best.bus_gbs <= 0:
        return Judged(Verdict.NO_DATA, "nothing was measured", expectation, ())
    at = f"at {size_words(best.size_bytes)}"
    verdict, words, findings = _compare(best.bus_gbs, at, expectation, threshold)
    if result.wrong_ranks:
        named = cut_list(map(str, result.wrong_ranks), _NODES_NAMED)
        findings.append(
            _wrong_finding(
                f"wrong data arrived at {number(len(result.wrong_ranks), 'rank')}",
                f"Rank {named}.",
                len(result.wrong_ranks),
            )
        )
    findings += map(_odd_finding, find_odd(result.cells))
    return Judged(verdict, words, expectation, tuple(findings))


def judge_run(run: PerfRun, expectation: Expectation | None, threshold: float) -> Judged:
    """Judge a table of nccl-tests; one that was cut has no verdict, but wrong values count."""
    findings: list[Finding] = []
    if run.wrong:
        findings.append(
            _wrong_finding(
                f"nccl-tests counted {number(run.wrong, 'wrong value')}",
                f"In the table of {run.where}.",
                run.wrong,
            )
        )
    if run.failures:
        findings.append(_failed_finding(run))
    if run.is_alone:
        return Judged(Verdict.NO_DATA, _alone_words(run), expectation, tuple(findings))
    best = run.best()
    if run.failures:
        so_far = "" if best is None else f"; so far the best is {best[1].bus_gbs:.3g} GB/s"
        words = f"the program failed{so_far}"
        return Judged(Verdict.NO_DATA, words, expectation, tuple(findings))
    if best is None or best[1].bus_gbs <= 0:
        return Judged(Verdict.NO_DATA, "the table has no bandwidth", expectation, tuple(findings))
    row, figure = best
    at = f"at {size_words(row.size_bytes)}, {figure.place}"
    if not run.is_whole:
        words = f"the output is cut; so far the best is {figure.bus_gbs:.3g} GB/s {at}"
        return Judged(Verdict.NO_DATA, words, expectation, tuple(findings))
    verdict, words, more = _compare(figure.bus_gbs, at, expectation, threshold)
    return Judged(verdict, words, expectation, (*findings, *more))


def _alone_words(run: PerfRun) -> str:
    """Return why a table of one rank measures nothing."""
    if run.alone > 1:
        return (
            f"{run.alone} processes ran side by side, each alone (rank 0 of 1): nothing was "
            "communicated. nccl-tests was built without MPI (make MPI=1), or its MPI does not fit "
            "the launcher (srun --mpi=pmix)"
        )
    return (
        "one rank, alone: nothing was communicated, so busbw is 0. Give it several GPUs (-g N), or "
        "several processes; nccl-tests that was built without MPI (make MPI=1) runs each process "
        "for itself"
    )


def _failed_finding(run: PerfRun) -> Finding:
    """Return what the program wrote of its failure, and what the rules of NCCL's log say of it."""
    rule = _rule_of(run.failures[0])
    parts = [f"{rule.id}: {rule.title}. {rule.meaning}".strip()] if rule else []
    if len(run.failures) > 1:
        parts.append(f"Also: {cut_list(run.failures[1:], _CELLS_SHOWN)}.")
    return Finding(
        rules.PROBE_FAILED.id, WARNING, HIGH, f"nccl-tests failed: {run.failures[0]}",
        " ".join(parts),
        actions=tuple(filter(None, (rule.action if rule else "", rules.PROBE_FAILED.action))),
    )  # fmt: skip


def _rule_of(failure: str) -> LogRule | None:
    matcher = Matcher()
    _, slash, last = failure.partition(" / ")
    text = last.rstrip("'").encode()
    if slash and text:
        rule = matcher.find(Level.WARN, text, ())
        if rule is not None and rule.known != "level":
            return rule
    return matcher.find(Level.JOB, failure.encode(), ())


def worst_exit_code(judged: Sequence[Judged]) -> int:
    """Return 1 if something is wrong, else 3 if something could not be judged, else 0."""
    codes = {one.exit_code for one in judged}
    for code in (EXIT_WARNING, EXIT_NO_DATA):
        if code in codes:
            return code
    return EXIT_HEALTHY if codes else EXIT_NO_DATA
