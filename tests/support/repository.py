# SPDX-License-Identifier: Apache-2.0
"""Where things lie in the repository."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "build"
PACKAGING = REPO / "packaging"
DOC = PACKAGING / "doc"
PLUGIN_DIR = REPO / "plugin"
PYTHON_DIR = REPO / "python"
