# SPDX-License-Identifier: Apache-2.0
"""A million times through the plugin's buckets and the report's quantiles, against the exact."""

import subprocess
from pathlib import Path

import pytest

from nccl_inspector.analysis.histogram import bucket_of, lower_ns, quantile_ns
from nccl_inspector.model.bandwidth import bus_factor, size_class, size_label
from nccl_inspector.model.process import FUNCS, Histogram
from tests.support.boxes import fixed_chance
from tests.support.c_program import run_c
from tests.support.repository import PLUGIN_DIR

SHARES = (0.5, 0.95, 0.99)

# Draws as many times as there are, counts them as the plugin does, then sorts them.
PROGRAM = """
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "box/histogram.h"

#define SAMPLES 1000000

static uint64_t samples[SAMPLES];
static unsigned counts[HIST_BUCKETS];

static double uniform(void)
{
	return drand48();
}

static double bell(void)
{
	return sqrt(-2 * log(1 - uniform())) * cos(2 * M_PI * uniform());
}

static double draw(int shape)
{
	switch (shape) {
	case 0: /* each doubling alike, 1 us to 100 s */
		return 1e3 * pow(1e8, uniform());
	case 1: /* many alike, with a long tail */
		return 2e6 * exp(0.6 * bell());
	case 2: /* a jitter of a percent */
		return 7e7 * (1 + 0.01 * bell());
	default: /* two kinds under one key, a hundred times apart */
		return (uniform() < 0.7 ? 3e4 : 3e6) * (1 + 0.2 * uniform());
	}
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static const double shares[] = { SHARES };

	(void)argc;
	srand48(20261121);
	for (int i = 0; i < SAMPLES; i++) {
		samples[i] = (uint64_t)draw(atoi(argv[1]));
		counts[hist_bucket(samples[i])]++;
	}
	qsort(samples, SAMPLES, sizeof(*samples), by_size);
	for (size_t i = 0; i < sizeof(shares) / sizeof(*shares); i++)
		printf("%llu ", (unsigned long long)samples[(size_t)(shares[i] * SAMPLES)]);
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		printf("%u ", counts[i]);
	return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("histogram")
    (folder / "program.c").write_text(PROGRAM.replace("SHARES", ", ".join(map(str, SHARES))))
    built = folder / "program"
    flags = ["-O2", "-std=gnu11", "-I", str(PLUGIN_DIR), "-o", str(built)]
    subprocess.run(["gcc", *flags, str(folder / "program.c"), "-lm"], check=True)
    return built


@pytest.mark.parametrize("shape", range(4))
def test_quantiles_of_a_million_times_are_within_2_percent(program: Path, shape: int) -> None:
    done = subprocess.run([program, str(shape)], check=True, capture_output=True, text=True)
    numbers = [int(word) for word in done.stdout.split()]
    exact, counts = numbers[: len(SHARES)], numbers[len(SHARES) :]
    histogram = Histogram.of((bucket, count) for bucket, count in enumerate(counts) if count)
    assert sum(counts) == 1_000_000
    for share, truth in zip(SHARES, exact, strict=True):
        assert quantile_ns(histogram, share) == pytest.approx(truth, rel=0.02)


def test_histogram_and_bandwidth_rules_are_the_plugins(tmp_path: Path) -> None:
    chance = fixed_chance(7)
    values = [
        0,
        1,
        1023,
        1024,
        1 << 37,
        (1 << 37) - 1,
        1 << 63,
        *(chance.randrange(1 << 38) for _ in range(200)),
    ]
    body, mine = "char label[32];\n", []
    for value in values:
        body += f'printf("%u %u ", hist_bucket({value}ull), bandwidth_size_class({value}ull));\n'
        mine += [str(bucket_of(value)), str(size_class(value))]
    for bucket in range(896):
        body += f'printf("%llu ", (unsigned long long)hist_lower_ns({bucket}));\n'
        mine.append(str(lower_ns(bucket)))
    for class_ in range(64):
        body += f'bandwidth_size_label({class_}, label, sizeof(label)); printf("%s ", label);\n'
        mine.append(size_label(class_))
    for func, name in enumerate(FUNCS):
        for nranks in (0, 1, 2, 7, 64):
            body += f'printf("%.9f ", bandwidth_bus_factor({func}, {nranks}));\n'
            mine.append(f"{bus_factor(name, nranks):.9f}")
    assert run_c(tmp_path, body) == mine
