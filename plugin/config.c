/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static int64_t number(config_getenv get, const char *name, int64_t fallback)
{
	const char *text = get(name);
	char *end;

	if (!text || !*text)
		return fallback;
	errno = 0;
	long long value = strtoll(text, &end, 10);

	return errno || *end ? fallback : value;
}

static uint32_t small_number(config_getenv get, const char *name)
{
	int64_t value = number(get, name, -1);

	return value < 0 || value >= CONFIG_UNKNOWN ? CONFIG_UNKNOWN : (uint32_t)value;
}

void config_copy_text(char *to, size_t room, const char *from)
{
	size_t i = 0;

	for (; from && from[i] && i + 1 < room; i++)
		to[i] = (char)(from[i] >= 0x20 && from[i] < 0x7f ? from[i] : '?');
	to[i] = '\0';
}

void config_cut_nodelist(char *to, const char *nodelist)
{
	char text[16384];
	size_t length;
	unsigned left_out = 0;

	config_copy_text(text, sizeof(text), nodelist);
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
	memcpy(to, text, CONFIG_NODELIST_BYTES);
	to[CONFIG_NODELIST_BYTES] = '\0';
}

static int64_t limited(int64_t value, int64_t least, int64_t most)
{
	return value < least ? least : value > most ? most : value;
}

static void load_dir(struct config *config, config_getenv get)
{
	const char *run = get("NCCL_INSPECTOR_RUN_DIR");
	const char *dump = get("NCCL_INSPECTOR_DUMP_DIR");
	const char *job = get("SLURM_JOBID");

	if (dump && *dump)
		snprintf(config->json_dir, sizeof(config->json_dir), "%s", dump);
	else
		snprintf(config->json_dir, sizeof(config->json_dir), "nccl-inspector-%s",
			 job && *job ? job : "unknown-jobid");
	config->make_dir = !run || !*run;
	snprintf(config->dir, sizeof(config->dir), "%s", config->make_dir ? config->json_dir : run);
}

/* <run_dir>/jobs/<id>/raw has <run_dir>/control beside it. */
static void load_control_dir(struct config *config, config_getenv get)
{
	const char *control = get("NCCL_INSPECTOR_CONTROL_DIR");
	const char *run = config->make_dir ? "" : config->dir;
	const char *raw = strrchr(run, '/');

	if (control && *control) {
		snprintf(config->control_dir, sizeof(config->control_dir), "%s", control);
		return;
	}
	if (!raw || strcmp(raw, "/raw"))
		return;
	size_t length = (size_t)(raw - run);

	while (length && run[length - 1] >= '0' && run[length - 1] <= '9')
		length--;
	if (run + length == raw || length < 6 || memcmp(run + length - 6, "/jobs/", 6))
		return;
	snprintf(config->control_dir, sizeof(config->control_dir), "%.*s/control", (int)length - 6, run);
}

/* A percentage such as 0.5; the application's locale may want a comma, so no strtod. */
static uint32_t budget_ppm(const char *text)
{
	uint32_t ppm = 0, digit_ppm = BUDGET_DEFAULT_PPM;
	const char *c = text ? text : "";

	if (*c < '0' || *c > '9')
		return BUDGET_DEFAULT_PPM;
	for (; *c >= '0' && *c <= '9' && ppm <= BUDGET_MOST_PPM; c++)
		ppm = ppm * 10 + (uint32_t)(*c - '0') * digit_ppm;
	if (*c == '.')
		for (c++; *c >= '0' && *c <= '9'; c++)
			ppm += (uint32_t)(*c - '0') * (digit_ppm /= 10);
	if (*c || ppm > BUDGET_MOST_PPM)
		return BUDGET_DEFAULT_PPM;
	return ppm || !text[strcspn(text, "123456789")] ? ppm : 1; /* only 0 is no limit */
}

static void load_json(struct config *config, config_getenv get)
{
	int64_t bytes = number(get, "NCCL_INSPECTOR_JSON_MAX_BYTES", JSON_BYTES_DEFAULT);
	int64_t files = number(get, "NCCL_INSPECTOR_JSON_FILES", JSON_FILES_DEFAULT);

	config->json = number(get, "NCCL_INSPECTOR_JSON", 0) == 1 || (config->make_dir && !config->prom);
	config->json_gzip = number(get, "NCCL_INSPECTOR_JSON_GZIP", 0) == 1;
	config->verbose = config->json && number(get, "NCCL_INSPECTOR_DUMP_VERBOSE", 0) == 1;
	config->json_max_bytes = (uint64_t)limited(bytes, JSON_BYTES_LEAST, JSON_BYTES_MOST);
	files = limited(files, 1, JSON_FILES_MOST);
	config->json_files = (unsigned)limited(files, 1, (int64_t)config->json_max_bytes / JSON_BYTES_LEAST);
}

