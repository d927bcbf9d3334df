// SPDX-License-Identifier: Apache-2.0
/* Every value a site can write, bad ones first; then whole files. */
#include "deny_nccl.h"
#include "settings.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALL_SCOPES (SETTING_SCOPE_SITE | SETTING_SCOPE_OPTION | SETTING_SCOPE_AGENT)

static void test_bad_values(void)
{
	static const char *const cases[][2] = {
		{ "interval", "" },
		{ "interval", "-3" },
		{ "interval", "+3" },
		{ "interval", " 3" },
		{ "interval", "3 s" },
		{ "interval", "0" },
		{ "interval", "99ms" },
		{ "interval", "61m" },
		{ "interval", "3601" },
		{ "interval", "1d" },
		{ "interval", "1." },
		{ "interval", ".5" },
		{ "interval", "0x10" },
		{ "interval", "1e3" },
		{ "interval", "inf" },
		{ "interval", "5124095577h" }, /* wraps to a good one in 64 bits */
		{ "interval", "99999999999999999999999" },
		{ "min_size", "1.5K" },
		{ "min_size", "1KB" },
		{ "min_size", "1k" },
		{ "min_size", "2T" },
		{ "min_size", "16777216T" }, /* 2^64 */
		{ "p2p", "2" },
		{ "p2p", "yes" },
		{ "p2p", "01" },
		{ "default", "PROM" },
		{ "default", "json+prom" },
		{ "json_max", "1023K" },
		{ "json_max", "1025G" },
		{ "dir", "a\nb" },
		{ "dir", "\x7f" },
		{ "net", "1" },
		{ "net", "" },
		{ "budget", "-1" },
		{ "budget", "100.001" },
		{ "budget", "1%" },
		{ "budget", "1." },
		{ "deny_nccl", "2.28" },
		{ "deny_nccl", "2.28.1." },
		{ "deny_nccl", "2.28.1.2" },
		{ "deny_nccl", "2.28.1," },
		{ "deny_nccl", ",2.28.1" },
		{ "deny_nccl", "2.28.1-" },
		{ "deny_nccl", "-2.28.1" },
		{ "deny_nccl", "2.28.1-2.28.3-2.28.5" },
		{ "deny_nccl", "2.28.2-2.28.1" },
		{ "deny_nccl", "2.28.1 2.28.2" },
		{ "deny_nccl", "2.28.100" },
		{ "deny_nccl", "recommended," },
		{ "deny_nccl", "recommend" },
		{ "deny_nccl", "recommended2.28.1" },
		{ "deny_nccl", "all" },
		{ "default", "" },
		{ "profiler", "" },
		{ "profiler", "relative.so" },
		{ "profiler", "library" },
		{ "profiler", "lib.so" },
		{ "profiler", "lib/inspector.so" },
		{ "profiler", "libinspector\n.so" },
		{ "run_dir", "/a\nb" },
		{ "cluster", "two words" },
		{ "Interval", "3" },
		{ "", "3" },
		{ "no_such_key", "3" },
	};
	struct settings before, after;
	char why[SETTINGS_WHY_BYTES];

	settings_init(&before);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int rc;

		after = before;
		why[0] = '\0';
		rc = settings_set(&after, ALL_SCOPES, cases[i][0], cases[i][1], why);
		ok(rc == -EINVAL && *why && !strchr(why, '\n') &&
		       !memcmp(&before, &after, sizeof(before)),
		   "%s=`%.30s' is refused: %s", *cases[i][0] ? cases[i][0] : "(empty)",
		   strchr(cases[i][1], '\n') ? "(newline)" : cases[i][1], why);
	}
}

static void test_good_values(void)
{
	static const struct {
		const char *name;
		const char *value;
		uint64_t want;
	} cases[] = {
		{ "interval", "100ms", 100000 },
		{ "interval", "1", 1000000 },
		{ "interval", "0.25", 250000 },
		{ "interval", "1.5m", 90000000 },
		{ "interval", "2s", 2000000 },
		{ "interval", "1h", 3600000000 },
		{ "interval", "3600.000000s", 3600000000 },
		{ "p2p", "0", 0 },
		{ "p2p", "1", 1 },
		{ "min_size", "0", 0 },
		{ "min_size", "8K", 8192 },
		{ "min_size", "1T", 1ull << 40 },
	};
	struct settings s;
	char why[SETTINGS_WHY_BYTES];

	settings_init(&s);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const char *name = cases[i].name;
		int rc = settings_set(&s, SETTING_SCOPE_OPTION, name, cases[i].value, why);
		uint64_t got = !strcmp(name, "interval") ? s.interval_us
		               : !strcmp(name, "p2p")    ? s.p2p
		                                         : s.min_size_bytes;

		ok(!rc && got == cases[i].want, "%s=%s", name, cases[i].value);
	}
}

