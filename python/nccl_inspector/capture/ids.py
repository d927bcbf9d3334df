# SPDX-License-Identifier: Apache-2.0
"""Convert texts in a line to the numbers that a box has instead."""

import hashlib

_WORD_MASK = (1 << 64) - 1


def comm_id(text: str) -> int:
    """Return the number of a communicator; if the text is not hexadecimal, a hash of it."""
    try:
        return int(text, 16) & _WORD_MASK
    except ValueError:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def index_of(words: tuple[str, ...], word: str) -> int:
    """Return the index of a word in a table of words; if it is not there, 0, which is Unknown."""
    return words.index(word) if word in words else 0
