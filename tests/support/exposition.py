# SPDX-License-Identifier: Apache-2.0
"""Reads expositions of Prometheus without the product: a mistake of its must not be made twice."""

import re
from dataclasses import dataclass

_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Series:
    """One line of an exposition."""

    name: str
    labels: dict[str, str]
    value: float


def read_prom(text: str) -> list[Series]:
    """The series of an exposition; comments are passed over."""
    return [
        Series(found[1], dict(_LABEL.findall(found[2] or "")), float(found[3]))
        for found in map(_LINE.fullmatch, text.splitlines())
        if found
    ]
