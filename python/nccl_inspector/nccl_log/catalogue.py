# SPDX-License-Identifier: Apache-2.0
"""The catalogue of what NCCL's log can say: catalogue.tsv, and which rule fits a message."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import Final

from nccl_inspector.model.card import Severity
from nccl_inspector.nccl_log.record import Level
from nccl_inspector.system.tsv import read_tsv

# (2, 30, 7); a version without a patch has two numbers.
Version = tuple[int, ...]

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")
_NONE = "-"
JOB: Final = "job"  # the origin of a line that is neither NCCL's nor PyTorch's
_WARN = "warn"
# How a rule is known whose text is not looked for.
_WITHOUT_FORM = frozenset({"compared", "level", "launcher", "python"})
_DIGITS = b"0123456789"
_HIP, _CUDA = b"HIP failure", b"Cuda failure"  # as RCCL writes it, and NCCL
_SHAPES_MAX = 4096
_VERSIONS_MAX = 64
_SHAPED_BYTES = 400
_BY_LEVEL: Final = {Level.ERROR: "warning", Level.WARN: "warning", Level.ATTN: "attention"}


class Role(StrEnum):
    """What a rule's text is in a job that went wrong."""

    ERROR = "error"
    SYMPTOM = "symptom"
    CONSEQUENCE = "consequence"
    SETTING = "setting"


class Scope(StrEnum):
    """What a rule is about."""

    PROCESS = "process"
    NODE = "node"
    PAIR = "pair"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class LogRule:
    """A rule of the catalogue; `known` says how its text is known."""

    id: str  # does not change between releases
    role: Role
    severity: Severity
    scope: Scope
    known: str
    title: str
    meaning: str
    action: str


@dataclass(frozen=True, slots=True)
class _Form:
    """One form of a rule's text."""

    rule: LogRule
    since: Version
    until: Version
    origin: str  # JOB, _WARN, or a part of the path of the source; empty: NCCL or PyTorch
    contains: bytes
    shape: bytes  # `contains` without digits
    pattern: re.Pattern[bytes] | None

    def is_of(self, version: Version) -> bool:
        """Tell whether this NCCL writes it; an unknown version (empty) may write anything."""
        if not version:
            return True
        return self.since <= version and (not self.until or version <= self.until)

    def is_from(self, level: Level, site: str) -> bool:
        """Tell whether it is written where a line comes from."""
        if self.origin == JOB or level is Level.JOB:
            return self.origin == JOB and level is Level.JOB
        if self.origin == _WARN:
            return level is not Level.INFO
        return self.origin in site

    def fits(self, message: bytes) -> bool:
        """Tell whether a message has this form."""
        if self.contains not in message:
            return False
        return self.pattern is None or self.pattern.search(message) is not None


@lru_cache(maxsize=_VERSIONS_MAX)
def parse_version(text: str) -> Version:
    """Return the numbers of a version such as 2.30.7, or () if the text is no version."""
    match = _VERSION.match(text)
    return tuple(int(part) for part in match.groups() if part) if match else ()


def shape_of(message: bytes) -> bytes:
    """Return a message without its digits: lines that come very often differ in little else."""
    return message.translate(None, _DIGITS)


def words_shape(message: bytes) -> bytes:
    """Return a message with # for each word that has a digit: a number, an address, a name."""
    words = message[:_SHAPED_BYTES].split()
    return b" ".join(word if word.translate(None, _DIGITS) == word else b"#" for word in words)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All rules by id, and their forms in the order of the table."""

    rules: dict[str, LogRule]
    forms: tuple[_Form, ...]


def _read() -> Iterator[tuple[LogRule, list[str]]]:
    """Yield the rule of each row, and the row."""
    rule: LogRule | None = None
    for row in read_tsv("nccl_log/catalogue.tsv"):
        name, role, severity, scope, _, _, known, _, _, _, title, meaning, action = row
        if rule is None or name != rule.id:
            rule = LogRule(
                name, Role(role), Severity(severity), Scope(scope), known, title, meaning, action
            )
        yield rule, row


@cache
def load_catalogue() -> Catalogue:
    """Return the catalogue."""
    rules: dict[str, LogRule] = {}
    forms = []
    for rule, row in _read():
        rules[rule.id] = rule
        since, until, known, origin, contains, pattern = row[4:10]
        if known in _WITHOUT_FORM:
            continue
        form = _Form(
            rule,
            parse_version(since),
            parse_version(until),
            "" if origin == _NONE else origin,
            contains.encode(),
            shape_of(contains.encode()),
            None if pattern == _NONE else re.compile(pattern.encode()),
        )
        forms.append(form)
    return Catalogue(rules, tuple(forms))


class Matcher:
    """Finds the rule that fits a message.

    It remembers which forms a message may have, by its shape and where it comes from.
    """

    def __init__(self) -> None:
        self._catalogue = load_catalogue()
        self._near: dict[tuple[bytes, Level, Version, str], tuple[bool, list[_Form]]] = {}

    def rule(self, name: str) -> LogRule:
        """Return the rule of this id."""
        return self._catalogue.rules[name]

    def find(
        self, level: Level, message: bytes, version: Version, site: str = ""
    ) -> LogRule | None:
        """Return the first rule that fits; `version` is empty if it is not known, or not NCCL's.

        `site`: file:line of NCCL's source that the line came from.
        """
        text = b"DIAG " + message if level is Level.DIAG else message
        key = text.translate(None, _DIGITS), level, version, site
        known = self._near.get(key)
        if known is None:
            if len(self._near) >= _SHAPES_MAX:
                self._near.clear()
            is_hip = level is Level.WARN and _HIP in text
            shape = key[0].replace(_HIP, _CUDA) if is_hip else key[0]
            near = [
                form
                for form in self._catalogue.forms
                if form.shape in shape and form.is_from(level, site) and form.is_of(version)
            ]
            known = self._near[key] = (is_hip, near)
        if known[0]:
            text = text.replace(_HIP, _CUDA)
        for form in known[1]:
            if form.fits(text):
                return form.rule
        fallback = _BY_LEVEL.get(level)
        return self._catalogue.rules[fallback] if fallback else None
