// SPDX-License-Identifier: Apache-2.0
/* fake_slurm.c - loads the SPANK plugin as srun, sbatch, slurmd and slurmstepd do, without Slurm.
 *
 *   fake_slurm PLUGIN [--context=local|allocator|remote|slurmd|prolog|epilog] [--job=ID]
 * [--array=ID_TASK] [--step=ID] [--node=N] [--task=N] [--status=N]...
 *              [--word=WORD]... [--option=VALUE]... [--env=NAME=VALUE]... [--fail-setenv]
 *              [--time=N]
 *
 * --word: a word behind the plugin in plugstack.conf. --option: --nccl-inspector=VALUE, once per
 * occurrence. --env: the job's environment, as slurmstepd holds it; the plugin's getenv() sees this
 * process's own. Every call of the plugin into Slurm is one line on stdout, in order, and at the
 * end the job's environment and this process's own. A call that crashes the real Slurm aborts.
 * --status: the wait status of a task that ended; one for each task, numbered from N of --task on.
 * Exit status 255: the option was refused, as by sbatch.
 * --time=N: say nothing of that. Play it N times, each in a fresh process that loads the plugin, as
 * slurmstepd is one per step, and print of each the nanoseconds in its callbacks and in its
 * loading.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

#define MAX_WORDS 32
#define MAX_ENV 256
#define MAX_STATUSES 256
#define FIRST_PID 4711

enum phase { PHASE_INIT, PHASE_OPTION, PHASE_POST_OPT, PHASE_USER_INIT, PHASE_EXIT, PHASE_OTHER };

/* What the real handle is: opaque to the plugin, checked on each call. */
struct spank_handle {
	unsigned int magic;
};

static struct spank_handle handle = { 0x57a4u };
static enum spank_context context = S_CTX_REMOTE;
static enum phase phase = PHASE_OTHER;
static struct spank_option *registered;
static uint32_t job_id = 1, array_id = 1, array_task = 0xfffffffe; /* NO_VAL */
static uint32_t step_id = 0xfffffffb /* the batch step */, node_id, task_id;
static bool fail_setenv;
static const char *job_script; /* the one callback of `slurmstepd spank prolog` or epilog */
static unsigned int rounds;    /* 0: say what happens; else only how long it takes */
static uint64_t callbacks_ns;
static char *words[MAX_WORDS + 1], *options[MAX_WORDS], *job_env[MAX_ENV];
static int word_count, option_count, env_count, status_count, ended;
static int statuses[MAX_STATUSES];

