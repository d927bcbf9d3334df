# SPDX-License-Identifier: Apache-2.0
"""Marks of tests that not every machine can run."""

import os

import pytest

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
