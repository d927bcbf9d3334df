// SPDX-License-Identifier: Apache-2.0
/* What a user can write behind --nccl-inspector=, and a site in plugstack.conf; bad input first. */
#include "options.h"
#include "tap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_one_clean_line(const char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			return false;
	return true;
}

static void test_refusals(void)
{
	static const char *const cases[][2] = {
		/* value, what the reason says */
		{ "", "unknown mode \"\"; modes: prom, json, prom+json, report, off" },
		{ "bogus", "unknown mode \"bogus\"; modes: prom, json, prom+json, report, off" },
		{ "Prom", "unknown mode \"Prom\"" },
		{ " prom", "unknown mode" },
		{ "prom=1", "unknown mode \"prom=1\"" },
		{ "interval=3", "unknown mode" },
		{ "json+prom", "unknown mode \"json+prom\"; modes: prom, json, prom+json, report" },
		{ "prom json", "unknown mode \"prom json\"" },
		{ "prom,", "unknown key \"\"; keys: interval, p2p, min_size, verbose, dir" },
		{ "prom,,p2p", "unknown key \"\"" },
		{ "prom,=3", "unknown key \"\"" },
		{ "prom,color=red",
		  "unknown key \"color\"; keys: interval, p2p, min_size, verbose, dir" },
		{ "prom,run_dir=/tmp", "unknown key \"run_dir\"" },
		{ "prom,profiler=/tmp/x.so", "unknown key \"profiler\"" },
		{ "prom,default=off", "unknown key \"default\"" },
		{ "prom,interval=-3", "interval=\"-3\" is not a number with ms, s, m or h, from "
		                      "100ms to 1h; keys: interval, p2p, min_size, verbose, dir" },
		{ "prom,interval=", "interval=\"\" is not" },
		{ "prom,interval=1=2", "interval=\"1=2\" is not" },
		{ "prom,p2p=2", "p2p=\"2\" is not 0 or 1; keys:" },
		{ "prom,min_size=lots", "min_size=\"lots\" is not bytes, with K, M, G or T" },
		{ "json,verbose=yes", "verbose=\"yes\" is not 0 or 1; keys:" },
		{ "json,dir", "dir needs a value: dir=...; keys: interval" },
		{ "json,dir=a\nb", "dir=\"a?b\" is not a path without control characters" },
		{ "json,json_max",
		  "json_max=\"1\" is not bytes, with K, M, G or T, from 1M to 1T" },
		{ "prom,net", "net=\"1\" is not off, auto or on; keys:" },
		{ "prom,debug=trace", "debug=\"trace\" is not off, warn or info; keys:" },
		{ "prom,debug=1", "debug=\"1\" is not off, warn or info; keys:" },
		{ "prom,budget=0", "unknown key \"budget\"" },
		{ "prom,deny_nccl=2.28.1", "unknown key \"deny_nccl\"" },
		{ "off,bogus", "unknown key \"bogus\"" },
		{ "prom\n", "unknown mode \"prom?\"" },
		{ "prom,interval=2\x1b[31m", "interval=\"2?[31m\" is not" },
		{ "\xff\xfe", "unknown mode \"??\"" },
	};
	struct settings before, after;
	char why[SETTINGS_WHY_BYTES];

	settings_init(&before);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		after = before;
		why[0] = '\0';
		ok(options_parse(&after, cases[i][0], why) == -EINVAL &&
		       !strncmp(why, cases[i][1], strlen(cases[i][1])) && is_one_clean_line(why) &&
		       !memcmp(&before, &after, sizeof(before)),
		   "refused: %s", why);
	}
}

