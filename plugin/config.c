/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"

#define PROM_DEFAULT_US 30000000 /* NVIDIA's floor in Prometheus mode, here a default */
#define SHORTEST_US 100000
#define LONGEST_US 3600000000ll
#define MIN_BYTES_DEFAULT 8192
#define JSON_BYTES_DEFAULT (256ll << 20)
#define JSON_BYTES_LEAST (32ll << 10) /* of one file: the longest line must fit */
#define JSON_BYTES_MOST (1ll << 50)
#define JSON_FILES_DEFAULT 2
#define JSON_FILES_MOST 8
#define BUDGET_DEFAULT_PPM 10000u
#define BUDGET_MOST_PPM 1000000u

/* Where values come from, and which were wrong. */
struct source {
	config_getenv get;
	char *refused; /* names, CONFIG_REFUSED_BYTES */
};

static void refuse(const struct source *from, const char *name)
{
	size_t length = strlen(from->refused);

	snprintf(from->refused + length, CONFIG_REFUSED_BYTES - length, "%s%s", length ? ", " : "",
	         name);
}

static int64_t number(const struct source *from, const char *name, int64_t fallback)
{
	const char *text = from->get(name);
	char *end;

	if (!text || !*text)
		return fallback;
	errno = 0;
	long long value = strtoll(text, &end, 10);

	if (!errno && !*end)
		return value;
	refuse(from, name);
	return fallback;
}

static bool flag(const struct source *from, const char *name, bool fallback)
{
	int64_t value = number(from, name, fallback);

	if (value == 0 || value == 1)
		return value;
	refuse(from, name);
	return fallback;
}

static uint32_t small_number(const struct source *from, const char *name)
{
	int64_t value = number(from, name, -1);

	return value < 0 || value >= CONFIG_UNKNOWN ? CONFIG_UNKNOWN : (uint32_t)value;
}

/* "" where it is not set, or would have to be cut: another path or list than the one that was
 * meant. */
static void text(const struct source *from, const char *name, char *to, size_t room)
{
	const char *value = from->get(name);
	size_t length = value ? strlen(value) : 0;

	if (length >= room)
		refuse(from, name);
	snprintf(to, room, "%s", length < room && value ? value : "");
}

void config_cut_nodelist(char *to, const char *nodelist)
{
	char text[16384];
	size_t length;
	unsigned left_out = 0;

	printable_copy(text, sizeof(text), nodelist);
	length = strlen(text);
	for (size_t end = length; length > CONFIG_NODELIST_BYTES && end-- > 0;) {
		char mark[24];

		if (text[end] != ',')
			continue;
		left_out++;
		size_t extra = (size_t)snprintf(mark, sizeof(mark), ",+%u", left_out);

		if (end + extra > CONFIG_NODELIST_BYTES)
			continue;
		memcpy(text + end, mark, extra + 1);
		break;
	}
	/* Only the text: behind its end nothing was written, so that would be the stack's bytes. */
	memset(to, 0, CONFIG_NODELIST_BYTES + 1);
	memcpy(to, text, strnlen(text, CONFIG_NODELIST_BYTES));
}

static int64_t limited(int64_t value, int64_t least, int64_t most)
{
	return value < least ? least : value > most ? most : value;
}

static void load_dir(struct config *config, const struct source *from)
{
	const char *job = from->get("SLURM_JOBID");

	text(from, "NCCL_INSPECTOR_DUMP_DIR", config->json_dir, sizeof(config->json_dir));
	if (!*config->json_dir)
		snprintf(config->json_dir, sizeof(config->json_dir), "nccl-inspector-%s",
		         job && *job ? job : "unknown-jobid");
	text(from, "NCCL_INSPECTOR_RUN_DIR", config->dir, sizeof(config->dir));
	config->make_dir = !*config->dir;
	if (config->make_dir)
		memcpy(config->dir, config->json_dir, sizeof(config->dir));
}

