/* SPDX-License-Identifier: Apache-2.0 */
/* beat/quiet.h - how much a process reads and writes while it calls nothing of NCCL.
 *
 * The others wait for such a process. Whether it saves a checkpoint or hangs is in no counter of
 * operations, but a checkpoint is bytes: Linux counts what a process reads and writes by system
 * calls, of files on any file system. It counts no pages of mmap() and nothing that is sent to a
 * socket by send().
 */
#ifndef NCCL_INSPECTOR_BEAT_QUIET_H
#define NCCL_INSPECTOR_BEAT_QUIET_H

#include "box/box.h"

#define QUIET_NONE (-1.0)

struct quiet {
	uint64_t called;          /* operations by the last look */
	uint64_t since_ns;        /* when that look first found them; 0: never looked */
	uint64_t bytes, bytes_ns; /* what was counted when; bytes_ns 0: not yet */
	double rate;              /* the latest; QUIET_NONE: there is none */
};

/* One look, about once a second; `now_ns`: CLOCK_MONOTONIC. By the beat. */
void quiet_round(struct quiet *quiet, const struct box *box, uint64_t now_ns);

/* Returns the bytes a second since the last call of this function that was 1 s before or more, or
 * since the process had been quiet for 10 s. QUIET_NONE: it has something in flight or has called
 * something meanwhile, or the kernel does not count. By the beat. */
double quiet_rate(struct quiet *quiet, const struct box *box, uint64_t now_ns);

#endif
