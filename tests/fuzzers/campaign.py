"""One target for a while: mutate, run, judge, keep what takes a new way, save what fails."""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzzers.target import Target
from tests.fuzzers.worker import Result, Worker, way_of

_CORPUS_BYTES_MAX = 96 << 20
_AGAIN = 2  # an input over its budget is run again: others use this machine, too


class SeedFailsError(AssertionError):
    """What the product made itself fails."""


@dataclass(slots=True)
class Limits:
    """What inputs of a target may cost on this machine, from what its seeds did."""

    target: Target
    cpu_s: float
    grown_bytes: int
    largest: int

    def of(self, size: int) -> tuple[float, int]:
        """Return the CPU time and the memory for an input of this size."""
        times, budget = max(1.0, size / max(self.largest, 1)), self.target.budget
        return (
            (budget.cpu_s + budget.cpu_times * self.cpu_s) * times,
            int((budget.memory_bytes + budget.memory_times * self.grown_bytes) * times),
        )


@dataclass(slots=True)
class Failure:
    """An input that fails, and where it was saved."""

    target: str
    result: Result
    saved: Path

    @property
    def line(self) -> str:
        """One line that says what and where."""
        last = self.result.words.strip().splitlines()[-1:] or [""]
        said = last[0] if self.result.kind in ("exception", "memory") else ""
        return f"{self.target}: {self.result.kind} {said[:200]} in {self.result.place or '?'}"


@dataclass(slots=True)
class Outcome:
    """What a campaign has seen."""

    target: str
    runs: int = 0
    inputs: int = 0  # several in one run, where the target says so
    whole: int = 0  # runs in which more was done than to read
    seconds: float = 0.0
    cpu_s: float = 0.0  # of the inputs, and of what makes them
    ways: Counter[str] = field(default_factory=Counter)
    failures: dict[tuple[str, str, str], Failure] = field(default_factory=dict)
    dearest_cpu: float = 0.0  # share of its budget
    dearest_memory: float = 0.0

    @property
    def row(self) -> str:
        """A line of the table."""
        cpu_s = max(self.cpu_s, 1e-9)  # others use this machine, too
        return (
            f"{self.target:<12} {self.inputs:>8} inputs {self.inputs / cpu_s:>8.1f}, "
            f"{self.whole / cpu_s:>6.1f} whole runs a second of {self.cpu_s:>6.0f} s CPU "
            f"{len(self.ways):>6} ways {self.dearest_cpu:>5.0%} CPU "
            f"{self.dearest_memory:>5.0%} memory {len(self.failures):>3} findings"
        )


def measured(target: Target, worker: Worker, seeds: Sequence[bytes]) -> Limits:
    """Return the limits; the seeds themselves must pass.

    Raises:
        SeedFailsError: one does not.
    """
    cpu_s, grown = 0.0, 0
    worker.run(seeds[0])  # the first time modules are imported
    for data in seeds:
        result = worker.run(data)
        if result.kind != "ok":
            raise SeedFailsError(f"{target.name}: {result.kind}: {result.words}")
        cpu_s, grown = max(cpu_s, result.cpu_s), max(grown, result.grown_bytes)
    return Limits(target, cpu_s, grown, max(map(len, seeds)))


class Campaign:
    """A target, its corpus and its chance."""

    def __init__(self, target: Target, seed: int, folder: Path) -> None:
        """Make the seeds. `folder`: where inputs that fail are saved."""
        self._target, self._folder = target, folder
        self._chance = Random(f"{seed}:{target.name}")  # noqa: S311
        self._seeds = [*target.seeds()]
        self._corpus = [*self._seeds]
        self._corpus_bytes = sum(map(len, self._corpus))
        self._inputs_cpu_s = 0.0
        self.outcome = Outcome(target.name)

    def run(
        self,
        seconds: float,
        runs: int | None = None,
        *,
        cpu_s: float = math.inf,
        until_failure: bool = False,
    ) -> Outcome:
        """Run inputs for so long, or so many, or for so much CPU time, or until one fails."""
        with Worker(self._target) as worker:
            limits = measured(self._target, worker, self._seeds)
            begin_s, used_s = time.monotonic(), time.process_time()
            while self.outcome.seconds < seconds and self.outcome.runs != runs:
                self._inputs_cpu_s += self._step(worker, limits)
                self.outcome.seconds = time.monotonic() - begin_s
                self.outcome.cpu_s = self._inputs_cpu_s + time.process_time() - used_s
                if self.outcome.cpu_s >= cpu_s or (until_failure and self.outcome.failures):
                    break
        return self.outcome

    def _step(self, worker: Worker, limits: Limits) -> float:
        """Run one input, and return its seconds of CPU time."""
        # A seed as often as one of all that was kept: else rare ways would be all.
        pool = self._seeds if self._chance.random() < 0.4 else self._corpus
        data = self._target.mutate(self._chance, self._chance.choice(pool), self._corpus)
        data = data[: self._target.most_bytes]
        result = judged(worker, data, limits)
        outcome = self.outcome
        outcome.runs += 1
        outcome.inputs += self._target.inputs(data)
        outcome.whole += result.whole
        if result.kind == "ok":
            cpu_s, memory = limits.of(len(data))
            outcome.dearest_cpu = max(outcome.dearest_cpu, result.cpu_s / cpu_s)
            outcome.dearest_memory = max(outcome.dearest_memory, result.grown_bytes / memory)
            way = way_of(result.words)
            if not outcome.ways[way] and self._corpus_bytes + len(data) < _CORPUS_BYTES_MAX:
                self._corpus.append(data)
                self._corpus_bytes += len(data)
            outcome.ways[way] += 1
        else:
            self._fail(data, result)
        return result.cpu_s

    def _fail(self, data: bytes, result: Result) -> None:
        last = result.words.strip().splitlines()[-1:] if result.kind == "exception" else []
        key = result.kind, result.place, way_of("".join(last))[:60]
        if key in self.outcome.failures:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.blake2b(data, digest_size=6).hexdigest()
        path = self._folder / f"{self._target.name}-{name}"
        path.write_bytes(data)
        path.with_suffix(".why").write_text(
            f"{result.kind}\n{result.words}\n", errors="backslashreplace"
        )
        failure = Failure(self._target.name, result, path)
        self.outcome.failures[key] = failure
        print(f"{failure.line}\n    saved as {path}", flush=True)


def judged(worker: Worker, data: bytes, limits: Limits) -> Result:
    """Run an input, and again where it took more than it may: the least counts."""
    cpu_s, memory = limits.of(len(data))
    whole: bool | None = None
    for left in range(_AGAIN, -1, -1):
        # Twice the CPU time, or the memory and what the allocator keeps, ends it.
        result = worker.run(data, 2 * cpu_s, memory + (256 << 20), whole=whole)
        if result.kind != "ok":
            return result
        over = "cpu" if result.cpu_s > cpu_s else "memory" if result.grown_bytes > memory else ""
        if not over:
            return result
        if left == 0:
            grown, most = result.grown_bytes >> 20, memory >> 20
            said = f"{result.cpu_s:.2f} of {cpu_s:.2f} s CPU, {grown} of {most} MiB"
            # Once more, to be ended in the middle: for where it spends its time.
            where = worker.run(data, cpu_s / 2, whole=whole) if over == "cpu" else result
            return Result(over, f"{where.words}\n{said}", result.cpu_s, result.grown_bytes)
        whole = result.whole
        worker.stop()
        worker.run(_warm(limits))
    raise AssertionError


def _warm(limits: Limits) -> bytes:
    return limits.target.seeds()[0]
