// SPDX-License-Identifier: Apache-2.0
/* Plays a tasks' environment through several steps: who wins, what is replaced, what goes. */
#include "taskenv.h"
#include "tap.h"

#include <string.h>

#define INTERVAL "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"

struct env {
	char name[TASKENV_VARIABLES + 16][64]; /* also those that the tests set */
	char value[TASKENV_VARIABLES + 16][2048];
	size_t used;
};

static struct env env;
static struct taskenv plan;
static struct settings settings;
static struct taskenv_job job = { .array_task = TASKENV_NO_ARRAY };

static const char *get(void *arg, const char *name)
{
	struct env *e = arg;

	for (size_t i = 0; i < e->used; i++)
		if (!strcmp(e->name[i], name))
			return e->value[i];
	return NULL;
}

static void put(const char *name, const char *value)
{
	size_t i = 0;

	while (i < env.used && strcmp(env.name[i], name) != 0)
		i++;
	if (i == env.used)
		env.used++;
	snprintf(env.name[i], sizeof(env.name[i]), "%s", name);
	snprintf(env.value[i], sizeof(env.value[i]), "%s", value);
}

static void drop(const char *name)
{
	for (size_t i = 0; i < env.used; i++)
		if (!strcmp(env.name[i], name))
			env.name[i][0] = '\0';
}

/* One step: plans, and changes the environment as the plan says. */
static void step(enum mode mode, uint32_t job_id)
{
	settings.mode = mode;
	job.id = job_id;
	taskenv_plan(&plan, &settings, &job, get, &env);
	for (size_t i = 0; i < plan.changes; i++)
		if (plan.change[i].action == TASKENV_SET)
			put(plan.change[i].name, plan.change[i].value);
		else if (plan.change[i].action == TASKENV_UNSET)
			drop(plan.change[i].name);
}

static void begin(void)
{
	memset(&env, 0, sizeof(env));
	settings_init(&settings);
}

static bool has(const char *name, const char *value)
{
	const char *found = get(&env, name);

	return value ? found && !strcmp(found, value) : !found;
}

static bool is_own(const char *name)
{
	for (size_t i = 0; i < plan.changes; i++)
		if (!strcmp(plan.change[i].name, name))
			return plan.change[i].action == TASKENV_OWN;
	return false;
}

static bool nothing_of_ours(void)
{
	for (size_t i = 0; i < env.used; i++)
		if (!strncmp(env.name[i], "NCCL_", 5) || !strncmp(env.name[i], "TORCH", 5))
			return false;
	return true;
}

static void test_spoilt_markers(void)
{
	static const char *const markers[] = {
		"",
		" ",
		"42",
		"42 ",
		"NCCL_INSPECTOR_ENABLE:",
		"42 NCCL_INSPECTOR_ENABLE:",
		"42 NCCL_INSPECTOR_ENABLE:af63ac4c86019af",
		"42 NCCL_INSPECTOR_ENABLE",
		"42 NCCL_INSPECTOR_ENABLE:af63ac4c86019afcff",
		"42 PATH:af63ac4c86019afc",
		"42NCCL_INSPECTOR_ENABLE:af63ac4c86019afc",
		":::: ::: :",
		"\xff\xff \x01",
	};

	for (size_t i = 0; i < sizeof(markers) / sizeof(*markers); i++) {
		begin();
		put("NCCL_INSPECTOR_ENABLE", "1");
		put(TASKENV_MARKER, markers[i]);
		step(MODE_OFF, 42);
		ok(has("NCCL_INSPECTOR_ENABLE", "1") && has(TASKENV_MARKER, NULL),
		   "spoilt marker %zu makes the variable the user's", i);
	}
	begin();
	put("NCCL_INSPECTOR_ENABLE", "1");
	put(TASKENV_MARKER, "9 X:0 NCCL_INSPECTOR_ENABLE:af63ac4c86019afc");
	step(MODE_OFF, 42);
	ok(nothing_of_ours(), "the hash is FNV-1a 64, as published");
	begin();
	put(TASKENV_MARKER, "42 LD_PRELOAD:cbf29ce484222325");
	put("LD_PRELOAD", "");
	step(MODE_OFF, 42);
	ok(has("LD_PRELOAD", ""), "a marker cannot make us touch a variable that is not ours");
}

