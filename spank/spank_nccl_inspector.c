// SPDX-License-Identifier: Apache-2.0
/* spank_nccl_inspector.c - the callbacks of the SPANK plugin in commands and steps.
 *
 * In sbatch, salloc and srun it checks the option and tells the hooks the mode. In slurmstepd it
 * gives the tasks their variables. It creates nothing, and it refuses only an invalid option when a
 * job is submitted: a job without metrics is better than no job. The callbacks before and after
 * each job are in job_script.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "options.h"
#include "policy.h"
#include "task_end.h"
#include "taskenv.h"
#include "values.h"

SPANK_PLUGIN(nccl_inspector, 1)

#define PREFIX "nccl-inspector: "
#define SLURM_NO_VAL 0xfffffffeu
#define ENV_BUF_BYTES 4096 /* longer than all values that we set or accept */

#define WISH_VARIABLE "SLURM_NCCL_INSPECTOR"
/* sbatch and salloc leave the option here for srun inside the job. Slurm 22.05 does not pass the
 * option to the batch step of `sbatch --export=NONE`, but does pass this variable. */
#define OPTION_VARIABLE "SLURM_SPANK__SLURM_SPANK_OPTION_nccl_inspector_nccl_inspector"
/* The same, as salloc leaves it for slurmstepd. */
#define STEPD_OPTION_VARIABLE "_SLURM_SPANK_OPTION_nccl_inspector_nccl_inspector"
/* In this variable sbatch and salloc inside the job find the mode for the hooks again. */
#define HOOKS_WORD "NCCL_INSPECTOR"
#define HOOKS_VARIABLE "SLURM_SPANK_" HOOKS_WORD

/* The option's last value. The array has room for one byte more than allowed, so that a value that
 * is cut is still too long. A Slurm process that gets the option serves one job. */
static char option_value[OPTIONS_MAX_BYTES + 2];
static bool option_given;
static bool explicit_option; /* given on the command line or in #SBATCH, not by the enclosing job */

/* Slurm passes the option of an enclosing job first, then those of the command line. */
static bool is_enclosing_jobs(const char *value)
{
	const char *enclosing = getenv(OPTION_VARIABLE);

	return !option_given && enclosing && value && !strcmp(enclosing, value);
}

static int take_option(int val, const char *value, int remote)
{
	char why[SETTINGS_WHY_BYTES];
	struct settings scratch;

	(void)val;
	if (!remote && !is_enclosing_jobs(value))
		explicit_option = true;
	option_given = true;
	snprintf(option_value, sizeof(option_value), "%s", value ? value : "");
	if (remote)
		return 0; /* user_init checks it: an error here would end the step */
	settings_init(&scratch);
	if (options_parse(&scratch, option_value, why)) {
		slurm_error(PREFIX "%s", why);
		return -1;
	}
	/* Not refused, because the rest of the crontab is in order. */
	if (!strcmp(program_invocation_short_name, "scrontab"))
		slurm_error(PREFIX "--nccl-inspector has no effect in a crontab, because scrontab "
		                   "does not hand it to the job: give it to srun in the script");
	return 0;
}

static struct spank_option option = {
	.name = (char *)"nccl-inspector",
	.arginfo = (char *)"MODE[,key=value]",
	.usage = (char *)"measure NCCL communication; MODE: prom, json, prom+json, report or off",
	.has_arg = 1,
	.cb = take_option,
};

static const char *get_own_variable(void *arg, const char *name)
{
	(void)arg;
	return getenv(name);
}

/* Removes all traces of a measured job in which this process submits another job. Otherwise Slurm
 * would take the enclosing job's option as one for the new job, and the new job's tasks would start
 * with the enclosing job's variables. The process is sbatch or salloc, or an srun that creates a
 * job, and has only one thread yet. */
static void forget_enclosing_job(void)
{
	static const struct settings off = { .mode = MODE_OFF };
	static const struct taskenv_job no_job;
	struct taskenv plan;

	unsetenv(OPTION_VARIABLE);
	unsetenv(STEPD_OPTION_VARIABLE);
	unsetenv(HOOKS_VARIABLE);
	taskenv_plan(&plan, &off, &no_job, get_own_variable, NULL);
	for (size_t i = 0; i < plan.changes; i++)
		if (plan.change[i].action == TASKENV_UNSET)
			unsetenv(plan.change[i].name);
}

