# SPDX-License-Identifier: Apache-2.0
"""A C program of a test's own on the plugin's headers."""

import subprocess
from pathlib import Path

from tests.support.repository import PLUGIN_DIR


def run_c(folder: Path, body: str) -> list[str]:
    """Compile and run a program against the plugin's headers; return the words that it prints."""
    source = folder / "program.c"
    headers = ('"box/box.h"', '"box/bandwidth.h"', "<stddef.h>", "<stdio.h>")
    includes = "".join(f"#include {one}\n" for one in headers)
    source.write_text(includes + "int main(void)\n{\n" + body + "\treturn 0;\n}\n")
    program, bandwidth = folder / "program", PLUGIN_DIR / "box" / "bandwidth.c"
    command: list[str | Path] = [
        "gcc",
        "-std=gnu11",
        f"-I{PLUGIN_DIR}",
        "-o",
        program,
        source,
        bandwidth,
        "-lm",
    ]
    subprocess.run(command, check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    return done.stdout.split()
