/* SPDX-License-Identifier: Apache-2.0 */
/* Any value of any variable: what comes out is within its bounds, and the same each time.
 *
 * Input: a number of a variable and its value, ended by 0, and so on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "config.h"
#include "ask/deny.h"

#define MOST_VALUES 64u
#define LONG_BYTES 20000u

static const char *const names[] = {
	"NCCL_INSPECTOR_ENABLE",
	"NCCL_INSPECTOR_PROM_DUMP",
	"NCCL_INSPECTOR_ENABLE_P2P",
	"NCCL_INSPECTOR_PHASES",
	"NCCL_INSPECTOR_NET",
	"NCCL_INSPECTOR_RUN_DIR",
	"NCCL_INSPECTOR_DUMP_DIR",
	"NCCL_INSPECTOR_CONTROL_DIR",
	"NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES",
	"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS",
	"NCCL_INSPECTOR_DUMP_THREAD_ENABLE",
	"NCCL_INSPECTOR_JSON",
	"NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES",
	"NCCL_INSPECTOR_JSON_GZIP",
	"NCCL_INSPECTOR_JSON_MAX_BYTES",
	"NCCL_INSPECTOR_JSON_FILES",
	"NCCL_INSPECTOR_DUMP_VERBOSE",
	"NCCL_INSPECTOR_DENY_NCCL",
	"NCCL_INSPECTOR_BUDGET_PERCENT",
	"NCCL_INSPECTOR_ARRAY_TASK",
	"SLURM_JOB_ID",
	"SLURM_JOBID",
	"SLURM_STEP_ID",
	"SLURM_PROCID",
	"SLURM_LOCALID",
	"SLURMD_NODENAME",
	"SLURM_CLUSTER_NAME",
	"SLURM_JOB_NODELIST",
	"NCCL_INSPECTOR_HOST_TIME",
};
#define NAMES (sizeof(names) / sizeof(*names))

static const char *values[NAMES];

static void want(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

/* A variable that is asked for and not in the list would never be tried. */
static const char *fake_getenv(const char *name)
{
	for (size_t i = 0; i < NAMES; i++)
		if (!strcmp(names[i], name))
			return values[i];
	want(false, name);
	return NULL;
}

static bool ends(const char *text, size_t room)
{
	return memchr(text, '\0', room) != NULL;
}

static bool is_printable(const char *text, size_t room)
{
	if (!ends(text, room))
		return false;
	for (; *text; text++)
		if (*text < 0x20 || *text > 0x7e)
			return false;
	return true;
}

static bool is_interval(int64_t us)
{
	return us == 0 || (us >= 100000 && us <= 3600000000ll);
}

static void check_texts(const struct config *config)
{
	want(is_printable(config->node, sizeof(config->node)) &&
	         is_printable(config->cluster, sizeof(config->cluster)) &&
	         is_printable(config->nodelist, sizeof(config->nodelist)) &&
	         is_printable(config->refused, sizeof(config->refused)) &&
	         is_printable(config->job, sizeof(config->job)) &&
	         is_printable(config->step, sizeof(config->step)),
	     "a text for labels and names is not printable");
	want(ends(config->dir, sizeof(config->dir)) &&
	         ends(config->json_dir, sizeof(config->json_dir)) &&
	         ends(config->control_dir, sizeof(config->control_dir)) &&
	         ends(config->deny_nccl, sizeof(config->deny_nccl)),
	     "a text has no end");
	want(!strchr(config->job, '/') && !strchr(config->step, '/'), "a number is a path");
	want(*config->dir && *config->json_dir, "a directory without a name");
}

static void check_numbers(const struct config *config)
{
	want(is_interval(config->interval_us) && is_interval(config->json_interval_us),
	     "an interval");
	want(!config->interval_us == !config->json_interval_us, "one interval without the other");
	want(config->json_files >= 1 && config->json_files <= 8 &&
	         config->json_max_bytes / config->json_files >= 32u << 10 &&
	         config->json_max_bytes <= 1ull << 50,
	     "files without room for a line, or without a limit");
	want(config->budget_ppm <= 1000000, "more than a core");
	want(config->min_bytes <= INT64_MAX && config->job_id <= INT64_MAX,
	     "a number that was negative");
	want((config->array_job_id == CONFIG_UNKNOWN) == (config->array_task_id == CONFIG_UNKNOWN),
	     "half an array");
	want(!config->verbose || config->json, "events without lines");
	want(config->job_id ? strtoull(config->job, NULL, 10) == config->job_id
	                    : !strcmp(config->job, "unknown"),
	     "the job in names is another one");
	want(config->make_dir || !strncmp(config->dir, values[5], sizeof(config->dir) - 1),
	     "another directory");
}

static void check_list(const char *list)
{
	char bad[64];
	bool listed[] = { false, false };

	memset(bad, 'x', sizeof(bad));
	want(!deny_lists(list, 0, bad, sizeof(bad)), "a version that is not known is denied");
	want(is_printable(bad, sizeof(bad)), "a bad word is not printable");
	for (unsigned i = 0; i < 2; i++)
		listed[i] = deny_lists(list, 23007, bad, 8);
	want(listed[0] == listed[1] && ends(bad, 8), "a bad word without an end");
}

/* In memory of its own, so that one byte too far is seen; over and over for the variables' upper
 * numbers. */
static char *take_value(struct bytes *in, bool is_long)
{
	size_t length = strnlen((const char *)in->at, (size_t)(in->end - in->at));
	size_t times = is_long && length ? LONG_BYTES / length : 1;
	char *value = malloc(length * times + 1);

	for (size_t i = 0; i < times; i++)
		memcpy(value + i * length, in->at, length);
	value[length * times] = '\0';
	in->at += length + (in->at + length < in->end);
	return value;
}

static unsigned take_values(struct bytes *in, char *kept[MOST_VALUES])
{
	unsigned count = 0;

	memset(values, 0, sizeof(values));
	while (in->at < in->end && count < MOST_VALUES) {
		uint8_t number = bytes_u8(in);

		kept[count] = take_value(in, number >= 7 * NAMES);
		values[number % NAMES] = kept[count++];
	}
	return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct config first, second;
	struct bytes in = { data, data + size };
	char *kept[MOST_VALUES];
	unsigned count = take_values(&in, kept);

	memset(&second, 0xa5, sizeof(second));
	config_load(&first, fake_getenv);
	config_load(&second, fake_getenv);
	want(!memcmp(&first, &second, sizeof(first)), "the same environment is read in two ways");
	check_texts(&first);
	check_numbers(&first);
	check_list(first.deny_nccl);
	while (count)
		free(kept[--count]);
	return 0;
}
