# SPDX-License-Identifier: Apache-2.0
"""Start the installed command: `python -I LIBDIR/python`, which bin/nccl-inspector runs.

The modules that the package brings come before those of the system, and after our own.
"""

import sys

LIBDIR = "/usr/lib/nccl-inspector"

sys.path[1:1] = [
    f"{LIBDIR}/vendor",
    f"{LIBDIR}/report/python{sys.version_info[0]}.{sys.version_info[1]}",
]
sys.argv[0] = "nccl-inspector"

from nccl_inspector.cli import main  # noqa: E402 - found only now

main()
