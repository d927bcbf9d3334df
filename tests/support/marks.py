# SPDX-License-Identifier: Apache-2.0
"""Marks of tests that not every machine can run, or that not each run has time for."""

import os
from collections.abc import Collection, Iterable

import pytest

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def long_but(short: Collection[object], every: Iterable[object]) -> list[object]:
    """Return the values of a parameter; of those that are not short, the test is a long one."""
    return [pytest.param(one, marks=[] if one in short else [pytest.mark.long]) for one in every]
