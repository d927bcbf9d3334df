/* SPDX-License-Identifier: Apache-2.0 */
/* taskenv.h - which variables a step's tasks get, lose and keep.
 *
 * The user's own variables win. What we set is written down in a marker variable
 * (internals/hooks.md), because a step inherits what its batch step got from us: without
 * it our own value would look like the user's, and `srun --nccl-inspector=off`
 * could not take it away.
 */
#ifndef NCCL_INSPECTOR_TASKENV_H
#define NCCL_INSPECTOR_TASKENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "settings.h"

#define TASKENV_MARKER "NCCL_INSPECTOR_SET_BY_SLURM"
#define TASKENV_VARIABLES 20u     /* without the marker */
#define TASKENV_VALUE_BYTES 1280u /* of each that we set, with its NUL */
#define TASKENV_PATH_BYTES (SETTINGS_TEXT_BYTES + 32u)

#define TASKENV_NO_ARRAY UINT32_MAX

/* Which job a step belongs to. Only in the batch step does Slurm know the array; in others it
 * believes SLURM_ARRAY_*, which may be those of another job that submitted this one. */
struct taskenv_job {
	uint32_t id;
	bool first_node;
	bool batch_step;
	uint32_t array_id;   /* the array's job id, as in 810_3 */
	uint32_t array_task; /* TASKENV_NO_ARRAY: not a task of an array */
};

/* Looks a variable up in the tasks' environment; NULL when it is not there. The string is used up
 * before the next call. */
typedef const char *taskenv_get(void *arg, const char *name);

enum taskenv_action {
	TASKENV_SET,
	TASKENV_UNSET,
	TASKENV_OWN, /* the user set it himself: it stays */
};

struct taskenv_change {
	enum taskenv_action action;
	const char *name;
	char value[TASKENV_VALUE_BYTES]; /* of TASKENV_SET */
};

struct taskenv {
	struct taskenv_change change[TASKENV_VARIABLES + 1];
	size_t changes;
	bool own_profiler; /* the user chose a profiler plugin: nothing of ours is set */
};

#define TASKENV_RAW "raw"

/* A path in a job's directory; `name` is TASKENV_RAW, where its tasks write, or a file's. */
void taskenv_job_path(char out[TASKENV_PATH_BYTES], const struct settings *settings,
                      uint32_t job_id, const char *name);

/* Says what to do for a step of this job. With mode off, and when the user has a profiler plugin
 * of his own, whatever is ours goes. TASKENV_OWN entries are reported only where one of ours would
 * have gone there. */
void taskenv_plan(struct taskenv *plan, const struct settings *settings,
                  const struct taskenv_job *job, taskenv_get *get, void *arg);

#endif
