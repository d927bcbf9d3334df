# SPDX-License-Identifier: Apache-2.0
"""What a process leaves beside its lines when it ends in order: plugin/json/writer.c."""

import json
from dataclasses import dataclass

END_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class End:
    """What a process said at its end."""

    end_us: int  # Unix time
    unfinished: int  # operations that had been called and not come to an end


def parse_end(data: bytes) -> End | None:
    """Return what a file says of a process's end, None where it is none of ours."""
    try:
        said = json.loads(data)
        end_us, unfinished = said["end_us"], said["operations_unfinished"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(end_us) is not int or type(unfinished) is not int or min(end_us, unfinished) < 0:
        return None
    return End(end_us, unfinished)