int slurm_spank_init(spank_t spank, int ac, char **av)
{
	spank_context_t context = spank_context();

	(void)ac;
	(void)av;
	if (context == S_CTX_ALLOCATOR || (context == S_CTX_LOCAL && !getenv("SLURM_JOB_ID")))
		forget_enclosing_job();
	if (context == S_CTX_LOCAL || context == S_CTX_REMOTE || context == S_CTX_ALLOCATOR)
		if (spank_option_register(spank, &option) != ESPANK_SUCCESS)
			slurm_error(PREFIX "cannot register --%s", option.name);
	return ESPANK_SUCCESS;
}

/* Returns the mode of this command's job; `known` is false if the user asked for none and the site
 * has no default. An invalid variable means off, here as on the nodes. */
static enum mode find_mode(int ac, char **av, bool *known)
{
	const char *wish = option_given ? option_value : getenv(WISH_VARIABLE);
	char why[SETTINGS_WHY_BYTES];
	struct settings settings;
	bool site_known = !options_load_site(&settings, ac, av, why);

	if (wish && !option_given && !*wish)
		wish = NULL;
	*known = wish || (site_known && settings.mode != MODE_OFF);
	if (!site_known && wish)
		slurm_error(PREFIX "%s", why);
	if (!wish || !options_parse(&settings, wish, why))
		return settings.mode;
	slurm_error(PREFIX WISH_VARIABLE ": %s", why);
	return MODE_OFF;
}

/* Returns the mode for the hooks of this component of a heterogeneous job. For sbatch the option of
 * the first component applies to all, for srun that of the last. So an `off` of another component
 * must not keep the prolog from making the directory. */
static enum mode join_components(enum mode mode)
{
	static enum mode first, measured;
	static unsigned int components;

	if (!components++)
		first = mode;
	else if (mode != first)
		slurm_error(PREFIX "the components of this job have different modes: the first "
		                   "one's holds in a batch job, the last one's for srun");
	if (mode != MODE_OFF)
		measured = mode;
	return mode != MODE_OFF ? mode : measured;
}

/* Tells the hooks the mode, as SPANK_NCCL_INSPECTOR. In any other callback Slurm would crash. Slurm
 * calls this once for each component of a heterogeneous job. */
int slurm_spank_init_post_opt(spank_t spank, int ac, char **av)
{
	spank_context_t context = spank_context();
	enum mode mode;
	bool known;

	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
		return ESPANK_SUCCESS;
	/* The option is stronger than the variable. But inside the job the variable is stronger
	 * than the job's option, so that a script can set it for its steps. So the variable must
	 * not be passed on into the job. */
	if (explicit_option)
		unsetenv(WISH_VARIABLE);
	/* A step must not decide for its job: without PrologFlags=Alloc the prolog gets the first
	 * step's variables, and an `off` for that step would leave the others without a directory.
	 */
	if (context == S_CTX_LOCAL && getenv("SLURM_JOB_ID"))
		return ESPANK_SUCCESS;
	mode = join_components(find_mode(ac, av, &known));
	/* If the user asked for nothing and the default is off, the hooks are told nothing:
	 * otherwise a later `srun --nccl-inspector=prom` in this job would find no directory. */
	if (known)
		spank_job_control_setenv(spank, HOOKS_WORD, values_mode_name(mode), 1);
	return ESPANK_SUCCESS;
}

/* Returns a variable of the tasks. A value that is too long is cut; we neither set nor accept such
 * a value. */
static const char *get_task_variable(void *arg, const char *name)
{
	static char value[ENV_BUF_BYTES];
	spank_err_t rc;

	value[0] = '\0';
	rc = spank_getenv(arg, name, value, sizeof(value));
	value[sizeof(value) - 1] = '\0';
	return rc == ESPANK_SUCCESS || rc == ESPANK_NOSPACE ? value : NULL;
}

/* Returns what the job itself asks for; NULL if it asks for nothing. An empty variable asks for
 * nothing. A command with an option removes the variable. So if both are there, the variable was
 * set later, inside the job. */
static const char *find_wish(spank_t spank)
{
	const char *value = get_task_variable(spank, WISH_VARIABLE);

	if (value && *value)
		return value;
	if (option_given)
		return option_value;
	value = get_task_variable(spank, OPTION_VARIABLE);
	return value && *value ? value : NULL;
}

