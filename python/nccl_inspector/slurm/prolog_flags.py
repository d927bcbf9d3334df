# SPDX-License-Identifier: Apache-2.0
"""PrologFlags of slurm.conf."""

# Each of them implies Alloc.
_WITH_ALLOC = {"alloc", "contain", "runinjob", "nohold", "x11"}


def flags_of(text: str) -> set[str]:
    """Return the flags in a value of PrologFlags, in small letters."""
    return {word.strip().lower() for word in text.split(",") if word.strip()}


def has_alloc(flags: set[str]) -> bool:
    """Tell whether the prolog runs when a job gets its nodes."""
    return bool(flags & _WITH_ALLOC)