static void test_long_values(void)
{
	char value[10 * 1024 + 1], why[SETTINGS_WHY_BYTES];
	struct settings s;

	settings_init(&s);
	memset(value, 'a', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	ok(options_parse(&s, value, why) == -EINVAL && strstr(why, "modes: prom"), "10 kB: %s",
	   why);
	value[OPTIONS_MAX_BYTES] = '\0';
	ok(options_parse(&s, value, why) == -EINVAL && strstr(why, "...\""), "1 kB is cut: %s",
	   why);
	memset(value, 0, sizeof(value));
	strcpy(value, "prom");
	while (strlen(value) + 4 <= OPTIONS_MAX_BYTES)
		strcat(value, ",p2p");
	ok(!options_parse(&s, value, why), "the longest good value has %zu bytes", strlen(value));
}

static void test_good_values(void)
{
	static const struct {
		const char *value;
		enum mode mode;
		uint64_t interval_us;
		uint64_t p2p;
		uint64_t min_size_bytes;
	} cases[] = {
		{ "prom", MODE_PROM, 30000000, 0, 8192 },
		{ "report", MODE_REPORT, 30000000, 0, 8192 },
		{ "off", MODE_OFF, 30000000, 0, 8192 },
		{ "prom,p2p", MODE_PROM, 30000000, 1, 8192 },
		{ "prom,interval=500ms,min_size=1M", MODE_PROM, 500000, 0, 1 << 20 },
		{ "report,p2p=1,interval=1m", MODE_REPORT, 60000000, 1, 8192 },
		{ "prom,interval=1,interval=2", MODE_PROM, 2000000, 0, 8192 },
	};
	char why[SETTINGS_WHY_BYTES];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct settings s;

		settings_init(&s);
		s.p2p = 0; /* as a site may have it: missing keys come from there */
		ok(!options_parse(&s, cases[i].value, why) && s.mode == cases[i].mode &&
		       s.interval_us == cases[i].interval_us && s.p2p == cases[i].p2p &&
		       s.min_size_bytes == cases[i].min_size_bytes,
		   "%s", cases[i].value);
	}
}

static void test_json_keys(void)
{
	char why[SETTINGS_WHY_BYTES];
	struct settings s;

	settings_init(&s);
	ok(s.json_max_bytes == 256 << 20 && !*s.dir && !s.verbose && !s.gzip &&
	       s.net == SETTINGS_OFF,
	   "what nobody says about JSON lines");
	ok(!options_parse(&s, "json,dir=/scratch/a b=c,verbose,gzip,json_max=1G,net=auto", why) &&
	       s.mode == MODE_JSON && !strcmp(s.dir, "/scratch/a b=c") && s.verbose && s.gzip &&
	       s.json_max_bytes == 1 << 30 && s.net == SETTINGS_AUTO,
	   "every key of JSON lines");
	ok(!options_parse(&s, "prom+json,dir=,gzip=0,phases", why) && s.mode == MODE_PROM_JSON &&
	       !*s.dir && !s.gzip && s.phases,
	   "a directory of the site's can be taken back");
}

static void test_bad_words(void)
{
	static char *const cases[] = {
		(char *)"default=bogus", (char *)"default",
		(char *)"interval=0",    (char *)"",
		(char *)"conf",          (char *)"=",
		(char *)"color=red",     (char *)"agent_interval=1s",
	};
	struct settings table, s;
	char why[SETTINGS_WHY_BYTES];

	settings_init(&table);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *const words[] = { (char *)"conf=/nonexistent/conf", (char *)"default=prom",
		                        cases[i] };

		ok(options_load_site(&s, 3, words, why) == -EINVAL &&
		       !strncmp(why, "plugstack.conf: ", 16) && !memcmp(&s, &table, sizeof(s)),
		   "%s", why);
	}
}

static void test_site(void)
{
	char path[] = "/tmp/test_options.XXXXXX", conf[64], why[SETTINGS_WHY_BYTES];
	char *words[] = { (char *)"p2p=0", conf, (char *)"interval=9s" };
	static const char text[] = "default = prom\ninterval = 7s\np2p = 1\nmin_size = 4K\n";
	struct settings s;
	int fd = mkstemp(path);

	snprintf(conf, sizeof(conf), "conf=%s", path);
	ok(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "a scratch file");
	ok(!options_load_site(&s, 3, words, why) && s.mode == MODE_PROM && s.p2p == 0 &&
	       s.interval_us == 9000000 && s.min_size_bytes == 4096,
	   "words override the file, whatever their order");
	ok(!options_parse(&s, "report,interval=1", why) && s.mode == MODE_REPORT &&
	       s.interval_us == 1000000 && s.min_size_bytes == 4096,
	   "the job's keys override the site's, the others stay");
	ok(fd >= 0 && write(fd, "oops\n", 5) == 5 &&
	       options_load_site(&s, 3, words, why) == -EINVAL && strstr(why, ":5: ") &&
	       !strncmp(why, path, strlen(path)),
	   "a broken file is named with its line: %s", why);
	close(fd);
	unlink(path);
	ok(!options_load_site(&s, 3, words, why) && s.mode == MODE_OFF && s.p2p == 0,
	   "a missing file is empty");
}

int main(void)
{
	test_refusals();
	test_long_values();
	test_good_values();
	test_json_keys();
	test_bad_words();
	test_site();
	return done_testing();
}
