/* SPDX-License-Identifier: Apache-2.0 */
/* task_end.h - keep how a task ended, where only root can write.
 *
 * A process that is killed while all ranks are in the same operation looks, in the boxes, like all
 * the others. slurmstepd saw it end, with its wait status, before srun had the others killed.
 */
#ifndef NCCL_INSPECTOR_TASK_END_H
#define NCCL_INSPECTOR_TASK_END_H

#include <stdint.h>
#include <sys/types.h>

/* The first ends are the ones that matter; a job may have a million steps that fail. */
#define TASK_ENDS_BYTES_MAX 4096
#define TASK_ENDS_FILE "task_ends"
#define TASK_END_STEP_MAX                                                                          \
	0xffffff00u /* above it Slurm numbers steps that run no tasks of a job's */

struct task_end {
	uint32_t job;
	uint32_t step; /* TASKENV_BATCH_STEP for the batch script */
	uint32_t task; /* its number in the step */
	pid_t pid;
	int status; /* as of wait(2) */
};

/* Appends a line `STEP TASK PID STATUS NANOSECONDS` to RUN_DIR/jobs/ID/task_ends, with the
 * Unix time of this call; the step is a number or `batch`. The directory is the prolog's: without
 * it, or after the epilog, nothing is written. What cannot be written is left out: no call waits
 * for anything but the tmpfs, and none fails. */
void task_end_keep(const char *run_dir, const struct task_end *end);

#endif