static void test_site_values(void)
{
	static const char *const denied[] = { "", "2.28.1", "2.28.10-2.28.12",
	                                      "2.9.0-2.27.99,3.0.0" };
	static const struct {
		const char *value;
		uint64_t want;
	} budgets[] = { { "0", 0 }, { "0.25", 250 }, { "1", 1000 }, { "100.0", 100000 } };
	struct settings s;
	char why[SETTINGS_WHY_BYTES];

	settings_init(&s);
	for (size_t i = 0; i < sizeof(denied) / sizeof(*denied); i++)
		ok(!settings_set(&s, SETTING_SCOPE_SITE, "deny_nccl", denied[i], why) &&
		       !strcmp(s.deny_nccl, denied[i]),
		   "deny_nccl=%s", denied[i]);
	ok(!settings_set(&s, SETTING_SCOPE_SITE, "deny_nccl", "2.28.1,recommended,2.29.0-2.29.2",
	                 why) &&
	       !strcmp(s.deny_nccl, "2.28.1," DENY_NCCL_RECOMMENDED ",2.29.0-2.29.2"),
	   "deny_nccl=%s", s.deny_nccl);
	for (size_t i = 0; i < sizeof(budgets) / sizeof(*budgets); i++)
		ok(!settings_set(&s, SETTING_SCOPE_SITE, "budget", budgets[i].value, why) &&
		       s.budget_millipercent == budgets[i].want,
		   "budget=%s", budgets[i].value);
	ok(!settings_set(&s, SETTING_SCOPE_SITE, "default", "prom+json", why) &&
	       s.mode == MODE_PROM_JSON,
	   "a site's default may have JSON lines");
}

static void test_table(void)
{
	struct settings zero, s;
	char why[SETTINGS_WHY_BYTES], longest[SETTINGS_TEXT_BYTES + 1];

	settings_init(&s);
	ok(s.mode == MODE_OFF && s.interval_us == 30000000 && s.p2p == 1 &&
	       s.min_size_bytes == 8192 && s.profiler[0] == '/' &&
	       !strcmp(s.run_dir, "/run/nccl-inspector"),
	   "the table's defaults are in force");
	for (const struct setting *t = settings_table; t->name; t++) {
		memset(&zero, 0, sizeof(zero));
		ok(!settings_set(&zero, ALL_SCOPES, t->name, t->initial, why),
		   "the default of %s is a good value", t->name);
		/* Some defaults are nothing: with those a lost value would not show. */
		if (!*t->initial || !strcmp(t->initial, "0"))
			settings_set(&zero, ALL_SCOPES, t->name,
			             t->type == SETTING_TYPE_BOOL       ? "1"
			             : t->type == SETTING_TYPE_VERSIONS ? "2.28.1"
			                                                : "7",
			             why);
		if (t->type == SETTING_TYPE_SWITCH)
			settings_set(&zero, ALL_SCOPES, t->name, "on", why);
		if (t->type == SETTING_TYPE_LEVEL)
			settings_set(&zero, ALL_SCOPES, t->name, "info", why);
		ok((t->scope & SETTING_SCOPE_AGENT) || !strcmp(t->name, "default") ||
		       memcmp(&zero, &(struct settings){ 0 }, sizeof(zero)) != 0,
		   "the value of %s is kept, or the agent's", t->name);
	}
	ok(settings_set(&s, SETTING_SCOPE_OPTION, "run_dir", "/tmp", why) == -EINVAL,
	   "a setting of another scope is unknown: %s", why);
	memset(longest, 'a', sizeof(longest));
	longest[0] = '/';
	longest[SETTINGS_TEXT_BYTES] = '\0';
	ok(settings_set(&s, ALL_SCOPES, "run_dir", longest, why) == -EINVAL,
	   "a path that does not fit is refused");
	longest[SETTINGS_TEXT_BYTES - 1] = '\0';
	ok(!settings_set(&s, ALL_SCOPES, "run_dir", longest, why) && !strcmp(s.run_dir, longest),
	   "the longest path that fits is whole");
}