/* <run_dir>/jobs/<id>/raw has <run_dir>/control beside it. */
static void load_control_dir(struct config *config, const struct source *from)
{
	const char *run = config->make_dir ? "" : config->dir;
	const char *raw = strrchr(run, '/');

	text(from, "NCCL_INSPECTOR_CONTROL_DIR", config->control_dir, sizeof(config->control_dir));
	if (*config->control_dir)
		return;
	if (!raw || strcmp(raw, "/raw"))
		return;
	size_t length = (size_t)(raw - run);

	while (length && run[length - 1] >= '0' && run[length - 1] <= '9')
		length--;
	if (run + length == raw || length < 6 || memcmp(run + length - 6, "/jobs/", 6))
		return;
	snprintf(config->control_dir, sizeof(config->control_dir), "%.*s/control", (int)length - 6,
	         run);
}

/* A percentage such as 0.5; the application's locale may want a comma, so no strtod. */
static uint32_t budget_ppm(const struct source *from)
{
	const char *value = from->get("NCCL_INSPECTOR_BUDGET_PERCENT"), *c = value;
	uint32_t ppm = 0, digit_ppm = BUDGET_DEFAULT_PPM;

	if (!value || !*value)
		return BUDGET_DEFAULT_PPM;
	for (; *c >= '0' && *c <= '9' && ppm <= BUDGET_MOST_PPM; c++)
		ppm = ppm * 10 + (uint32_t)(*c - '0') * digit_ppm;
	if (*c == '.')
		for (c++; *c >= '0' && *c <= '9'; c++)
			ppm += (uint32_t)(*c - '0') * (digit_ppm /= 10);
	if (*c || ppm > BUDGET_MOST_PPM || *value < '0' || *value > '9') {
		refuse(from, "NCCL_INSPECTOR_BUDGET_PERCENT");
		return BUDGET_DEFAULT_PPM;
	}
	return ppm || !value[strcspn(value, "123456789")] ? ppm : 1; /* only 0 is no limit */
}

/* Whether a number of bytes is set; else `*bytes` stays as it is. */
static bool load_bytes(const struct source *from, const char *name, uint64_t *bytes)
{
	int64_t value = number(from, name, INT64_MIN);

	if (value >= 0)
		*bytes = (uint64_t)value;
	else if (value != INT64_MIN)
		refuse(from, name);
	return value >= 0;
}

static void load_json(struct config *config, const struct source *from)
{
	int64_t bytes = number(from, "NCCL_INSPECTOR_JSON_MAX_BYTES", JSON_BYTES_DEFAULT);
	int64_t files = number(from, "NCCL_INSPECTOR_JSON_FILES", JSON_FILES_DEFAULT);

	config->json =
	    flag(from, "NCCL_INSPECTOR_JSON", false) || (config->make_dir && !config->prom);
	config->json_gzip = flag(from, "NCCL_INSPECTOR_JSON_GZIP", false);
	config->verbose = flag(from, "NCCL_INSPECTOR_DUMP_VERBOSE", false) && config->json;
	load_bytes(from, "NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES", &config->json_min_bytes);
	config->json_max_bytes = (uint64_t)limited(bytes, JSON_BYTES_LEAST, JSON_BYTES_MOST);
	files = limited(files, 1, JSON_FILES_MOST);
	config->json_files =
	    (unsigned)limited(files, 1, (int64_t)config->json_max_bytes / JSON_BYTES_LEAST);
}

static enum config_net load_net(const struct source *from)
{
	const char *name = "NCCL_INSPECTOR_NET", *value = from->get(name);

	if (!value || !*value || !strcmp(value, "off"))
		return CONFIG_NET_OFF;
	if (!strcmp(value, "on"))
		return CONFIG_NET_ON;
	if (!strcmp(value, "auto"))
		return CONFIG_NET_AUTO;
	refuse(from, name);
	return CONFIG_NET_OFF;
}

