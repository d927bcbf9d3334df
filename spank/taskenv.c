// SPDX-License-Identifier: Apache-2.0
#include "taskenv.h"
#include "values.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HASH_DIGITS 16u

#define FR_RECORDS_KEPT 2000u /* PyTorch's default since 2.13; before, it recorded nothing */
#define PROFILER_NAME "libnccl-profiler-inspector.so"

/* The ports above those that Linux gives to connections; nothing is registered there. A job's first
 * eight steps have ports that none of the next 500 jobs has. */
#define RAS_PORT_FIRST 61000u
#define RAS_PORTS (UINT16_MAX + 1u - RAS_PORT_FIRST)
#define RAS_PORTS_OF_JOB 8u

/* All variables, the profiler first: if it is the user's, none of the others is set. Those from
 * RAS_ADDR to DEBUG_TIME are variables of NCCL itself, DEBUG and the next three of them only with
 * the setting `debug`. From FR_FILE on they are of PyTorch's flight recorder; the second of a name
 * is the older. FR_PIPE is Gloo's and XCCL's; NCCL's has another name, and a pipe of its own. */
#define VARIABLES(X)                                                                               \
	X(PROFILER, "NCCL_PROFILER_PLUGIN")                                                        \
	X(ENABLE, "NCCL_INSPECTOR_ENABLE")                                                         \
	X(RUN_DIR, "NCCL_INSPECTOR_RUN_DIR")                                                       \
	X(CONTROL_DIR, "NCCL_INSPECTOR_CONTROL_DIR")                                               \
	X(PROM_DUMP, "NCCL_INSPECTOR_PROM_DUMP")                                                   \
	X(JSON, "NCCL_INSPECTOR_JSON")                                                             \
	X(DUMP_DIR, "NCCL_INSPECTOR_DUMP_DIR")                                                     \
	X(VERBOSE, "NCCL_INSPECTOR_DUMP_VERBOSE")                                                  \
	X(GZIP, "NCCL_INSPECTOR_JSON_GZIP")                                                        \
	X(JSON_MAX, "NCCL_INSPECTOR_JSON_MAX_BYTES")                                               \
	X(JSON_MIN_SIZE, "NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES")                                     \
	X(INTERVAL, "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS")                            \
	X(P2P, "NCCL_INSPECTOR_ENABLE_P2P")                                                        \
	X(MIN_SIZE, "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES")                                          \
	X(PHASES, "NCCL_INSPECTOR_PHASES")                                                         \
	X(HOST_TIME, "NCCL_INSPECTOR_HOST_TIME")                                                   \
	X(NET, "NCCL_INSPECTOR_NET")                                                               \
	X(DENY_NCCL, "NCCL_INSPECTOR_DENY_NCCL")                                                   \
	X(BUDGET, "NCCL_INSPECTOR_BUDGET_PERCENT")                                                 \
	X(ARRAY_TASK, "NCCL_INSPECTOR_ARRAY_TASK")                                                 \
	X(RAS_ADDR, "NCCL_RAS_ADDR")                                                               \
	X(ALLGATHERV, "NCCL_ALLGATHERV_ENABLE")                                                    \
	X(DEBUG, "NCCL_DEBUG")                                                                     \
	X(DEBUG_FILE, "NCCL_DEBUG_FILE")                                                           \
	X(DEBUG_SUBSYS, "NCCL_DEBUG_SUBSYS")                                                       \
	X(DEBUG_TIME, "NCCL_DEBUG_TIMESTAMP_FORMAT")                                               \
	X(FR_FILE, "TORCH_FR_DUMP_TEMP_FILE")                                                      \
	X(FR_FILE_OLD, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")                                          \
	X(FR_FILE_TORCHCOMMS, "TORCHCOMM_FR_DUMP_TEMP_FILE")                                       \
	X(FR_RECORDS, "TORCH_FR_BUFFER_SIZE")                                                      \
	X(FR_RECORDS_OLD, "TORCH_NCCL_TRACE_BUFFER_SIZE")                                          \
	X(FR_ON_TIMEOUT, "TORCH_NCCL_DUMP_ON_TIMEOUT")                                             \
	X(FR_PIPE, "TORCH_FR_DEBUG_INFO_PIPE_FILE")                                                \
	X(FR_PIPE_NCCL, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")

