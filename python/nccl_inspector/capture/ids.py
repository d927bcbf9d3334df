# SPDX-License-Identifier: Apache-2.0
"""The numbers that a box has where a line has text."""

import hashlib

_WORD_MASK = (1 << 64) - 1


def comm_id(text: str) -> int:
    """Return the number of a communicator; of a text that is none a number made of it."""
    try:
        return int(text, 16) & _WORD_MASK
    except ValueError:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def index_of(words: tuple[str, ...], word: str) -> int:
    """Return the place of a word in a table of words; 0, which is Unknown, if it is not in it."""
    return words.index(word) if word in words else 0
