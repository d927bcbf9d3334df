/* SPDX-License-Identifier: Apache-2.0 */
/* taskenv.h - decide which variables of a step's tasks to set, remove and keep.
 *
 * Variables that the user set are kept. A marker variable (internals/hooks.md) lists what we set.
 * It is needed because a step inherits the variables that we gave to its batch step. Without the
 * marker these would look like the user's, and `srun --nccl-inspector=off` could not remove them.
 */
#ifndef NCCL_INSPECTOR_TASKENV_H
#define NCCL_INSPECTOR_TASKENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "settings.h"

#define TASKENV_MARKER "NCCL_INSPECTOR_SET_BY_SLURM"
#define TASKENV_VARIABLES 34u     /* without the marker */
#define TASKENV_VALUE_BYTES 2048u /* of a value that we set, with its NUL */
#define TASKENV_PATH_BYTES (SETTINGS_TEXT_BYTES + 32u)

#define TASKENV_NO_ARRAY UINT32_MAX

#define TASKENV_BATCH_STEP 0xfffffffbu /* as Slurm numbers them */
#define TASKENV_INTERACTIVE_STEP 0xfffffffau

/* The job of a step, and a task of it. Slurm knows the array only in the batch step. In other steps
 * it takes it from SLURM_ARRAY_*, which may come from another job that submitted this one. */
struct taskenv_job {
	uint32_t id;
	bool first_node;
	bool batch_step;
	uint32_t array_id;   /* the job id of the array: 810 in 810_3 */
	uint32_t array_task; /* TASKENV_NO_ARRAY: the job is no task of an array */
	uint32_t step;
	uint32_t restart; /* how often the job was requeued */
	uint32_t task;    /* in the step; 0 as long as no task has begun */
};

/* Returns a variable of the tasks' environment; NULL if it is not set. The string is valid only
 * until the next call. */
typedef const char *taskenv_get(void *arg, const char *name);

enum taskenv_action {
	TASKENV_SET,
	TASKENV_UNSET,
	TASKENV_OWN, /* the user set it, so it stays */
};

struct taskenv_change {
	enum taskenv_action action;
	const char *name;
	char value[TASKENV_VALUE_BYTES]; /* for TASKENV_SET */
};

struct taskenv {
	struct taskenv_change change[TASKENV_VARIABLES + 1];
	size_t changes;
	bool own_profiler; /* the user chose another profiler plugin: we set nothing */
};

#define TASKENV_RAW "raw"

/* Writes a path in a job's directory; `name` is a file, or TASKENV_RAW, where its tasks write. */
void taskenv_job_path(char out[TASKENV_PATH_BYTES], const struct settings *settings,
                      uint32_t job_id, const char *name);

/* Plans the changes for a step of this job. If the mode is off, or the user has another profiler
 * plugin, all variables that we set are removed. A variable of the user is reported (TASKENV_OWN)
 * only if we would have set it. */
void taskenv_plan(struct taskenv *plan, const struct settings *settings,
                  const struct taskenv_job *job, taskenv_get *get, void *arg);

#endif
