# SPDX-License-Identifier: Apache-2.0
"""Turns a check into two tests: our plugin passes it, and fails it once the defect is planted.

A defect is planted beside the plugin: in what it is told, in what is read of it, or in what its
process does. So it is known that a check sees the defect that it is there for.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.model.process import Process
from tests.support.scripted_nccl import (
    LIMIT_S,
    NOTHING,
    OURS,
    Environment,
    Facts,
    Playing,
    Stage,
    Step,
    step,
)

Check = Callable[[Stage], None]
Texts = dict[str, str]
FOREVER_MS = 60_000
END = ","  # of a step


@dataclass(frozen=True, kw_only=True)
class Plant:
    """What is not as our plugin has it. Each part is as it is, unless it is said."""

    tell: Callable[[Step], list[Step]] = lambda one: [one]
    read: Callable[["PlantedStage", Texts], Texts] = lambda _stage, texts: texts
    read_line: Callable[[Facts], Facts] = lambda line: line
    observe: Callable[[Facts, int], Facts] = lambda fact, _nth: fact
    environment: Mapping[str, str] = field(default_factory=dict)
    touch: Callable[[Path], object] = lambda _out: None
    profiler: Path = OURS
    killed_by: int = 0
    boxes: bool = True


def is_of(one: Step, verb: str, words: Mapping[str, object]) -> bool:
    return one[0] == verb and all(f"{k}={v}".encode() in one for k, v in words.items())


def told(verb: str, **words: int | str) -> Plant:
    """Steps of that verb have these words."""
    names = tuple(f"{name}=".encode() for name in words)

    def tell(one: Step) -> list[Step]:
        if one[0] != verb:
            return [one]
        kept = [
            word for word in one[1:-1] if not (isinstance(word, bytes) and word.startswith(names))
        ]
        return [[verb, *kept, *step(verb, **words)[1:]]]

    return Plant(tell=tell)


def untold(verb: str, **words: object) -> Plant:
    """Steps of that verb with these words are left out."""
    return Plant(tell=lambda one: [] if is_of(one, verb, words) else [one])


def preceded(verb: str, *by: Step) -> Plant:
    """Before each step of that verb come others."""
    return Plant(tell=lambda one: [*by, one] if one[0] == verb else [one])


def hangs(verb: str) -> Plant:
    """The application does not come back from steps of that verb."""
    return preceded(verb, step("await", ms=FOREVER_MS))


def dies_of(number: int) -> Plant:
    """A signal ends the application, which waits for it."""
    return replace(hangs("comm"), killed_by=number)


def writes(change: Callable[[str], str]) -> Plant:
    """Metrics files have another text."""
    return Plant(
        read=lambda _stage, texts: {name: change(text) for name, text in texts.items()},
    )


def writes_nothing_of(part: str) -> Plant:
    """Metrics files lack the lines of families with this in their name."""
    return writes(lambda text: re.sub(rf"^\S*{part}.*\n", "", text, flags=re.MULTILINE))


def writes_no_file() -> Plant:
    """Neither metrics files nor lines are there."""
    return Plant(read=lambda _stage, _texts: {}, read_line=lambda _line: {})


def leaves(name: str) -> Plant:
    """Metrics files stay as they were when the metric was there first."""

    def read(stage: "PlantedStage", texts: Texts) -> Texts:
        with_it = (one for one in stage.earlier if any(name in text for text in one.values()))
        return next(with_it, texts)

    return Plant(read=read)


def observed(verb: str, nth: int = 0, **more: float) -> Plant:
    """The player has seen so much more at the n-th step of that verb."""

    def observe(fact: Facts, number: int) -> Facts:
        if fact["step"] != verb or number != nth:
            return fact
        return fact | {name: fact[name] + value for name, value in more.items()}

    return Plant(observe=observe)


def steps_of(script: Iterable[Step]) -> Iterator[Step]:
    """The steps one by one, also of those that were put together."""
    one: Step = []
    for word in (word for part in script for word in part):
        one.append(word)
        if word == END:
            yield one
            one = []


@dataclass
class PlantedStage(Stage):
    """A stage with a defect."""

    plant: Plant = field(default_factory=Plant)
    earlier: list[Texts] = field(default_factory=list)
    started: list[Playing] = field(default_factory=list)

    @contextmanager
    def playing(self, *steps: Step, api: int = 7, env: Environment = NOTHING) -> Iterator[Playing]:
        changed = [new for one in steps_of(steps) for new in self.plant.tell(one)]
        env = {**env, **self.plant.environment}
        with super().playing(*changed, api=api, env=env) as one:
            one.observe = self.plant.observe
            self.started.append(one)
            if self.plant.killed_by:
                one.process.send_signal(self.plant.killed_by)
            yield one

    def proms(self) -> Texts:
        texts = super().proms()
        found = self.plant.read(self, texts)
        self.earlier.append(texts)
        self.plant.touch(self.out)
        return found

    def lines(self) -> list[Facts]:
        return [line for line in map(self.plant.read_line, super().lines()) if line]

    def boxes(self) -> list[Process]:
        return super().boxes() if self.plant.boxes else []


def defect(number: str, words: str, plant: Plant) -> Callable[[Check], Any]:
    """Mark a check of the defect `number`; `words` must be in what is said where it is planted."""

    def decorate(check: Check) -> Any:
        @pytest.mark.parametrize(
            "plant",
            [pytest.param(None, id=number), pytest.param(plant, id=f"{number}-planted")],
        )
        def test(plant: Plant | None) -> None:
            with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
                out = Path(name)
                if not plant:
                    check(Stage(OURS, out, limit_s=LIMIT_S))
                    return
                with pytest.raises(AssertionError, match=re.escape(words)):
                    check(PlantedStage(plant.profiler, out, in_vain=words, plant=plant))

        test.__name__ = check.__name__
        test.__module__ = check.__module__
        test.__doc__ = check.__doc__
        return test

    return decorate
