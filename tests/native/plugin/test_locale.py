"""An application whose locale writes 1,5: the profiler's numbers still have a point."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import exposition
from tests.support.plugin_runs import environment
from tests.support.standin import started, until

# What many applications do first. It ends the process where the locale is not as wanted.
SET_LOCALE = r"""
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void set_locale(void)
{
	char half[8];

	if (!setlocale(LC_NUMERIC, ""))
		_exit(70);
	snprintf(half, sizeof(half), "%.1f", 0.5);
	if (strcmp(half, "0,5") != 0)
		_exit(71);
}
"""


@pytest.fixture(scope="module")
def comma(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process that works in a German locale made for this test."""
    folder = tmp_path_factory.mktemp("locale")
    name, library = str(folder / "de_DE.UTF-8"), str(folder / "locale.so")
    subprocess.run(["localedef", "--no-archive", "-i", "de_DE", "-f", "UTF-8", name], check=True)
    compiler = ["gcc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"]
    subprocess.run(compiler, input=SET_LOCALE, text=True, check=True)
    return {"LOCPATH": str(folder), "LC_ALL": "de_DE.UTF-8", "LD_PRELOAD": library}


def test_metrics_have_points_in_an_application_with_commas(
    raw: Path, tmp_path: Path, comma: dict[str, str]
) -> None:
    env = environment(raw, NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS="200000", **comma)
    with started(tmp_path, ["--seconds", "30"], ranks=2, env=env) as run:
        text = ""

        def measured() -> bool:
            nonlocal text
            assert [process.poll() for process in run.processes] == [None] * 2
            for path in raw.glob(f"*_0_{run.processes[0].pid}.prom"):
                text = path.read_text()
            return "nccl_bus_bandwidth_gbs{" in text

        until(measured, "metrics")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    values = [line.rsplit(" ", 1)[1] for line in lines]
    assert [value for value in values if not re.fullmatch(r"[0-9.e+-]+", value)] == []
    assert any("." in value for value in values)
    assert len(exposition.read_prom(text)) == len(values)