#define ENUMERATOR(variable, name) variable,
#define NAME(variable, name) [variable] = (name),
/* " NAME:HASH" */ // NOLINTNEXTLINE(bugprone-macro-parentheses): terms of one sum
#define MARKED_BYTES(variable, name) +sizeof(" :" name) - 1 + HASH_DIGITS

enum variable { VARIABLES(ENUMERATOR) };

static const char *const names[TASKENV_VARIABLES] = { VARIABLES(NAME) };

_Static_assert(sizeof("4294967295") VARIABLES(MARKED_BYTES) <= TASKENV_VALUE_BYTES,
               "a marker of all variables has room");

/* PyTorch's variables that have two names: if the user set one, we do not set the other. */
static const enum variable other_names[][2] = {
	{ FR_FILE, FR_FILE_OLD },
	{ FR_RECORDS, FR_RECORDS_OLD },
};

enum owner {
	OWNER_NOBODY, /* not set */
	OWNER_US,
	OWNER_USER,
};

/* FNV-1a, 64 bits: it shows whether a value was changed. It is not meant to keep a secret. */
static void hash_value(char out[HASH_DIGITS + 1], const char *value)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (; *value; value++)
		hash = (hash ^ (unsigned char)*value) * 0x100000001b3u;
	snprintf(out, HASH_DIGITS + 1, "%016" PRIx64, hash);
}

/* Whether the marker says that we gave this variable this value. If somebody has changed the
 * marker, the only effect is that our values look like the user's. */
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

/* Returns the job whose step wrote the marker; 0 if the marker does not say it. */
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

static bool has_json(const struct settings *settings)
{
	return settings->mode == MODE_JSON || settings->mode == MODE_PROM_JSON;
}

static bool has_prom(const struct settings *settings)
{
	return settings->mode == MODE_PROM || settings->mode == MODE_PROM_JSON;
}

static uint64_t find_number(enum variable variable, const struct settings *settings)
{
	const uint64_t number[TASKENV_VARIABLES] = {
		[ENABLE] = 1,
		[PROM_DUMP] = has_prom(settings),
		[JSON] = has_json(settings),
		[VERBOSE] = settings->verbose,
		[GZIP] = settings->gzip,
		[JSON_MAX] = settings->json_max_bytes,
		[JSON_MIN_SIZE] = settings->json_min_size_bytes,
		[INTERVAL] = settings->interval_us,
		[P2P] = settings->p2p,
		[MIN_SIZE] = settings->min_size_bytes,
		[PHASES] = settings->phases,
		[HOST_TIME] = settings->host_time,
	};

	return number[variable];
}

/* Whether a profiler is our plugin. NVIDIA's file has the same name, so a path must be in our
 * directory. A name without a directory is ours: the loader searches where the site has told it. */
static bool is_ours(const char *profiler)
{
	static const char tail[] = "/nccl-inspector/" PROFILER_NAME;
	size_t len = strlen(profiler), tail_len = sizeof(tail) - 1;

	return !strcmp(profiler, PROFILER_NAME) ||
	       (len >= tail_len && !strcmp(profiler + len - tail_len, tail));
}

/* Writes the name of this step, as Slurm's commands have it. */
static void write_step(char out[16], const struct taskenv_job *job)
{
	if (job->step == TASKENV_BATCH_STEP)
		snprintf(out, 16, "batch");
	else
		snprintf(out, 16, "%" PRIu32, job->step);
}

/* Writes the path of NCCL's log. NCCL puts host and process in place of %h and %p. In containers
 * process ids repeat, so job, step, restart and task are in the name, too. */
static void make_debug_file(char out[TASKENV_VALUE_BYTES], const struct settings *settings,
                            const struct taskenv_job *job)
{
	char step[16], name[64];

	write_step(step, job);
	snprintf(name, sizeof(name), TASKENV_RAW "/nccl.%" PRIu32 ".%s.%" PRIu32 ".%" PRIu32,
	         job->id, step, job->restart, job->task);
	taskenv_job_path(out, settings, job->id, name);
	strncat(out, ".%h.%p.log", TASKENV_VALUE_BYTES - strlen(out) - 1);
}

/* Returns the port for the RAS services of this step. Slurm numbers the steps that are no sruns
 * down from 2^32; the batch step gets 0, an interactive one 1, and the sruns follow. */
