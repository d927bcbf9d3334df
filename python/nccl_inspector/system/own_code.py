# SPDX-License-Identifier: Apache-2.0
"""How another Python runs our code from where it lies, on any node that sees it.

Only our own package is taken from there: what is beside it must hide nothing of the Python that
runs it, and another release that this Python has must not be taken for ours.
"""

from collections.abc import Sequence
from pathlib import Path

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import importlib.util, sys\n"
    "if sys.version_info < (3, 11):\n"
    "    sys.exit('nccl-inspector: %s is Python %d.%d, and 3.11 is needed'\n"
    "             % ((sys.executable,) + sys.version_info[:2]))\n"
    "place = sys.argv[1] + '/nccl_inspector'\n"
    "spec = importlib.util.spec_from_file_location('nccl_inspector', place + '/__init__.py',\n"
    "                                              submodule_search_locations=[place])\n"
    "module = sys.modules['nccl_inspector'] = importlib.util.module_from_spec(spec)\n"
    "spec.loader.exec_module(module)\n"
    "main = importlib.import_module(sys.argv[2]).main\n"
    "sys.exit(main(sys.argv[3:]))\n"
)


def words_to_run(python: str, module: str, words: Sequence[str]) -> list[str]:
    """Return the command with which that Python calls the function `main` of one of our modules."""
    return [python, "-c", _PROGRAM, str(_PACKAGE_ROOT), module, *words]
