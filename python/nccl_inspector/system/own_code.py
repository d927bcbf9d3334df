# SPDX-License-Identifier: Apache-2.0
"""How another Python runs our code from where it lies, on any node that sees it."""

from collections.abc import Sequence
from pathlib import Path

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
# It imports nothing from the current directory, which may be somebody else's. Modules beside our
# package must not shadow those of that Python, nor another release of ours be taken for this one.
_PROGRAM = (
    "import sys\n"
    "sys.path[:] = sys.argv[3].split(':') if sys.argv[3] else [one for one in sys.path if one]\n"
    "if sys.version_info < (3, 11):\n"
    "    sys.exit('nccl-inspector: %s is Python %d.%d, and 3.11 is needed'\n"
    "             % ((sys.executable,) + sys.version_info[:2]))\n"
    "import importlib.util\n"
    "place = sys.argv[1] + '/nccl_inspector'\n"
    "spec = importlib.util.spec_from_file_location('nccl_inspector', place + '/__init__.py',\n"
    "                                              submodule_search_locations=[place])\n"
    "module = sys.modules['nccl_inspector'] = importlib.util.module_from_spec(spec)\n"
    "spec.loader.exec_module(module)\n"
    "main = importlib.import_module(sys.argv[2]).main\n"
    "sys.exit(main(sys.argv[4:]))\n"
)


def words_to_run(
    python: str, module: str, words: Sequence[str], path: Sequence[str] = ()
) -> list[str]:
    """Return the command with which that Python calls the function `main` of one of our modules.

    `path`: where it finds modules, instead of its own places; only absolute ones are used. That
    Python is isolated then, as the command itself is: PYTHONPATH=$PYTHONPATH:x means the current
    directory, too, if it was not set before.
    """
    places = ":".join(one for one in path if Path(one).is_absolute())
    options = ["-I"] if places else []
    return [python, *options, "-c", _PROGRAM, str(_PACKAGE_ROOT), module, places, *words]
