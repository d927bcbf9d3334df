# SPDX-License-Identifier: Apache-2.0
"""What a hostile job runs on a node of the sandbox cluster: a program of its own, for any python3.

It has a box whose lock it holds, 255 hard links to it, and rewrites files of 300 series each second
under new names. Arguments: its raw directory, a box, a page with @@@ in it, how many files.
"""

import fcntl
import os
import sys
import time
from pathlib import Path

STEM = "0_77"
LINKS = 255
PERIOD_S = 1.0


def main(raw: Path, box: bytes, page: bytes, files: int) -> None:
    """Go on until the job ends."""
    path = raw / f"nccl_inspector_{STEM}.box"
    path.write_bytes(box)
    fd = os.open(path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    for number in range(LINKS):
        os.link(path, raw / f"nccl_inspector_{number}_1.box")
    print("at work", flush=True)
    turn = 0
    while True:
        turn += 1
        for number in range(files):
            word = f"{turn:06x}{number:02x}".encode()
            beside = raw / ".beside"
            beside.write_bytes(page.replace(b"@@@", word))
            uuid = f"GPU-{number:08x}-0000-1111-2222-333344445555"
            beside.rename(raw / f"nccl_inspector_metrics_{uuid}_{STEM}.prom")
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]).read_bytes(),
        Path(sys.argv[3]).read_bytes(),
        int(sys.argv[4]),
    )
