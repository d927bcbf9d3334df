// SPDX-License-Identifier: Apache-2.0
#include "taskenv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HASH_DIGITS 16u

#define ARRAY_TASK 7u /* its place in `names` */

/* The profiler comes first: whether it is the user's decides about all others. */
static const char *const names[TASKENV_VARIABLES] = {
	"NCCL_PROFILER_PLUGIN",
	"NCCL_INSPECTOR_ENABLE",
	"NCCL_INSPECTOR_RUN_DIR",
	"NCCL_INSPECTOR_PROM_DUMP",
	"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS",
	"NCCL_INSPECTOR_ENABLE_P2P",
	"NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES",
	"NCCL_INSPECTOR_ARRAY_TASK",
};

enum owner {
	OWNER_NOBODY, /* not set */
	OWNER_US,
	OWNER_USER,
};

/* FNV-1a, 64 bits: enough to tell an untouched value from a changed one. It keeps no secret. */
static void hash_value(char out[HASH_DIGITS + 1], const char *value)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (; *value; value++)
		hash = (hash ^ (unsigned char)*value) * 0x100000001b3u;
	snprintf(out, HASH_DIGITS + 1, "%016" PRIx64, hash);
}

/* Whether the marker says that we gave this variable this value. A marker that somebody has
 * scribbled on only makes our values look like the user's. */
static bool marker_has(const char *marker, const char *name, const char *value)
{
	char hash[HASH_DIGITS + 1];
	size_t name_len = strlen(name);

	hash_value(hash, value);
	while ((marker = strchr(marker, ' '))) {
		marker++;
		if (!strncmp(marker, name, name_len) && marker[name_len] == ':' &&
		    !strncmp(marker + name_len + 1, hash, HASH_DIGITS) &&
		    strchr(" ", marker[name_len + 1 + HASH_DIGITS]))
			return true;
	}
	return false;
}

/* Whose step set what the marker has; 0: nobody's. */
static uint32_t marker_job(const char *marker)
{
	uint32_t job_id = 0;

	for (; *marker >= '0' && *marker <= '9'; marker++)
		job_id = job_id * 10 + (uint32_t)(*marker - '0');
	return *marker == ' ' ? job_id : 0;
}

static enum owner find_owner(const char *marker, const char *name, taskenv_get *get, void *arg)
{
	const char *value = get(arg, name);

	if (!value)
		return OWNER_NOBODY;
	return marker_has(marker, name, value) ? OWNER_US : OWNER_USER;
}

void taskenv_job_path(char out[TASKENV_PATH_BYTES], const struct settings *settings,
                      uint32_t job_id, const char *name)
{
	snprintf(out, TASKENV_PATH_BYTES, "%s/jobs/%" PRIu32 "/%s", settings->run_dir, job_id,
	         name);
}

/* The values, in the order of `names`; empty: this job has none. */
static void make_value(char out[TASKENV_VALUE_BYTES], size_t index, const struct settings *settings,
                       const struct taskenv_job *job)
{
	const uint64_t number[TASKENV_VARIABLES] = {
		[1] = 1,
		[3] = settings->mode == MODE_PROM,
		[4] = settings->interval_us,
		[5] = settings->p2p,
		[6] = settings->min_size_bytes,
	};

	if (index == 0)
		snprintf(out, TASKENV_VALUE_BYTES, "%s", settings->profiler);
	else if (index == 2)
		taskenv_job_path(out, settings, job->id, TASKENV_RAW);
	else if (index == ARRAY_TASK && (!job->batch_step || job->array_task == TASKENV_NO_ARRAY))
		*out = '\0';
	else if (index == ARRAY_TASK)
		snprintf(out, TASKENV_VALUE_BYTES, "%" PRIu32 "_%" PRIu32, job->array_id,
		         job->array_task);
	else
		snprintf(out, TASKENV_VALUE_BYTES, "%" PRIu64, number[index]);
}

static struct taskenv_change *add(struct taskenv *plan, enum taskenv_action action,
                                  const char *name)
{
	struct taskenv_change *change = &plan->change[plan->changes++];

	change->action = action;
	change->name = name;
	change->value[0] = '\0';
	return change;
}

static void write_marker(struct taskenv *plan, uint32_t job_id)
{
	char text[TASKENV_VALUE_BYTES], hash[HASH_DIGITS + 1];
	int len = snprintf(text, sizeof(text), "%" PRIu32, job_id);

	for (size_t i = 0; i < plan->changes; i++) {
		if (plan->change[i].action != TASKENV_SET)
			continue;
		hash_value(hash, plan->change[i].value);
		len += snprintf(text + len, sizeof(text) - (size_t)len, " %s:%s",
		                plan->change[i].name, hash);
	}
	memcpy(add(plan, TASKENV_SET, TASKENV_MARKER)->value, text, sizeof(text));
}

/* Sets a variable, or takes it away when this job has no value for it: another job's may be there.
 */
static void replace(struct taskenv *plan, const char *name, const char *value, enum owner owner)
{
	if (*value)
		snprintf(add(plan, TASKENV_SET, name)->value, TASKENV_VALUE_BYTES, "%s", value);
	else if (owner == OWNER_US)
		add(plan, TASKENV_UNSET, name);
}

void taskenv_plan(struct taskenv *plan, const struct settings *settings,
                  const struct taskenv_job *job, taskenv_get *get, void *arg)
{
	char marker[2 * TASKENV_VALUE_BYTES] = "", value[TASKENV_VALUE_BYTES];
	const char *found = get(arg, TASKENV_MARKER);
	bool active = settings->mode != MODE_OFF;

	plan->changes = 0;
	plan->own_profiler = false;
	if (found)
		snprintf(marker, sizeof(marker), "%s", found);
	for (size_t i = 0; i < TASKENV_VARIABLES; i++) {
		enum owner owner = find_owner(marker, names[i], get, arg);

		if (i == 0 && active && owner == OWNER_USER) {
			plan->own_profiler = true;
			active = false;
			add(plan, TASKENV_OWN, names[i]);
		} else if (active && owner == OWNER_USER) {
			add(plan, TASKENV_OWN, names[i]);
		} else {
			*value = '\0';
			if (active && i == ARRAY_TASK && owner == OWNER_US && !job->batch_step &&
			    marker_job(marker) == job->id)
				snprintf(value, sizeof(value), "%s", get(arg, names[i]));
			else if (active)
				make_value(value, i, settings, job);
			replace(plan, names[i], value, owner);
		}
	}
	if (active)
		write_marker(plan, job->id);
	else if (found)
		add(plan, TASKENV_UNSET, TASKENV_MARKER);
}
