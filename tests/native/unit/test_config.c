/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin's environment. */
#include <string.h>

#include "base/printable.h"
#include "config.h"
#include "tap.h"

static const char *names[8], *values[8];

static const char *fake_getenv(const char *name)
{
	for (int i = 0; i < 8; i++)
		if (names[i] && !strcmp(names[i], name))
			return values[i];
	return NULL;
}

/* Stays set for later loads. */
static void set(const char *name, const char *value)
{
	static int next = 1;

	names[next] = name;
	values[next] = value;
	next = next % 7 + 1;
}

static void unset(void)
{
	memset(names, 0, sizeof(names));
}

static void load_into(struct config *config, const char *name, const char *value)
{
	names[0] = name;
	values[0] = value;
	config_load(config, fake_getenv);
}

static struct config load(const char *name, const char *value)
{
	struct config config;

	load_into(&config, name, value);
	return config;
}

static void test_interval(void)
{
	static const struct {
		const char *value;
		int64_t interval_us;
	} cases[] = {
		{ NULL, 0 },
		{ "", 0 },
		{ "x", 0 },
		{ "-1", 0 },
		{ "0", 30000000 },
		{ "1", 100000 },
		{ "2000000", 2000000 },
		{ "99999999999999", 3600000000ll },
		{ "1e6", 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		ok(load("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", cases[i].value)
		           .interval_us == cases[i].interval_us,
		   "interval of %s", cases[i].value ? cases[i].value : "(unset)");
}

static void test_json_interval(void)
{
	ok(load("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "0").json_interval_us == 100000,
	   "continuous lines are lines every 100 ms");
	ok(load("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "2000000").json_interval_us ==
	       2000000,
	   "lines have the interval of the metrics");
	ok(load("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", NULL).json_interval_us == 0,
	   "without an interval lines come at the end");
	set("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "1000000");
	ok(load("NCCL_INSPECTOR_DUMP_THREAD_ENABLE", "0").json_interval_us == 0,
	   "without the thread, too");
	unset();
}

static void test_json_mode(void)
{
	struct config config;

	ok(load("NONE", NULL).json, "NVIDIA's variables: lines unless metrics are asked for");
	ok(!load("NCCL_INSPECTOR_PROM_DUMP", "1").json, "metrics instead of lines");
	set("NCCL_INSPECTOR_PROM_DUMP", "1");
	config = load("NCCL_INSPECTOR_JSON", "1");
	ok(config.json && config.prom, "and both");
	unset();
	ok(!load("NCCL_INSPECTOR_RUN_DIR", "/run/x").json,
	   "in Slurm's directory no lines by themselves");
	set("NCCL_INSPECTOR_RUN_DIR", "/run/x");
	config = load("NCCL_INSPECTOR_JSON", "1");
	ok(config.json && !config.prom && !config.make_dir && !strcmp(config.dir, "/run/x") &&
	       !strcmp(config.json_dir, "nccl-inspector-unknown-jobid"),
	   "the box in Slurm's directory, the lines in the user's");
	set("NCCL_INSPECTOR_DUMP_DIR", "/home/x/lines");
	ok(!strcmp(load("SLURM_JOBID", "7").json_dir, "/home/x/lines"), "which he can name");
	unset();
	ok(!strcmp(load("SLURM_JOBID", "7").json_dir, "nccl-inspector-7"),
	   "or which has the job's number");
	ok(!load("NCCL_INSPECTOR_JSON", "yes").verbose &&
	       load("NCCL_INSPECTOR_DUMP_VERBOSE", "1").verbose,
	   "events are asked for");
	set("NCCL_INSPECTOR_RUN_DIR", "/run/x");
	ok(!load("NCCL_INSPECTOR_DUMP_VERBOSE", "1").verbose, "and cost nothing without lines");
	unset();
}

static void test_json_limits(void)
{
	static const struct {
		const char *value;
		uint64_t bytes;
		unsigned files;
	} cases[] = {
		{ NULL, 256u << 20, 2 },
		{ "", 256u << 20, 2 },
		{ "all", 256u << 20, 2 },
		{ "-1", 32u << 10, 1 },
		{ "0", 32u << 10, 1 },
		{ "3", 32u << 10, 3 },
		{ "16777216", 16u << 20, 8 },
		{ "9223372036854775807", 1ull << 50, 8 },
		{ "99999999999999999999", 256u << 20, 2 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const char *value = cases[i].value;

		ok(load("NCCL_INSPECTOR_JSON_MAX_BYTES", value).json_max_bytes == cases[i].bytes,
		   "bytes of %s", value ? value : "(unset)");
		ok(load("NCCL_INSPECTOR_JSON_FILES", value).json_files == cases[i].files,
		   "files of %s", value ? value : "(unset)");
	}
	set("NCCL_INSPECTOR_JSON_MAX_BYTES", NULL);
	ok(load("NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES", NULL).json_min_bytes == 0,
	   "lines of all sizes");
	set("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "4096");
	ok(load("NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES", NULL).json_min_bytes == 4096,
	   "as NVIDIA's variable says, if it is the only one");
	ok(load("NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES", "100").json_min_bytes == 100,
	   "as their own says");
	ok(load("NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES", "-1").json_min_bytes == 4096,
	   "a wrong one counts as not set");
	set("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", NULL);
	set("NCCL_INSPECTOR_JSON_MAX_BYTES", "65536");
	ok(load("NCCL_INSPECTOR_JSON_FILES", "8").json_files == 2,
	   "every file has room for a line");
	unset();
}

static void test_arrays(void)
{
	static const char *const bad[] = {
		NULL,     "",       "810", "810_",           "_3",
		"810_3x", "810_-1", "x_3", "810_4294967295", "99999999999999999999999_3"
	};
	struct config config = load("NCCL_INSPECTOR_ARRAY_TASK", "810_3");

	ok(config.array_job_id == 810 && config.array_task_id == 3, "a task of an array");
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		config = load("NCCL_INSPECTOR_ARRAY_TASK", bad[i]);
		ok(config.array_job_id == CONFIG_UNKNOWN && config.array_task_id == CONFIG_UNKNOWN,
		   "no array: %s", bad[i] ? bad[i] : "(unset)");
	}
}

static void test_defaults(void)
{
	struct config config = load("NONE", "");

	ok(!config.enabled && !config.prom && config.p2p && config.min_bytes == 8192,
	   "without a word nothing is measured");
	ok(config.make_dir && !strcmp(config.dir, "nccl-inspector-unknown-jobid"),
	   "without a directory NVIDIA's name is used");
	ok(!strcmp(config.job, "unknown") && !strcmp(config.step, "x") && config.node[0],
	   "outside Slurm the labels say so");
	ok(!load("NCCL_INSPECTOR_ENABLE", "yes").enabled &&
	       load("NCCL_INSPECTOR_ENABLE", "1").enabled,
	   "only 1 enables");
	config = load("NCCL_INSPECTOR_RUN_DIR", "/run/x");
	ok(!config.make_dir && !strcmp(config.dir, "/run/x"),
	   "Slurm's directory is used and not made");
	ok(load("SLURM_JOB_ID", "-7").job_id == 0, "a negative job id is none");
	ok(load("SLURM_STEP_ID", "4294967295").step_id == CONFIG_UNKNOWN,
	   "a step id out of range is none");
}

static void test_control_dir(void)
{
	static const struct {
		const char *run, *control;
	} cases[] = {
		{ "/run/nccl-inspector/jobs/4711/raw", "/run/nccl-inspector/control" },
		{ "/jobs/4711/raw", "/control" },
		{ "/run/x/jobs/4711/raw/", "" },
		{ "/run/x/jobs//raw", "" },
		{ "/run/x/jobs/4711a/raw", "" },
		{ "/run/x/bobs/4711/raw", "" },
		{ "jobs/4711/raw", "" },
		{ "/raw", "" },
		{ "raw", "" },
		{ "", "" },
		{ NULL, "" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		ok(!strcmp(load("NCCL_INSPECTOR_RUN_DIR", cases[i].run).control_dir,
		           cases[i].control),
		   "the kill switch beside %s", cases[i].run ? cases[i].run : "(unset)");
	set("NCCL_INSPECTOR_CONTROL_DIR", "/c");
	ok(!strcmp(load("NCCL_INSPECTOR_RUN_DIR", cases[0].run).control_dir, "/c"),
	   "or where it is said to be");
	unset();
	set("NCCL_INSPECTOR_DUMP_DIR", cases[0].run);
	ok(!*load("NONE", NULL).control_dir, "a user's own directory has none");
	unset();
}

static void test_budget(void)
{
	static const struct {
		const char *percent;
		uint32_t ppm;
	} cases[] = {
		{ NULL, 10000 },    { "", 10000 },       { "1", 10000 },
		{ "1.000", 10000 }, { "0.5", 5000 },     { "0", 0 },
		{ "0.000", 0 },     { "0.0000001", 1 },  { "100", 1000000 },
		{ "100.1", 10000 }, { "2.", 20000 },     { ".5", 10000 },
		{ "-1", 10000 },    { "1,5", 10000 },    { "nan", 10000 },
		{ "1e2", 10000 },   { "0.12349", 1234 }, { "99999999999999999999", 10000 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		ok(load("NCCL_INSPECTOR_BUDGET_PERCENT", cases[i].percent).budget_ppm ==
		       cases[i].ppm,
		   "budget of %s", cases[i].percent ? cases[i].percent : "(unset)");
}

static void test_text(void)
{
	char text[8];

	printable_copy(text, sizeof(text), "a\nb\xc3\xa9\x7f");
	ok(!strcmp(text, "a?b???"), "control characters and bytes beyond ASCII are replaced (%s)",
	   text);
	printable_copy(text, sizeof(text), "0123456789");
	ok(!strcmp(text, "0123456"), "long text is cut");
	printable_copy(text, sizeof(text), NULL);
	ok(!*text, "no text is empty text");
}

static void test_nodelist(void)
{
	char list[4096] = "", cut[CONFIG_NODELIST_BYTES + 1];

	config_cut_nodelist(cut, "n[1-4]");
	ok(!strcmp(cut, "n[1-4]"), "a short node list stays");
	memset(list, 'a', 1000);
	config_cut_nodelist(cut, list); /* leaves something on the stack */
	config_cut_nodelist(cut, "n1");
	ok(!memcmp(cut, (char[sizeof(cut)]){ "n1" }, sizeof(cut)), "nothing stands behind it");
	list[0] = '\0';
	for (int i = 0; i < 100; i++)
		snprintf(list + strlen(list), 24, "%snode%03d", i ? "," : "", i);
	config_cut_nodelist(cut, list);
	ok(strlen(cut) <= CONFIG_NODELIST_BYTES && !strncmp(cut, list, 200) && strstr(cut, ",+"),
	   "a long one is cut at a comma (%zu bytes, ...%s)", strlen(cut), strrchr(cut, ','));
	unsigned named = 1, left_out = 0;

	for (const char *c = cut; *c; c++)
		named += *c == ',';
	sscanf(strrchr(cut, ','), ",+%u", &left_out);
	ok(named - 1 + left_out == 100, "what is left out is counted (%u + %u)", named - 1,
	   left_out);
	memset(list, 'a', 1000);
	list[1000] = '\0';
	config_cut_nodelist(cut, list);
	ok(strlen(cut) <= CONFIG_NODELIST_BYTES, "one name too long is cut anyway");
}

/* A wrong one is as good as none, and is named. */
static void test_refused(void)
{
	static const struct {
		const char *name, *wrong;
	} cases[] = {
		{ "NCCL_INSPECTOR_ENABLE", "yes" },
		{ "NCCL_INSPECTOR_PROM_DUMP", "2" },
		{ "NCCL_INSPECTOR_ENABLE_P2P", "-1" },
		{ "NCCL_INSPECTOR_PHASES", "1 " },
		{ "NCCL_INSPECTOR_NET", "ON" },
		{ "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "-4" },
		{ "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "30s" },
		{ "NCCL_INSPECTOR_DUMP_THREAD_ENABLE", "99999999999999999999" },
		{ "NCCL_INSPECTOR_JSON", "all" },
		{ "NCCL_INSPECTOR_JSON_GZIP", "9" },
		{ "NCCL_INSPECTOR_DUMP_VERBOSE", "3" },
		{ "NCCL_INSPECTOR_JSON_MAX_BYTES", "1G" },
		{ "NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES", "8K" },
		{ "NCCL_INSPECTOR_JSON_FILES", "two" },
		{ "NCCL_INSPECTOR_BUDGET_PERCENT", "-1" },
		{ "NCCL_INSPECTOR_BUDGET_PERCENT", "101" },
		{ "NCCL_INSPECTOR_ARRAY_TASK", "810" },
		{ "SLURM_JOB_ID", "x" },
		{ "SLURM_STEP_ID", "batch" },
	};
	static char long_text[5000];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		/* Compared byte by byte, so never assigned: a copy need not have the padding. */
		static struct config none, wrong;

		load_into(&none, cases[i].name, NULL);
		load_into(&wrong, cases[i].name, cases[i].wrong);
		ok(!*none.refused && !strcmp(wrong.refused, cases[i].name), "%s=%s is refused",
		   cases[i].name, cases[i].wrong);
		memset(wrong.refused, 0, sizeof(wrong.refused));
		ok(!memcmp(&none, &wrong, sizeof(none)), "and changes nothing");
	}
	memset(long_text, 'x', sizeof(long_text) - 1);
	ok(*load("NCCL_INSPECTOR_RUN_DIR", long_text).refused &&
	       load("NCCL_INSPECTOR_RUN_DIR", long_text).make_dir,
	   "a path that would have to be cut is not another path");
	ok(!*load("NCCL_INSPECTOR_DENY_NCCL", long_text).deny_nccl, "nor is a list another list");
	ok(!strcmp(load("NCCL_INSPECTOR_RUN_DIR", long_text).refused, "NCCL_INSPECTOR_RUN_DIR") &&
	       !strcmp(load("NCCL_INSPECTOR_DENY_NCCL", long_text).refused,
	               "NCCL_INSPECTOR_DENY_NCCL"),
	   "and both are named");
	set("NCCL_INSPECTOR_JSON", "x");
	ok(!strcmp(load("NCCL_INSPECTOR_NET", "x").refused,
	           "NCCL_INSPECTOR_NET, NCCL_INSPECTOR_JSON"),
	   "all are named");
	unset();
}

int main(void)
{
	test_interval();
	test_json_interval();
	test_json_mode();
	test_json_limits();
	test_arrays();
	test_defaults();
	test_control_dir();
	test_budget();
	test_text();
	test_nodelist();
	test_refused();
	return done_testing();
}