static enum config_net load_net(config_getenv get)
{
	const char *text = get("NCCL_INSPECTOR_NET");

	if (text && !strcmp(text, "on"))
		return CONFIG_NET_ON;
	return text && !strcmp(text, "auto") ? CONFIG_NET_AUTO : CONFIG_NET_OFF;
}

/* NCCL_INSPECTOR_ARRAY_TASK: `810_3`. SLURM_ARRAY_* may be another job's, see internals.md. */
static void load_array(struct config *config, config_getenv get)
{
	const char *text = get("NCCL_INSPECTOR_ARRAY_TASK");
	unsigned long long job, task;
	char *end;

	config->array_job_id = config->array_task_id = CONFIG_UNKNOWN;
	if (!text || *text < '0' || *text > '9')
		return;
	job = strtoull(text, &end, 10);
	if (*end != '_' || end[1] < '0' || end[1] > '9')
		return;
	task = strtoull(end + 1, &end, 10);
	if (*end || job >= CONFIG_UNKNOWN || task >= CONFIG_UNKNOWN)
		return;
	config->array_job_id = (uint32_t)job;
	config->array_task_id = (uint32_t)task;
}

static void load_identity(struct config *config, config_getenv get)
{
	const char *node = get("SLURMD_NODENAME");
	char host[64] = "";
	int64_t job_id;

	job_id = number(get, "SLURM_JOB_ID", 0);
	config->job_id = job_id > 0 ? (uint64_t)job_id : 0;
	config->step_id = small_number(get, "SLURM_STEP_ID");
	config->procid = small_number(get, "SLURM_PROCID");
	config->localid = small_number(get, "SLURM_LOCALID");
	load_array(config, get);
	snprintf(config->job, sizeof(config->job), "%s", "unknown");
	if (config->job_id)
		snprintf(config->job, sizeof(config->job), "%llu", (unsigned long long)config->job_id);
	snprintf(config->step, sizeof(config->step), "%s", "x");
	if (config->step_id != CONFIG_UNKNOWN)
		snprintf(config->step, sizeof(config->step), "%u", config->step_id);
	if (!node || !*node) {
		gethostname(host, sizeof(host) - 1);
		host[strcspn(host, ".")] = '\0';
		node = host;
	}
	config_copy_text(config->node, sizeof(config->node), node);
	config_copy_text(config->cluster, sizeof(config->cluster), get("SLURM_CLUSTER_NAME"));
	config_cut_nodelist(config->nodelist, get("SLURM_JOB_NODELIST"));
}

void config_load(struct config *config, config_getenv get)
{
	int64_t interval_us, min_bytes;

	memset(config, 0, sizeof(*config));
	config->enabled = number(get, "NCCL_INSPECTOR_ENABLE", 0) == 1;
	config->prom = number(get, "NCCL_INSPECTOR_PROM_DUMP", 0) == 1;
	config->p2p = number(get, "NCCL_INSPECTOR_ENABLE_P2P", 1) != 0;
	config->phases = number(get, "NCCL_INSPECTOR_PHASES", 0) == 1;
	config->net = load_net(get);
	min_bytes = number(get, "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", MIN_BYTES_DEFAULT);
	config->min_bytes = min_bytes < 0 ? MIN_BYTES_DEFAULT : (uint64_t)min_bytes;
	interval_us = number(get, "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", -1);
	if (number(get, "NCCL_INSPECTOR_DUMP_THREAD_ENABLE", 1) == 0 || interval_us < 0)
		config->interval_us = config->json_interval_us = 0;
	else
		config->interval_us = config->json_interval_us = limited(interval_us, SHORTEST_US, LONGEST_US);
	if (config->json_interval_us && interval_us == 0)
		config->interval_us = PROM_DEFAULT_US; /* "continuous" would burn a core */
	load_dir(config, get);
	load_json(config, get);
	load_control_dir(config, get);
	config_copy_text(config->deny_nccl, sizeof(config->deny_nccl), get("NCCL_INSPECTOR_DENY_NCCL"));
	config->budget_ppm = budget_ppm(get("NCCL_INSPECTOR_BUDGET_PERCENT"));
	load_identity(config, get);
}