/* NCCL_INSPECTOR_ARRAY_TASK: `810_3`. SLURM_ARRAY_* may be another job's, see internals.md. */
static bool parse_array(struct config *config, const char *value)
{
	unsigned long long job, task;
	char *end;

	if (*value < '0' || *value > '9')
		return false;
	job = strtoull(value, &end, 10);
	if (*end != '_' || end[1] < '0' || end[1] > '9')
		return false;
	task = strtoull(end + 1, &end, 10);
	if (*end || job >= CONFIG_UNKNOWN || task >= CONFIG_UNKNOWN)
		return false;
	config->array_job_id = (uint32_t)job;
	config->array_task_id = (uint32_t)task;
	return true;
}

static void load_array(struct config *config, const struct source *from)
{
	const char *name = "NCCL_INSPECTOR_ARRAY_TASK", *value = from->get(name);

	config->array_job_id = config->array_task_id = CONFIG_UNKNOWN;
	if (value && *value && !parse_array(config, value))
		refuse(from, name);
}

static void load_identity(struct config *config, const struct source *from)
{
	const char *node = from->get("SLURMD_NODENAME");
	char host[64] = "";
	int64_t job_id;

	job_id = number(from, "SLURM_JOB_ID", 0);
	config->job_id = job_id > 0 ? (uint64_t)job_id : 0;
	config->step_id = small_number(from, "SLURM_STEP_ID");
	config->procid = small_number(from, "SLURM_PROCID");
	config->localid = small_number(from, "SLURM_LOCALID");
	load_array(config, from);
	snprintf(config->job, sizeof(config->job), "%s", "unknown");
	if (config->job_id)
		snprintf(config->job, sizeof(config->job), "%llu",
		         (unsigned long long)config->job_id);
	snprintf(config->step, sizeof(config->step), "%s", "x");
	if (config->step_id != CONFIG_UNKNOWN)
		snprintf(config->step, sizeof(config->step), "%u", config->step_id);
	if (!node || !*node) {
		gethostname(host, sizeof(host) - 1);
		host[strcspn(host, ".")] = '\0';
		node = host;
	}
	printable_copy(config->node, sizeof(config->node), node);
	printable_copy(config->cluster, sizeof(config->cluster), from->get("SLURM_CLUSTER_NAME"));
	config_cut_nodelist(config->nodelist, from->get("SLURM_JOB_NODELIST"));
}

void config_load(struct config *config, config_getenv get)
{
	const struct source source = { get, config->refused }, *from = &source;
	int64_t interval_us;

	memset(config, 0, sizeof(*config));
	config->enabled = flag(from, "NCCL_INSPECTOR_ENABLE", false);
	config->prom = flag(from, "NCCL_INSPECTOR_PROM_DUMP", false);
	config->p2p = flag(from, "NCCL_INSPECTOR_ENABLE_P2P", true);
	config->host_time = flag(from, "NCCL_INSPECTOR_HOST_TIME", false);
	config->phases = flag(from, "NCCL_INSPECTOR_PHASES", false);
	config->net = load_net(from);
	config->min_bytes = MIN_BYTES_DEFAULT;
	if (load_bytes(from, "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", &config->min_bytes))
		config->json_min_bytes = config->min_bytes; /* as in NVIDIA's Inspector */
	interval_us = number(from, "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", -1);
	if (!flag(from, "NCCL_INSPECTOR_DUMP_THREAD_ENABLE", true) || interval_us < 0)
		config->interval_us = config->json_interval_us = 0;
	else
		config->interval_us = config->json_interval_us =
		    limited(interval_us, SHORTEST_US, LONGEST_US);
	if (config->json_interval_us && interval_us == 0)
		config->interval_us = PROM_DEFAULT_US; /* "continuous" would burn a core */
	load_dir(config, from);
	load_json(config, from);
	load_control_dir(config, from);
	text(from, "NCCL_INSPECTOR_DENY_NCCL", config->deny_nccl, sizeof(config->deny_nccl));
	config->budget_ppm = budget_ppm(from);
	load_identity(config, from);
}