static void test_values(void)
{
	begin();
	step(MODE_OFF, 42);
	ok(!plan.changes, "off changes nothing in a fresh environment");
	step(MODE_PROM, 42);
	ok(has("NCCL_PROFILER_PLUGIN", settings.profiler) && has("NCCL_INSPECTOR_ENABLE", "1") &&
	       has("NCCL_INSPECTOR_RUN_DIR", "/run/nccl-inspector/jobs/42/raw") &&
	       has("NCCL_INSPECTOR_PROM_DUMP", "1") && has(INTERVAL, "30000000") &&
	       has("NCCL_INSPECTOR_ENABLE_P2P", "1") &&
	       has("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "8192") &&
	       has("NCCL_INSPECTOR_CONTROL_DIR", "/run/nccl-inspector/control") &&
	       has("NCCL_INSPECTOR_JSON", "0") && has("NCCL_INSPECTOR_PHASES", "0") &&
	       has("NCCL_INSPECTOR_HOST_TIME", "0") && has("NCCL_INSPECTOR_NET", "off") &&
	       has("NCCL_INSPECTOR_BUDGET_PERCENT", "1.000") &&
	       has("NCCL_RAS_ADDR", "localhost:61338") && plan.changes == 15,
	   "prom sets fourteen variables and the marker");
	ok(!strncmp(get(&env, TASKENV_MARKER), "42 NCCL_PROFILER_PLUGIN:", 24), "%s",
	   get(&env, TASKENV_MARKER));
	begin();
	step(MODE_REPORT, 4294967294u);
	ok(has("NCCL_INSPECTOR_PROM_DUMP", "0") &&
	       has("NCCL_INSPECTOR_RUN_DIR", "/run/nccl-inspector/jobs/4294967294/raw"),
	   "report asks for no .prom file");
	begin();
	memset(settings.run_dir, 'd', sizeof(settings.run_dir) - 1);
	memset(settings.profiler, 'p', sizeof(settings.profiler) - 1);
	memset(settings.dir, 'j', sizeof(settings.dir) - 1);
	memset(settings.deny_nccl, '2', sizeof(settings.deny_nccl) - 1);
	settings.interval_us = settings.min_size_bytes = settings.json_max_bytes = UINT64_MAX;
	settings.broadcasts = settings.fr = settings.fr_pipe = 1;
	settings.debug = SETTINGS_LEVEL_INFO;
	settings.budget_millipercent = UINT64_MAX;
	job = (struct taskenv_job){ .batch_step = true,
	                            .array_id = UINT32_MAX,
	                            .step = UINT32_MAX,
	                            .restart = UINT32_MAX,
	                            .task = UINT32_MAX };
	step(MODE_PROM_JSON, UINT32_MAX);
	ok(plan.changes == TASKENV_VARIABLES + 1 && has("NCCL_INSPECTOR_DUMP_DIR", settings.dir),
	   "everything that can be set is");
	job = (struct taskenv_job){ .array_task = TASKENV_NO_ARRAY };
	step(MODE_OFF, UINT32_MAX);
	ok(nothing_of_ours(), "the longest values are marked whole");
}

static void test_json(void)
{
	begin();
	step(MODE_JSON, 42);
	ok(has("NCCL_INSPECTOR_PROM_DUMP", "0") && has("NCCL_INSPECTOR_JSON", "1") &&
	       has("NCCL_INSPECTOR_DUMP_DIR", NULL) && has("NCCL_INSPECTOR_DUMP_VERBOSE", "0") &&
	       has("NCCL_INSPECTOR_JSON_GZIP", "0") &&
	       has("NCCL_INSPECTOR_JSON_MAX_BYTES", "268435456"),
	   "json asks for lines, where the plugin likes, and for no .prom file");
	snprintf(settings.dir, sizeof(settings.dir), "/scratch/me");
	step(MODE_PROM_JSON, 42);
	ok(has("NCCL_INSPECTOR_PROM_DUMP", "1") && has("NCCL_INSPECTOR_JSON", "1") &&
	       has("NCCL_INSPECTOR_DUMP_DIR", "/scratch/me"),
	   "prom+json asks for both");
	step(MODE_PROM, 42);
	ok(has("NCCL_INSPECTOR_JSON", "0") && has("NCCL_INSPECTOR_DUMP_DIR", NULL) &&
	       has("NCCL_INSPECTOR_DUMP_VERBOSE", NULL) &&
	       has("NCCL_INSPECTOR_JSON_MAX_BYTES", NULL),
	   "a step in another mode has nothing of it");
	step(MODE_JSON, 42);
	step(MODE_OFF, 42);
	ok(nothing_of_ours(), "nor one that is off");
	put("NCCL_INSPECTOR_DUMP_DIR", "/mine");
	step(MODE_JSON, 42);
	ok(has("NCCL_INSPECTOR_DUMP_DIR", "/mine") && is_own("NCCL_INSPECTOR_DUMP_DIR"),
	   "the user's own directory wins");
	step(MODE_PROM, 42);
	ok(has("NCCL_INSPECTOR_DUMP_DIR", "/mine") && !is_own("NCCL_INSPECTOR_DUMP_DIR"),
	   "where ours would not go his is no news");
}

static void test_flight_recorder(void)
{
	begin();
	step(MODE_PROM, 42);
	ok(has("TORCH_FR_DUMP_TEMP_FILE", NULL) && has("TORCH_FR_DEBUG_INFO_PIPE_FILE", NULL),
	   "without fr nothing of PyTorch is set");
	settings.fr = 1;
	job.step = 3;
	step(MODE_PROM, 42);
	ok(has("TORCH_FR_DUMP_TEMP_FILE", "nccl-inspector-42.3-fr-rank_") &&
	       has("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "nccl-inspector-42.3-fr-rank_") &&
	       has("TORCHCOMM_FR_DUMP_TEMP_FILE", "nccl-inspector-42.3-fr-rank_") &&
	       has("TORCH_FR_BUFFER_SIZE", "2000") && has("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000") &&
	       has("TORCH_NCCL_DUMP_ON_TIMEOUT", "1") &&
	       has("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", NULL) &&
	       has("TORCH_FR_DEBUG_INFO_PIPE_FILE", NULL),
	   "fr gives each step's dumps a name, and makes no pipe");
	settings.fr_pipe = 1;
	step(MODE_PROM, 42);
	ok(has("TORCH_FR_DEBUG_INFO_PIPE_FILE", "/run/nccl-inspector/jobs/42/raw/fr_3_rank_") &&
	       has("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
	           "/run/nccl-inspector/jobs/42/raw/fr_nccl_3_rank_"),
	   "fr_pipe has a pipe of its own for each backend and step");
	job.batch_step = true;
	job.step = TASKENV_BATCH_STEP;
	step(MODE_PROM, 42);
	ok(has("TORCH_FR_DUMP_TEMP_FILE", "nccl-inspector-42.batch-fr-rank_"),
	   "the batch step has its name");
	job = (struct taskenv_job){ .array_task = TASKENV_NO_ARRAY };
	step(MODE_OFF, 42);
	ok(nothing_of_ours(), "off takes all of it away");
	settings.fr = 0;
	step(MODE_PROM, 42);
	ok(has("TORCH_FR_DUMP_TEMP_FILE", NULL) && has("TORCH_FR_DEBUG_INFO_PIPE_FILE", NULL),
	   "fr_pipe alone sets nothing");
	begin();
	settings.fr = 1;
	put("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/scratch/mine_");
	put("TORCH_FR_BUFFER_SIZE", "50");
	step(MODE_PROM, 42);
	ok(has("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/scratch/mine_") &&
	       has("TORCH_FR_DUMP_TEMP_FILE", NULL) && has("TORCH_FR_BUFFER_SIZE", "50") &&
	       has("TORCH_NCCL_TRACE_BUFFER_SIZE", NULL) &&
	       is_own("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") && is_own("TORCH_FR_BUFFER_SIZE"),
	   "what the user set by one of two names is not overridden by the other");
	step(MODE_OFF, 42);
	ok(has("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/scratch/mine_"), "the user's own stays");
}

static void test_times_of_broadcasts(void)
{
	begin();
	settings.broadcasts = 1;
	step(MODE_PROM, 42);
	ok(has("NCCL_ALLGATHERV_ENABLE", "0"),
	   "NCCL is told to run Broadcasts as other collectives");
	settings.broadcasts = 0;
	step(MODE_PROM, 42);
	ok(has("NCCL_ALLGATHERV_ENABLE", NULL), "a step that does not want it has nothing of it");
	put("NCCL_ALLGATHERV_ENABLE", "1");
	settings.broadcasts = 1;
	step(MODE_PROM, 42);
	ok(has("NCCL_ALLGATHERV_ENABLE", "1") && is_own("NCCL_ALLGATHERV_ENABLE"),
	   "the user's own word wins");
}

static void test_nccls_log(void)
{
	const char *file = "/run/nccl-inspector/jobs/42/raw/nccl.42.7.1.3.%h.%p.log";

	begin();
	settings.debug = SETTINGS_LEVEL_WARN;
	job = (struct taskenv_job){
		.array_task = TASKENV_NO_ARRAY, .step = 7, .restart = 1, .task = 3
	};
	step(MODE_PROM, 42);
	ok(has("NCCL_DEBUG", "WARN") && has("NCCL_DEBUG_FILE", file) &&
	       has("NCCL_DEBUG_TIMESTAMP_FORMAT", "[%F %T.%3f] ") && has("NCCL_DEBUG_SUBSYS", NULL),
	   "NCCL writes its warnings into a file of the task: %s", get(&env, "NCCL_DEBUG_FILE"));
	job.task = 4;
	settings.debug = SETTINGS_LEVEL_INFO;
	step(MODE_REPORT, 42);
	ok(has("NCCL_DEBUG", "INFO") && has("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV,NET") &&
	       strstr(get(&env, "NCCL_DEBUG_FILE"), "/nccl.42.7.1.4."),
	   "another task of the same step has a file of its own");
	job.batch_step = true;
	job.step = TASKENV_BATCH_STEP;
	step(MODE_REPORT, 42);
	ok(strstr(get(&env, "NCCL_DEBUG_FILE"), "/nccl.42.batch.1.4."), "so has the batch step");
	settings.debug = SETTINGS_LEVEL_OFF;
	step(MODE_PROM, 42);
	ok(has("NCCL_DEBUG", NULL) && has("NCCL_DEBUG_FILE", NULL) &&
	       has("NCCL_DEBUG_SUBSYS", NULL) && has("NCCL_DEBUG_TIMESTAMP_FORMAT", NULL),
	   "a step that does not want it has nothing of it");
	for (int i = 0; i < 2; i++) {
		const char *own = i ? "NCCL_DEBUG_FILE" : "NCCL_DEBUG";

		begin();
		settings.debug = SETTINGS_LEVEL_WARN;
		put(own, "mine");
		step(MODE_PROM, 42);
		ok(has(own, "mine") && is_own(own) && has("NCCL_INSPECTOR_ENABLE", "1") &&
		       has(i ? "NCCL_DEBUG" : "NCCL_DEBUG_FILE", NULL) &&
		       has("NCCL_DEBUG_TIMESTAMP_FORMAT", NULL),
		   "the user's own %s wins, and nothing else of the log is set", own);
	}
	begin();
	settings.debug = SETTINGS_LEVEL_WARN;
	step(MODE_PROM, 42);
	put("NCCL_DEBUG", "INFO");
	step(MODE_PROM, 42);
	ok(has("NCCL_DEBUG", "INFO") && has("NCCL_DEBUG_FILE", NULL),
	   "a script that sets the level later gets its lines in its output");
	job = (struct taskenv_job){ .array_task = TASKENV_NO_ARRAY };
}

/* As a site with NCCL 2.27.3 sets it, which opens no path. */
static void test_a_profiler_that_the_loader_finds(void)
{
	begin();
	snprintf(settings.profiler, sizeof(settings.profiler), "libnccl-profiler-inspector.so");
	step(MODE_PROM, 42);
	ok(has("NCCL_PROFILER_PLUGIN", "libnccl-profiler-inspector.so") &&
	       has("NCCL_INSPECTOR_DUMP_DIR", NULL),
	   "a profiler without a path is ours");
}

static void test_steps(void)
{
	begin();
	step(MODE_PROM, 42);
	step(MODE_OFF, 42);
	ok(nothing_of_ours(), "an inner step turns off what its batch step had");
	step(MODE_PROM, 42);
	settings.interval_us = 2000000;
	step(MODE_REPORT, 42);
	ok(has(INTERVAL, "2000000") && has("NCCL_INSPECTOR_PROM_DUMP", "0"),
	   "an inner step replaces what its batch step had");
	step(MODE_PROM, 43);
	ok(has("NCCL_INSPECTOR_RUN_DIR", "/run/nccl-inspector/jobs/43/raw") &&
	       !strncmp(get(&env, TASKENV_MARKER), "43 ", 3),
	   "a job inside a job has its own directory");
	step(MODE_OFF, 44);
	ok(nothing_of_ours(), "a job inside a job loses the outer one's, also when off");
}

static void test_arrays(void)
{
	begin();
	job = (struct taskenv_job){ .batch_step = true, .array_id = 810, .array_task = 3 };
	step(MODE_PROM, 812);
	ok(has("NCCL_INSPECTOR_ARRAY_TASK", "810_3"), "a task of an array knows which it is");
	job.batch_step = false;
	step(MODE_PROM, 812);
	ok(has("NCCL_INSPECTOR_ARRAY_TASK", "810_3"), "so do its steps");
	step(MODE_PROM, 820);
	ok(has("NCCL_INSPECTOR_ARRAY_TASK", NULL) && has("NCCL_INSPECTOR_ENABLE", "1"),
	   "a step of a job that it submits goes by its own batch step");
	job = (struct taskenv_job){ .batch_step = true, .array_id = 810, .array_task = 0 };
	step(MODE_REPORT, 811);
	ok(has("NCCL_INSPECTOR_ARRAY_TASK", "810_0"), "the first task has number 0");
	job = (struct taskenv_job){ .batch_step = true, .array_task = TASKENV_NO_ARRAY };
	step(MODE_PROM, 820);
	ok(has("NCCL_INSPECTOR_ARRAY_TASK", NULL), "a job that such a task submits is none");
	step(MODE_OFF, 811);
	ok(nothing_of_ours(), "off takes this one, too");
	job = (struct taskenv_job){ .array_task = TASKENV_NO_ARRAY };
}

static void test_users_own(void)
{
	begin();
	put(INTERVAL, "5");
	put("NCCL_INSPECTOR_ENABLE", "");
	step(MODE_PROM, 42);
	ok(has(INTERVAL, "5") && is_own(INTERVAL) && has("NCCL_INSPECTOR_ENABLE", "") &&
	       is_own("NCCL_INSPECTOR_ENABLE") && has("NCCL_INSPECTOR_PROM_DUMP", "1"),
	   "the user's own variables win, an empty one too");
	step(MODE_OFF, 42);
	ok(has(INTERVAL, "5") && has("NCCL_INSPECTOR_ENABLE", "") &&
	       has("NCCL_PROFILER_PLUGIN", NULL) && has(TASKENV_MARKER, NULL),
	   "off leaves them where they are");
	begin();
	step(MODE_PROM, 42);
	put(INTERVAL, "7");
	step(MODE_PROM, 42);
	ok(has(INTERVAL, "7") && is_own(INTERVAL), "what a script changes becomes the user's");
	begin();
	put("NCCL_PROFILER_PLUGIN", "/home/me/mine.so");
	step(MODE_PROM, 42);
	ok(plan.own_profiler && plan.changes == 1 && is_own("NCCL_PROFILER_PLUGIN"),
	   "with a profiler of the user's nothing of ours is set");
	begin();
	step(MODE_PROM, 42);
	put("NCCL_PROFILER_PLUGIN", "none");
	step(MODE_PROM, 42);
	drop("NCCL_PROFILER_PLUGIN");
	ok(plan.own_profiler && nothing_of_ours(), "and what was ours before goes");
	begin();
	put("NCCL_PROFILER_PLUGIN", "/home/me/mine.so");
	step(MODE_OFF, 42);
	ok(!plan.own_profiler && !plan.changes, "off says nothing of the user's profiler");
}

int main(void)
{
	test_spoilt_markers();
	test_values();
	test_json();
	test_a_profiler_that_the_loader_finds();
	test_flight_recorder();
	test_times_of_broadcasts();
	test_nccls_log();
	test_steps();
	test_arrays();
	test_users_own();
	return done_testing();
}