static uint32_t find_ras_port(const struct taskenv_job *job)
{
	uint64_t number = (uint64_t)job->id * RAS_PORTS_OF_JOB;

	if (job->step == TASKENV_INTERACTIVE_STEP)
		number++;
	else if (job->step != TASKENV_BATCH_STEP)
		number += job->step + UINT64_C(2);
	return RAS_PORT_FIRST + (uint32_t)(number % RAS_PORTS);
}

/* Writes a variable of NCCL's log. */
static void make_debug(char out[TASKENV_VALUE_BYTES], enum variable variable,
                       const struct settings *settings, const struct taskenv_job *job)
{
	bool info = settings->debug == SETTINGS_LEVEL_INFO;

	if (variable == DEBUG)
		snprintf(out, TASKENV_VALUE_BYTES, "%s", info ? "INFO" : "WARN");
	else if (variable == DEBUG_FILE)
		make_debug_file(out, settings, job);
	else if (variable == DEBUG_TIME)
		snprintf(out, TASKENV_VALUE_BYTES, "[%%F %%T.%%3f] ");
	else if (info) /* NCCL's own choice, and NET */
		snprintf(out, TASKENV_VALUE_BYTES, "INIT,BOOTSTRAP,ENV,NET");
}

/* Writes the value of a variable of the flight recorder. PyTorch adds the rank to a name. The dumps
 * are written into the process's own directory, which always exists; a pipe whose directory does
 * not exist ends the process, so only `fr_pipe` sets it. */
static void make_flight_value(char out[TASKENV_VALUE_BYTES], enum variable variable,
                              const struct settings *settings, const struct taskenv_job *job)
{
	char step[16], path[TASKENV_PATH_BYTES];

	if (!settings->fr || (variable >= FR_PIPE && !settings->fr_pipe))
		return;
	write_step(step, job);
	taskenv_job_path(path, settings, job->id, TASKENV_RAW);
	if (variable == FR_ON_TIMEOUT)
		snprintf(out, TASKENV_VALUE_BYTES, "1");
	else if (variable == FR_RECORDS || variable == FR_RECORDS_OLD)
		snprintf(out, TASKENV_VALUE_BYTES, "%u", FR_RECORDS_KEPT);
	else if (variable >= FR_PIPE)
		snprintf(out, TASKENV_VALUE_BYTES, "%s/fr%s_%s_rank_", path,
		         variable == FR_PIPE_NCCL ? "_nccl" : "", step);
	else
		snprintf(out, TASKENV_VALUE_BYTES, "nccl-inspector-%" PRIu32 ".%s-fr-rank_",
		         job->id, step);
}

/* Writes a variable's value; empty if this job has no value for it. */
static void make_value(char out[TASKENV_VALUE_BYTES], enum variable variable,
                       const struct settings *settings, const struct taskenv_job *job)
{
	const char *text = NULL;

	*out = '\0';
	if (variable >= FR_FILE) {
		make_flight_value(out, variable, settings, job);
		return;
	}
	/* Our plugin writes to RUN_DIR; NVIDIA's knows only DUMP_DIR. */
	if (variable == DUMP_DIR && settings->mode == MODE_PROM && !is_ours(settings->profiler))
		variable = RUN_DIR;
	if (variable >= DUMP_DIR && variable <= JSON_MIN_SIZE && !has_json(settings))
		return;
	if ((variable == ALLGATHERV && !settings->broadcasts) ||
	    (variable == RAS_ADDR && !settings->ras))
		return;
	if (variable >= DEBUG && variable <= DEBUG_TIME) {
		if (settings->debug != SETTINGS_LEVEL_OFF)
			make_debug(out, variable, settings, job);
		return;
	}
	if (variable == PROFILER)
		text = settings->profiler;
	else if (variable == DUMP_DIR)
		text = settings->dir;
	else if (variable == NET)
		text = values_switch_name((enum settings_switch)settings->net);
	else if (variable == DENY_NCCL)
		text = settings->deny_nccl;
	else if (variable == ALLGATHERV)
		text = "0";
	if (text)
		snprintf(out, TASKENV_VALUE_BYTES, "%s", text);
	else if (variable == RUN_DIR)
		taskenv_job_path(out, settings, job->id, TASKENV_RAW);
	else if (variable == RAS_ADDR)
		snprintf(out, TASKENV_VALUE_BYTES, "localhost:%" PRIu32, find_ras_port(job));
	else if (variable == CONTROL_DIR)
		snprintf(out, TASKENV_VALUE_BYTES, "%s/control", settings->run_dir);
	else if (variable == BUDGET)
		snprintf(out, TASKENV_VALUE_BYTES, "%" PRIu64 ".%03" PRIu64,
		         settings->budget_millipercent / 1000,
		         settings->budget_millipercent % 1000);
	else if (variable != ARRAY_TASK)
		snprintf(out, TASKENV_VALUE_BYTES, "%" PRIu64, find_number(variable, settings));
	else if (job->batch_step && job->array_task != TASKENV_NO_ARRAY)
		snprintf(out, TASKENV_VALUE_BYTES, "%" PRIu32 "_%" PRIu32, job->array_id,
		         job->array_task);
}

