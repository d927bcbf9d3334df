# SPDX-License-Identifier: Apache-2.0
"""Print what of pyproject.toml's dependencies is locked: `vendor` or `report`."""

import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# All of `vendor` is plain Python, so nodes may carry NVML's bindings whether they have GPUs or not.
LISTS = {"vendor": PROJECT["dependencies"] + EXTRAS["gpu"], "report": EXTRAS["report"]}

print("\n".join(LISTS[sys.argv[1]]))