static void test_quote(void)
{
	char out[SETTINGS_QUOTE_BYTES], text[200];

	settings_quote(out, "a\x1b[2J\n\xc3\xa9");
	ok(!strcmp(out, "\"a?[2J???\""), "escape codes and bytes that do not print: %s", out);
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	settings_quote(out, text);
	ok(strlen(out) == SETTINGS_QUOTE_BYTES - 1 && strstr(out, "...\""), "long: %s", out);
}

static void test_text(void)
{
	static const struct {
		const char *text;
		size_t bytes; /* 0: up to the NUL */
		const char *why;
	} cases[] = {
		{ "interval = -3\n", 0, "f:1: interval=\"-3\" is not" },
		{ "\n# ok\np2p=1\nbogus = 1", 0, "f:4: unknown key \"bogus\"" },
		{ "p2p=1\n\n p2p = 0", 0, "f:3: p2p is set in line 1 already" },
		{ "p2p # = 1\n", 0, "f:1: \"p2p\" is not `key = value'" },
		{ "bogus=1\nbogus=1\n", 0, "f:1: unknown key \"bogus\"" },
		{ "p2p\n", 0, "f:1: \"p2p\" is not `key = value'" },
		{ "= 3\n", 0, "f:1: unknown key \"\"" },
		{ "p2p = \n", 0, "f:1: p2p=\"\" is not" },
		{ "p2p = 1\0\n", 9, "f:1: a control character" },
		{ "\177ELF\2\1\1", 0, "f:1: a control character" },
		{ "agent_interval = 1ms\n", 0, "f:1: agent_interval=\"1ms\"" },
		{ "", 0, NULL },
		{ "\n\n  \t\n", 0, NULL },
		{ "# gr\xc3\xbc\xc3\x9f\n\tinterval\t=\t2s \r\n", 0, NULL },
		{ "interval = 3 # seconds\n #p2p = 7", 0, NULL },
		{ "cluster =\nnode_name = n1", 0, NULL },
	};
	char why[SETTINGS_WHY_BYTES], line[SETTINGS_LINE_MAX_BYTES + 2];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const char *text = cases[i].text, *want = cases[i].why;
		size_t bytes = cases[i].bytes ? cases[i].bytes : strlen(text);
		struct settings before, s;
		int rc;

		settings_init(&before);
		s = before;
		why[0] = '\0';
		rc = settings_parse_text(&s, "f", text, bytes, why);
		ok(want ? rc == -EINVAL && !strncmp(why, want, strlen(want)) &&
		              !memcmp(&s, &before, sizeof(s))
		        : !rc,
		   "text %zu: %s", i, want ? why : "accepted");
	}
	memset(line, '#', sizeof(line));
	ok(settings_parse_text(&(struct settings){ 0 }, "f", line, sizeof(line), why) == -EINVAL,
	   "%s", why);
}

static void test_file(void)
{
	char dir[] = "/tmp/test_settings.XXXXXX", path[64], why[SETTINGS_WHY_BYTES];
	struct settings s;
	int fd;

	settings_init(&s);
	if (!ok(mkdtemp(dir) != NULL, "a scratch directory"))
		return;
	snprintf(path, sizeof(path), "%s/conf", dir);
	ok(!settings_read_file(&s, path, why), "a missing file is empty");
	ok(settings_read_file(&s, dir, why) == -EISDIR, "a directory: %s", why);
	ok(!mkfifo(path, 0600) && settings_read_file(&s, path, why) == -ENOTSUP,
	   "a FIFO does not block: %s", why);
	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	ok(fd >= 0 && write(fd, "interval=7\n", 11) == 11 && !settings_read_file(&s, path, why) &&
	       s.interval_us == 7000000,
	   "a file is read");
	ok(!ftruncate(fd, 1 << 30) && settings_read_file(&s, path, why) == -EFBIG,
	   "a file of 1 GiB: %s", why);
	close(fd);
	unlink(path);
	ok(!symlink(path, path) && settings_read_file(&s, path, why) == -ELOOP,
	   "a link to itself: %s", why);
	unlink(path);
	rmdir(dir);
}

int main(void)
{
	test_bad_values();
	test_good_values();
	test_site_values();
	test_table();
	test_quote();
	test_text();
	test_file();
	return done_testing();
}