/* Says why there are no metrics: on stderr if the user asked for them, but only from the first
 * node; otherwise in slurmd's log. */
static void tell(bool asked, const struct taskenv_job *job, const char *text)
{
	if (asked && job->first_node)
		slurm_error(PREFIX "job %" PRIu32 ": no metrics: %s", job->id, text);
	else
		slurm_info(PREFIX "job %" PRIu32 ": no metrics: %s", job->id, text);
}

/* Whether the node is ready for this job; if not, `why` says the reason. */
static bool node_ready(const struct settings *settings, const struct taskenv_job *job, char *why)
{
	char path[TASKENV_PATH_BYTES];
	struct stat st;

	snprintf(path, sizeof(path), "%s/control/disabled", settings->run_dir);
	if (!stat(path, &st)) {
		snprintf(why, SETTINGS_WHY_BYTES, "disabled on this node");
		return false;
	}
	/* A directory of another user is left from an earlier job, and no prolog has run since. */
	taskenv_job_path(path, settings, job->id, TASKENV_RAW);
	if (!stat(path, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid())
		return true;
	snprintf(why, SETTINGS_WHY_BYTES,
	         "no directory %s (no prolog was run, or the job was submitted with off)", path);
	return false;
}

/* Whether the prolog wrote the manifest for this attempt of the job; `facts` gets its contents. */
static bool attempt_fits(spank_t spank, const struct settings *settings,
                         const struct taskenv_job *job, struct policy_job *facts, char *why)
{
	const char *restarts = get_task_variable(spank, "SLURM_RESTART_COUNT");
	char path[TASKENV_PATH_BYTES];

	taskenv_job_path(path, settings, job->id, "manifest");
	if (policy_read_manifest(facts, path)) {
		snprintf(why, SETTINGS_WHY_BYTES, "cannot read %s", path);
		return false;
	}
	if (!restarts || strtoull(restarts, NULL, 10) <= facts->restart)
		return true;
	snprintf(why, SETTINGS_WHY_BYTES, "%s is of an earlier attempt", path);
	return false;
}

/* Whether the site's default applies to this job. If not, that is normal and only worth a debug
 * message. */
static bool default_fits(spank_t spank, const struct settings *settings,
                         const struct taskenv_job *job, struct policy_job *facts)
{
	/* Slurm sets it for the tasks, too. A user may change it there, and may opt in or out. */
	const char *qos = *facts->qos ? NULL : get_task_variable(spank, "SLURM_JOB_QOS");
	const char *refusal;

	if (qos)
		snprintf(facts->qos, sizeof(facts->qos), "%s", qos);
	refusal = policy_refusal(settings, facts);
	if (refusal)
		slurm_debug(PREFIX "job %" PRIu32 ": no metrics: %s", job->id, refusal);
	return !refusal;
}

/* Fills `settings`; their mode is off if the job must run without metrics. */
static void decide(spank_t spank, int ac, char **av, const struct taskenv_job *job,
                   struct settings *settings)
{
	char wish[OPTIONS_MAX_BYTES + 2] = "", why[SETTINGS_WHY_BYTES];
	const char *found = find_wish(spank);
	struct policy_job facts;

	if (found) /* the next call of get_task_variable overwrites it */
		snprintf(wish, sizeof(wish), "%s", found);
	if (!options_load_site(settings, ac, av, why) &&
	    (!found || !options_parse(settings, wish, why))) {
		if (settings->mode == MODE_OFF)
			return;
		if (node_ready(settings, job, why) &&
		    attempt_fits(spank, settings, job, &facts, why)) {
			if (!found && !default_fits(spank, settings, job, &facts))
				settings->mode = MODE_OFF;
			return;
		}
	}
	tell(found != NULL, job, why);
	settings->mode = MODE_OFF;
}

static void apply(spank_t spank, const struct taskenv *plan, uint32_t job_id)
{
	char own[512] = "";
	size_t len = 0;
	bool failed = false;

	for (size_t i = 0; i < plan->changes; i++) {
		const struct taskenv_change *change = &plan->change[i];

		if (change->action == TASKENV_SET)
			failed |= spank_setenv(spank, change->name, change->value, 1) != 0;
		else if (change->action == TASKENV_UNSET)
			failed |= spank_unsetenv(spank, change->name) != 0;
		else if (len < sizeof(own))
			len += (size_t)snprintf(own + len, sizeof(own) - len, " %s", change->name);
	}
	if (*own)
		slurm_info(PREFIX "job %" PRIu32 ": the user's own variables win:%s%s", job_id, own,
		           plan->own_profiler ? " (nothing else is set)" : "");
	if (failed)
		slurm_info(PREFIX "job %" PRIu32 ": cannot change the environment", job_id);
}

/* Finds out where this step is in its job. If the job is not a task of an array, Slurm gives NO_VAL
 * as the task's number. */
static void find_place(spank_t spank, struct taskenv_job *job)
{
	uint32_t step = 0, node = 0, task = SLURM_NO_VAL;

	job->first_node = spank_get_item(spank, S_JOB_NODEID, &node) != ESPANK_SUCCESS || !node;
	job->batch_step = spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
	                  step == TASKENV_BATCH_STEP;
	job->step = step;
	if (spank_get_item(spank, S_JOB_ARRAY_ID, &job->array_id) == ESPANK_SUCCESS &&
	    spank_get_item(spank, S_JOB_ARRAY_TASK_ID, &task) == ESPANK_SUCCESS &&
	    task < SLURM_NO_VAL)
		job->array_task = task;
}

/* The step of this slurmstepd. Static, because the stack may be small, and because its tasks, which
 * are forked later, need it again. */
static struct settings step_settings;
static struct taskenv_job step_job;
static struct taskenv plan;

/* Runs in slurmstepd as the user, once for each step on each node, also for the batch step. */
int slurm_spank_user_init(spank_t spank, int ac, char **av)
{
	struct taskenv_job job = { .array_task = TASKENV_NO_ARRAY };
	const char *restarts;

	if (spank_remote(spank) != 1 || spank_get_item(spank, S_JOB_ID, &job.id) != ESPANK_SUCCESS)
		return ESPANK_SUCCESS;
	find_place(spank, &job);
	restarts = get_task_variable(spank, "SLURM_RESTART_COUNT");
	job.restart = restarts ? (uint32_t)strtoul(restarts, NULL, 10) : 0;
	decide(spank, ac, av, &job, &step_settings);
	taskenv_plan(&plan, &step_settings, &job, get_task_variable, spank);
	apply(spank, &plan, job.id);
	step_job = job;
	return ESPANK_SUCCESS;
}

/* Runs in each task as the user, before its program. The file of NCCL's log has the task's number
 * in its name, which is known only here. */
int slurm_spank_task_init(spank_t spank, int ac, char **av)
{
	(void)ac;
	(void)av;
	if (step_settings.mode == MODE_OFF || step_settings.debug == SETTINGS_LEVEL_OFF ||
	    spank_get_item(spank, S_TASK_GLOBAL_ID, &step_job.task) != ESPANK_SUCCESS)
		return ESPANK_SUCCESS;
	taskenv_plan(&plan, &step_settings, &step_job, get_task_variable, spank);
	for (size_t i = 0; i < plan.changes; i++)
		if (plan.change[i].action == TASKENV_SET)
			spank_setenv(spank, plan.change[i].name, plan.change[i].value, 1);
	return ESPANK_SUCCESS;
}

/* Runs in slurmstepd as root, after each task of a step. A task that ended well tells nothing. */
int slurm_spank_task_exit(spank_t spank, int ac, char **av)
{
	struct task_end end = { .job = step_job.id, .step = step_job.step };

	(void)ac;
	(void)av;
	if (step_settings.mode == MODE_OFF || spank_remote(spank) != 1 ||
	    (step_job.step > TASK_END_STEP_MAX && step_job.step != TASKENV_BATCH_STEP))
		return ESPANK_SUCCESS;
	if (spank_get_item(spank, S_TASK_EXIT_STATUS, &end.status) != ESPANK_SUCCESS ||
	    !end.status || spank_get_item(spank, S_TASK_PID, &end.pid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_GLOBAL_ID, &end.task) != ESPANK_SUCCESS)
		return ESPANK_SUCCESS;
	task_end_keep(step_settings.run_dir, &end);
	return ESPANK_SUCCESS;
}
