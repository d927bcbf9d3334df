"""The profiler plugin under libFuzzer, briefly and always the same; `make fuzz` takes its time."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import BUILD

pytestmark = pytest.mark.long  # a second compiler

FUZZERS = BUILD / "fuzz"
SEED = 4


@pytest.mark.parametrize(
    ("target", "inputs", "length", "runs"), [("events", 50, 400, 150), ("config", 200, 100, 2000)]
)
def test_no_input_breaks_the_plugin(
    tmp_path: Path, target: str, inputs: int, length: int, runs: int
) -> None:
    """Any bytes are an input, so random ones reach as far as a corpus would."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    source = random.Random(SEED)  # noqa: S311
    for number in range(inputs):
        (corpus / str(number)).write_bytes(source.randbytes(source.randrange(length)))
    program = FUZZERS / f"fuzz_{target}"
    assert program.exists(), f"{program} is not built: run `make build san`"
    done = subprocess.run(
        [program, f"-runs={runs}", f"-seed={SEED}", f"-max_len={length}", "-len_control=0",
         f"-artifact_prefix={tmp_path}/", corpus],
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {runs} runs" in done.stderr or f"#{runs}\tDONE" in done.stderr