/* Whether the user has decided by another variable: one of PyTorch by its other name, or against
 * NCCL's RAS service. */
static bool is_set_otherwise(const char *marker, enum variable variable, taskenv_get *get,
                             void *arg)
{
	if (variable == RAS_ADDR) {
		const char *enable = get(arg, "NCCL_RAS_ENABLE");

		return enable && !strcmp(enable, "0");
	}
	for (size_t i = 0; i < sizeof(other_names) / sizeof(*other_names); i++)
		for (size_t one = 0; one < 2; one++)
			if (other_names[i][one] == variable)
				return find_owner(marker, names[other_names[i][!one]], get, arg) ==
				       OWNER_USER;
	return false;
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

/* Sets a variable. If this job has no value for it, removes a value that we set, because it may be
 * that of another job. */
static void replace(struct taskenv *plan, const char *name, const char *value, enum owner owner)
{
	if (*value)
		snprintf(add(plan, TASKENV_SET, name)->value, TASKENV_VALUE_BYTES, "%s", value);
	else if (owner == OWNER_US)
		add(plan, TASKENV_UNSET, name);
}

/* Writes a step's value for a variable that the user did not set. Only the batch step knows the
 * task of an array, so other steps keep the value that they inherited from it. */
static void find_value(char out[TASKENV_VALUE_BYTES], enum variable variable, const char *inherited,
                       const struct settings *settings, const struct taskenv_job *job)
{
	if (inherited && variable == ARRAY_TASK && !job->batch_step)
		snprintf(out, TASKENV_VALUE_BYTES, "%s", inherited);
	else
		make_value(out, variable, settings, job);
}

void taskenv_plan(struct taskenv *plan, const struct settings *settings,
                  const struct taskenv_job *job, taskenv_get *get, void *arg)
{
	char marker[2 * TASKENV_VALUE_BYTES] = "", value[TASKENV_VALUE_BYTES];
	const char *found = get(arg, TASKENV_MARKER);
	bool active = settings->mode != MODE_OFF, own_log;

	plan->changes = 0;
	plan->own_profiler = false;
	if (found)
		snprintf(marker, sizeof(marker), "%s", found);
	own_log = find_owner(marker, names[DEBUG], get, arg) == OWNER_USER ||
	          find_owner(marker, names[DEBUG_FILE], get, arg) == OWNER_USER;
	for (enum variable i = 0; i < TASKENV_VARIABLES; i++) {
		enum owner owner = find_owner(marker, names[i], get, arg);
		bool inherits = owner == OWNER_US && marker_job(marker) == job->id;

		*value = '\0';
		if (active && !is_set_otherwise(marker, i, get, arg))
			find_value(value, i, inherits ? get(arg, names[i]) : NULL, settings, job);
		if (own_log && i >= DEBUG && i <= DEBUG_TIME && owner != OWNER_USER)
			*value = '\0'; /* the user's level goes with the user's file */
		if (owner != OWNER_USER)
			replace(plan, names[i], value, owner);
		else if (*value)
			add(plan, TASKENV_OWN, names[i]);
		if (i == PROFILER && *value && owner == OWNER_USER) {
			plan->own_profiler = true;
			active = false;
		}
	}
	if (active)
		write_marker(plan, job->id);
	else if (found)
		add(plan, TASKENV_UNSET, TASKENV_MARKER);
}
