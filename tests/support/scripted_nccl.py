"""Plays NCCL against a profiler by a script of steps, and reads what it has written."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from select import select
from types import MappingProxyType
from typing import Any

from nccl_inspector.box.layout import HEADER, KEY
from nccl_inspector.model.process import FUNCS, Process
from tests.support import exposition
from tests.support.boxes import read_dead_box
from tests.support.repository import BUILD

PLAY = BUILD / "defects" / "play"
FAKECUDA = BUILD / "fakecuda" / "libcuda.so.1"
LIMIT_S = 20.0  # for what must come, on a machine that is busy
IN_VAIN_S = 0.5  # for what must not come
HANGS = "the application hangs"
INTERVAL_MS = 100

Facts = dict[str, Any]
Environment = Mapping[str, str]
NOTHING: Environment = MappingProxyType({})
Step = list[str | bytes]


def step(verb: str, **words: int | str | bytes) -> Step:
    """One step of the script; tests/native/defects/play.c says what there is."""
    texts = {k: v if isinstance(v, bytes) else str(v).encode() for k, v in words.items()}
    return [verb, *(os.fsencode(key) + b"=" + text for key, text in texts.items()), ","]


OURS = BUILD / "libnccl-profiler-inspector.so"
NVIDIA_STANDIN = BUILD / "nvidia-standin.so"


class Playing:
    """A process that plays; `facts` is what it has said so far, by step."""

    def __init__(self, process: subprocess.Popen[bytes], patience_s: float) -> None:
        self.process = process
        self.facts: list[Facts] = []
        self.observe: Callable[[Facts, int], Facts] = lambda fact, _nth: fact
        self._patience_s = patience_s
        self._paused = False

    def _line(self) -> Facts | None:
        """Return the next line, or None at the end of the process."""
        assert self.process.stdout
        ready, _, _ = select([self.process.stdout], [], [], self._patience_s)
        assert ready, HANGS
        line = self.process.stdout.readline()
        if not line:
            return None
        fact = json.loads(line)
        return self.observe(fact, sum(one["step"] == fact["step"] for one in self.facts))

    def until_pause(self) -> Facts:
        """Wait for the next step `pause`; returns the facts of the step before it."""
        while fact := self._line():
            if fact["step"] == "pause":
                self._paused = True
                return self.facts[-1] if self.facts else {}
            self.facts.append(fact)
        raise AssertionError(self._death() or "the script has no pause")

    def go_on(self) -> None:
        """End the pause."""
        assert self.process.stdin
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        self._paused = False

    def finish(self) -> list[Facts]:
        """Wait for the end of the script; pauses end at once."""
        if self._paused:
            self.go_on()
        while fact := self._line():
            if fact["step"] == "pause":
                self.go_on()
            else:
                self.facts.append(fact)
        death = self._death()
        assert not death, death
        return self.facts

    def _death(self) -> str:
        try:
            code = self.process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            return HANGS
        if code < 0:
            return f"the application died of {signal.Signals(-code).name}"
        return {0: "", 3: "NCCL rejects the profiler"}.get(code, f"exit status {code}")


@dataclass
class Stage:
    """A directory and a profiler that writes into it; `in_vain`: the defect that it should show."""

    profiler: Path
    out: Path
    in_vain: str = ""
    limit_s: float = LIMIT_S

    def _patience_s(self, what: str) -> float:
        return IN_VAIN_S if self.in_vain and self.in_vain in what else self.limit_s

    def _environment(self, more: Environment) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "NCCL"))}
        asked = {
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_RUN_DIR": str(self.out),
            "NCCL_INSPECTOR_DUMP_DIR": str(self.out),
            "NCCL_INSPECTOR_PROM_DUMP": "1",
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": str(INTERVAL_MS * 1000),
            "NVIDIA_STANDIN_PROM_FLOOR_MICROSECONDS": "1",
            "SLURM_JOB_ID": "4711",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "0",
            "CUDA_VISIBLE_DEVICES": "0",
        } | dict(more)
        return inherited | {name: value for name, value in asked.items() if value}

    @contextmanager
    def playing(self, *steps: Step, api: int = 7, env: Environment = NOTHING) -> Iterator[Playing]:
        """Start a script. A variable of `env` that is empty is not set."""
        script = [word for one in steps for word in one]
        process = subprocess.Popen(
            [PLAY, self.profiler, FAKECUDA, str(api), *script],
            cwd=self.out,
            env=self._environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # or select() would not know of lines that are read already
        )
        try:
            yield Playing(process, self._patience_s(HANGS))
        finally:
            process.kill()
            process.communicate()

    def play(self, *steps: Step, api: int = 7, env: Environment = NOTHING) -> list[Facts]:
        """Play a script to its end; what hangs or dies is an AssertionError."""
        with self.playing(*steps, api=api, env=env) as playing:
            return playing.finish()

    def proms(self) -> dict[str, str]:
        """Texts of the Prometheus files by name, unfinished ones not."""
        texts = {}
        for path in self.out.rglob("*.prom"):
            try:
                texts[path.name] = path.read_bytes().decode(errors="replace")
            except FileNotFoundError:
                continue
        return texts

    def series(self) -> list[exposition.Series]:
        """All series of all files, as a scrape of the node has them."""
        return [one for text in self.proms().values() for one in exposition.read_prom(text)]

    def find(self, name: str, **labels: str) -> list[float]:
        """Values of the series of that name with these labels."""
        return [
            one.value
            for one in self.series()
            if one.name == name and labels.items() <= one.labels.items()
        ]

    def wait(self, fact: Callable[[], object], what: str) -> None:
        """Wait for a fact; `what` is said when it never comes."""
        end = time.monotonic() + self._patience_s(what)
        while not fact():
            assert time.monotonic() < end, what
            time.sleep(0.01)

    def wait_series(self, name: str, what: str, **labels: str) -> float:
        """Wait for a series, and return its value."""
        found: list[float] = []

        def look() -> bool:
            found[:] = self.find(name, **labels)
            return bool(found)

        self.wait(look, what)
        return found[0]

    def boxes(self) -> list[Process]:
        """What the boxes say, if there are any; their processes are dead."""
        return [read_dead_box(path) for path in sorted(self.out.glob("*.box"))]

    def untimed(self, func: str) -> tuple[int, int]:
        """Operations and bytes of that function for which NCCL gave no time."""
        ops = size_bytes = 0
        for path in sorted(self.out.glob("*.box")):
            data = path.read_bytes()
            first = HEADER.number(data, "key_offset")
            end = first + HEADER.number(data, "key_count") * KEY.size
            for base in range(first, end, KEY.size):
                if FUNCS[KEY.number(data, "func", base)] == func:
                    ops += KEY.number(data, "untimed_ops", base)
                    size_bytes += KEY.number(data, "untimed_bytes", base)
        return ops, size_bytes

    def lines(self) -> list[Facts]:
        """The whole JSON lines of all processes that tell of an operation.

        What a process is writing just now ends anywhere.
        """
        return [
            json.loads(line)
            for path in sorted(self.out.rglob("*.log"))
            for line in path.read_text().rpartition("\n")[0].splitlines()
            if '_perf"' in line
        ]

    def operations(self) -> int:
        """Of how many finished operations anything of ended processes tells."""
        return sum(key.ops for box in self.boxes() for key in box.keys) + len(self.lines())
