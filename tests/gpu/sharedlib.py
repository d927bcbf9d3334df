# SPDX-License-Identifier: Apache-2.0
"""Load a C library by its path and declare what is called of it."""

from collections.abc import Mapping, Sequence
from ctypes import CDLL, c_int
from typing import Any


class Library:
    """A C library whose functions return an int, 0 for success."""

    def __init__(self, path: str, prototypes: Mapping[str, Sequence[Any]]) -> None:
        """Load it; `prototypes`: the types of each function's arguments.

        Raises:
            OSError: it cannot be loaded, or lacks one of the functions.
        """
        self.c = CDLL(path)
        self.path = path
        for name, arguments in prototypes.items():
            try:
                function = self.c[name]
            except AttributeError as err:
                raise OSError(f"{path} has no {name}") from err
            function.argtypes = list(arguments)
            function.restype = c_int
            setattr(self.c, name, function)

    def reason(self, code: int) -> str:
        """Return what the library calls an error."""
        return f"error {code}"

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            RuntimeError: it did not return 0.
        """
        code = getattr(self.c, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {self.reason(code)}")
