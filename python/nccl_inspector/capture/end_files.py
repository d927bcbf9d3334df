# SPDX-License-Identifier: Apache-2.0
"""The file that a process leaves next to its lines if it ends in order (plugin/json/writer.c)."""

import json
from dataclasses import dataclass

END_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class End:
    """What a process told when it ended."""

    end_us: int  # Unix time
    unfinished: int  # operations that were called but not finished


def parse_end(data: bytes) -> End | None:
    """Return the contents of such a file; None: it is not valid."""
    try:
        said = json.loads(data)
        end_us, unfinished = said["end_us"], said["operations_unfinished"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(end_us) is not int or type(unfinished) is not int or min(end_us, unfinished) < 0:
        return None
    return End(end_us, unfinished)