/* One line per message, whatever is in it: the tests look for stray newlines as \n. */
static void say(const char *what, const char *format, va_list args)
{
	char text[16384];

	if (rounds)
		return;
	vsnprintf(text, sizeof(text), format, args);
	printf("%s", what);
	for (const char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
			printf("\\x%02x", (unsigned char)*c);
		else
			putchar(*c);
	putchar('\n');
	fflush(stdout);
}

#define LOGGER(function, what)                                                                     \
	void function(const char *format, ...)                                                     \
	{                                                                                          \
		va_list args;                                                                      \
                                                                                                   \
		va_start(args, format);                                                            \
		say(what, format, args);                                                           \
		va_end(args);                                                                      \
	}

LOGGER(slurm_error, "error: ")
LOGGER(slurm_info, "info: ")
LOGGER(slurm_verbose, "verbose: ")
LOGGER(slurm_debug, "debug: ")
LOGGER(slurm_debug2, "debug: ")
LOGGER(slurm_debug3, "debug: ")
LOGGER(slurm_spank_log, "log: ")
static LOGGER(note, "")

    static void crash(const char *why)
{
	note("CRASH: %s", why);
	abort();
}

static void check(spank_t spank)
{
	if (spank != &handle || spank->magic != handle.magic)
		crash("a handle that is not Slurm's");
}

static char **find_env(const char *name)
{
	size_t len = strlen(name);

	for (int i = 0; i < env_count; i++)
		if (!strncmp(job_env[i], name, len) && job_env[i][len] == '=')
			return &job_env[i];
	return NULL;
}

spank_context_t spank_context(void)
{
	return context;
}

int spank_remote(spank_t spank)
{
	check(spank);
	return context == S_CTX_REMOTE;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	check(spank);
	if (phase != PHASE_INIT)
		return ESPANK_BAD_ARG;
	note("register %s %s has_arg=%d", option->name, option->arginfo, option->has_arg);
	registered = option;
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	va_list args;

	check(spank);
	if (context != S_CTX_REMOTE && (context != S_CTX_JOB_SCRIPT || item != S_JOB_ID))
		return ESPANK_NOT_REMOTE;
	if (item == S_TASK_EXIT_STATUS || item == S_TASK_PID) {
		/* A task that runs has no status (spank_get_item of spank.c). */
		if (phase != PHASE_EXIT)
			return ESPANK_NOT_TASK;
		va_start(args, item);
		*va_arg(args, int *) = item == S_TASK_PID ? FIRST_PID + ended : statuses[ended];
		va_end(args);
		return ESPANK_SUCCESS;
	}
	if (item != S_JOB_ID && item != S_JOB_STEPID && item != S_JOB_NODEID &&
	    item != S_JOB_ARRAY_ID && item != S_JOB_ARRAY_TASK_ID && item != S_TASK_GLOBAL_ID)
		return ESPANK_BAD_ARG;
	va_start(args, item);
	*va_arg(args, uint32_t *) = item == S_JOB_ID           ? job_id
	                            : item == S_JOB_STEPID     ? step_id
	                            : item == S_JOB_NODEID     ? node_id
	                            : item == S_JOB_ARRAY_ID   ? array_id
	                            : item == S_TASK_GLOBAL_ID ? task_id
	                                                       : array_task;
	va_end(args);
	return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *buf, int len)
{
	char **found;

	check(spank);
	if (context != S_CTX_REMOTE)
		return ESPANK_NOT_REMOTE;
	found = find_env(name);
	if (!found)
		return ESPANK_ENV_NOEXIST;
	if (snprintf(buf, (size_t)len, "%s", *found + strlen(name) + 1) >= len)
		return ESPANK_NOSPACE;
	return ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	char **found, *entry;

	check(spank);
	note("setenv %s=%s", name, value);
	if (context != S_CTX_REMOTE)
		return ESPANK_NOT_REMOTE;
	if (fail_setenv)
		return ESPANK_ERROR;
	found = find_env(name);
	if (found && !overwrite)
		return ESPANK_ENV_EXISTS;
	if (!found && env_count == MAX_ENV)
		return ESPANK_NOSPACE;
	if (asprintf(&entry, "%s=%s", name, value) < 0)
		abort();
	if (found)
		free(*found);
	*(found ? found : &job_env[env_count++]) = entry;
	return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
	char **found;

	check(spank);
	note("unsetenv %s", name);
	if (context != S_CTX_REMOTE)
		return ESPANK_NOT_REMOTE;
	found = find_env(name);
	if (found) {
		free(*found);
		*found = job_env[--env_count];
	}
	return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value,
                                     int overwrite)
{
	check(spank);
	if ((context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) || phase != PHASE_POST_OPT)
		crash("spank_job_control_setenv where it crashes Slurm");
	note("job_control_setenv %s=%s overwrite=%d", name, value, overwrite);
	return ESPANK_SUCCESS;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Calls a callback if the plugin has it, and says what it returned. */
static void call(void *plugin, const char *name, enum phase now)
{
	void *symbol = dlsym(plugin, name);
	spank_f *callback;
	uint64_t begun;
	int rc;

	if (!symbol)
		return;
	memcpy(&callback, &symbol, sizeof(callback));
	phase = now;
	begun = now_ns();
	rc = callback(&handle, word_count, words);
	callbacks_ns += now_ns() - begun;
	phase = PHASE_OTHER;
	note("%s -> %d", name, rc);
}

/* Returns false when the option was refused where that ends the command. */
static bool pass_options(void)
{
	for (int i = 0; i < option_count && registered; i++) {
		bool remote = context == S_CTX_REMOTE;
		uint64_t begun = now_ns();
		int rc;

		phase = PHASE_OPTION;
		rc = registered->cb(registered->val, options[i], remote);
		callbacks_ns += now_ns() - begun;
		phase = PHASE_OTHER;
		note("option -> %d", rc);
		if (rc && !remote)
			return false;
	}
	return true;
}

static bool set_context(const char *name)
{
	static const char *const names[] = { "", "local", "remote", "allocator", "slurmd" };

	if (!strcmp(name, "prolog") || !strcmp(name, "epilog")) {
		job_script = *name == 'p' ? "slurm_spank_job_prolog" : "slurm_spank_job_epilog";
		context = S_CTX_JOB_SCRIPT;
		return true;
	}
	for (int i = S_CTX_LOCAL; i <= S_CTX_SLURMD; i++)
		if (!strcmp(names[i], name)) {
			context = (enum spank_context)i;
			return true;
		}
	return false;
}

static bool push(char **list, int *count, int room, const char *text)
{
	if (*count == room)
		return false;
	list[*count] = strdup(text);
	return list[(*count)++] != NULL;
}

static bool parse_argument(const char *arg)
{
	const char *value = strchr(arg, '=');

	value = value ? value + 1 : "";
	if (!strncmp(arg, "--context=", 10))
		return set_context(value);
	if (!strncmp(arg, "--word=", 7))
		return push(words, &word_count, MAX_WORDS, value);
	if (!strncmp(arg, "--option=", 9))
		return push(options, &option_count, MAX_WORDS, value);
	if (!strncmp(arg, "--env=", 6))
		return strchr(value, '=') && push(job_env, &env_count, MAX_ENV, value);
	if (!strncmp(arg, "--job=", 6))
		return (job_id = (uint32_t)strtoul(value, NULL, 10)) != 0;
	if (!strncmp(arg, "--node=", 7))
		return sscanf(value, "%u", &node_id) == 1;
	if (!strncmp(arg, "--step=", 7))
		return sscanf(value, "%u", &step_id) == 1;
	if (!strncmp(arg, "--task=", 7))
		return sscanf(value, "%u", &task_id) == 1;
	if (!strncmp(arg, "--status=", 9))
		return status_count < MAX_STATUSES &&
		       sscanf(value, "%d", &statuses[status_count++]) == 1;
	if (!strncmp(arg, "--array=", 8))
		return sscanf(value, "%u_%u", &array_id, &array_task) == 2;
	if (!strncmp(arg, "--time=", 7))
		return (rounds = (unsigned int)strtoul(value, NULL, 10)) != 0;
	return fail_setenv = !strcmp(arg, "--fail-setenv");
}

static int drive(void *plugin)
{
	if (job_script) {
		call(plugin, job_script, PHASE_OTHER);
		return 0;
	}
	call(plugin, "slurm_spank_init", PHASE_INIT);
	if (!pass_options())
		return 255;
	if (context != S_CTX_SLURMD)
		call(plugin, "slurm_spank_init_post_opt", PHASE_POST_OPT);
	if (context == S_CTX_LOCAL)
		call(plugin, "slurm_spank_local_user_init", PHASE_USER_INIT);
	if (context == S_CTX_REMOTE) {
		call(plugin, "slurm_spank_user_init", PHASE_USER_INIT);
		call(plugin, "slurm_spank_task_init_privileged", PHASE_OTHER);
		call(plugin, "slurm_spank_task_init", PHASE_OTHER);
		call(plugin, "slurm_spank_task_post_fork", PHASE_OTHER);
		for (; ended < status_count; ended++, task_id++)
			call(plugin, "slurm_spank_task_exit", PHASE_EXIT);
	}
	call(plugin, context == S_CTX_SLURMD ? "slurm_spank_slurmd_exit" : "slurm_spank_exit",
	     PHASE_OTHER);
	for (int i = 0; i < env_count; i++)
		note("env %s", job_env[i]);
	for (char **entry = environ; *entry; entry++)
		note("own %s", *entry);
	return 0;
}

static void *load(const char *path)
{
	void *plugin = path ? dlopen(path, RTLD_NOW) : NULL;

	if (plugin && dlsym(plugin, "plugin_version"))
		return plugin;
	fprintf(stderr, "fake_slurm: %s\n", path ? dlerror() : "no plugin given");
	return NULL;
}

static int play(const char *path)
{
	uint64_t begun = now_ns(), loaded_ns;
	void *plugin = load(path);
	int rc;

	if (!plugin)
		return 2;
	loaded_ns = now_ns() - begun;
	rc = drive(plugin);
	if (rounds)
		printf("%" PRIu64 " %" PRIu64 "\n", callbacks_ns, loaded_ns);
	fflush(stdout);
	dlclose(plugin);
	return rc;
}

/* Plays the rounds that --time asks for, each in a process of its own. */
static int play_rounds(const char *path)
{
	int status = 0;

	for (unsigned int i = 0; i < rounds && !status; i++) {
		pid_t pid = fork();

		if (!pid)
			_exit(play(path));
		if (pid < 0 || waitpid(pid, &status, 0) < 0)
			return 2;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

int main(int argc, char **argv)
{
	const char *path = argc > 1 ? argv[1] : NULL;
	int rc;

	for (int i = 2; i < argc; i++)
		if (!parse_argument(argv[i])) {
			fprintf(stderr, "fake_slurm: bad argument %.80s\n", argv[i]);
			return 2;
		}
	rc = rounds ? play_rounds(path) : play(path);
	for (int i = 0; i < MAX_WORDS; i++) {
		free(words[i]);
		free(options[i]);
	}
	for (int i = 0; i < env_count; i++)
		free(job_env[i]);
	return rc;
}
