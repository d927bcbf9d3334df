# SPDX-License-Identifier: Apache-2.0
"""Our own libraries, as the doctor reads them without loading them."""

from pathlib import Path

from nccl_inspector.doctor.elf import parse_elf
from nccl_inspector.doctor.files import read_library
from nccl_inspector.doctor.read_image import NEEDS_GLIBC
from tests.support.repository import BUILD

SPANK = BUILD / "spank_nccl_inspector.so"
PROFILER = BUILD / "libnccl-profiler-inspector.so"


def slurm_number() -> int:
    """The number of the Slurm whose headers the plugin was built with."""
    text = Path("/usr/include/slurm/slurm_version.h").read_text()
    return int(text.split("SLURM_VERSION_NUMBER")[1].split()[0], 16)


def test_the_spank_plugin_says_for_which_slurm_it_was_built() -> None:
    elf = parse_elf(SPANK.read_bytes())
    assert elf.numbers["plugin_version"] == slurm_number()
    assert {"slurm_spank_init", "slurm_spank_job_prolog"} <= elf.exports
    assert not elf.cut


def test_the_profiler_needs_no_newer_glibc_than_the_docs_say() -> None:
    elf = parse_elf(PROFILER.read_bytes())
    assert elf.glibc is not None
    assert elf.glibc <= NEEDS_GLIBC
    assert "ncclProfiler_v4" in elf.exports


def test_a_library_that_was_cut_short_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "cut.so"
    path.write_bytes(SPANK.read_bytes()[:20_000])
    found = read_library(path).elf
    assert found is not None
    assert found.cut


def test_every_length_is_read_without_an_error_but_a_refusal() -> None:
    data = SPANK.read_bytes()
    for length in [*range(200), *range(200, len(data), 997)]:
        try:
            parse_elf(data[:length])
        except ValueError:
            assert length < 64


def test_each_byte_of_the_head_may_be_wrong() -> None:
    data = bytearray(SPANK.read_bytes())
    for at in range(6, 0x400):
        broken = bytearray(data)
        broken[at] ^= 0xFF
        parse_elf(bytes(broken))


def test_another_file_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_text("#!/bin/sh\n")
    assert read_library(path).problem == "not a 64-bit shared library"
    assert read_library(tmp_path / "none.so").problem == "No such file or directory"
    assert read_library(tmp_path).problem == "not a regular file"
