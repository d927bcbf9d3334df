/* SPDX-License-Identifier: Apache-2.0 */
/* settings.c - the environment. */
#include <stdio.h>
#include <stdlib.h>

#include "inspector.h"

#define PROM_FLOOR_US 30000000

struct nvidia_settings nvidia_settings;

static int64_t number(const char *name, int64_t fallback)
{
	const char *text = getenv(name);

	return text && *text ? strtoll(text, NULL, 10) : fallback;
}

static size_t at_least(size_t least, int64_t value)
{
	return value > (int64_t)least ? (size_t)value : least;
}

void nvidia_settings_load(void)
{
	struct nvidia_settings *s = &nvidia_settings;
	const char *dir = getenv("NCCL_INSPECTOR_DUMP_DIR");
	const char *job = getenv("SLURM_JOBID");
	int64_t floor_us = number("NVIDIA_STANDIN_PROM_FLOOR_MICROSECONDS", PROM_FLOOR_US);

	s->enable = number("NCCL_INSPECTOR_ENABLE", 0) != 0;
	s->thread = number("NCCL_INSPECTOR_DUMP_THREAD_ENABLE", 1) != 0;
	s->interval_us = number("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", -1);
	s->prom = number("NCCL_INSPECTOR_PROM_DUMP", 0) != 0;
	s->p2p = number("NCCL_INSPECTOR_ENABLE_P2P", 1) != 0;
	s->min_bytes = (size_t)number("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", 8192);
	s->coll_ring = at_least(1, number("NCCL_INSPECTOR_DUMP_COLL_RING_SIZE", 1024));
	s->p2p_ring = at_least(1, number("NCCL_INSPECTOR_DUMP_P2P_RING_SIZE", 1024));
	s->coll_pool = at_least(10, number("NCCL_INSPECTOR_COLL_POOL_SIZE", 256));
	s->p2p_pool = at_least(10, number("NCCL_INSPECTOR_P2P_POOL_SIZE", 256));
	s->grow = number("NCCL_INSPECTOR_POOL_GROW", 1) != 0;
	s->kernel_timing = number("NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", 1) != 0;
	if (s->prom && s->interval_us >= 0 && s->interval_us < floor_us)
		s->interval_us = floor_us;
	if (dir && *dir)
		snprintf(s->dir, sizeof(s->dir), "%s", dir);
	else
		snprintf(s->dir, sizeof(s->dir), "nccl-inspector-%s",
		         job && *job ? job : "unknown-jobid");
}
