/* SPDX-License-Identifier: Apache-2.0 */
/* The site's list of versions and its kill switch. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ask/deny.h"
#include "ask/killswitch.h"
#include "switch_file.h"
#include "tap.h"

static void test_versions(void)
{
	static const struct {
		const char *list, *bad;
		uint32_t version;
		bool listed;
	} cases[] = {
		{ "2.28.0-2.28.5,2.31.2", "", 22800, true },
		{ "2.28.0-2.28.5,2.31.2", "", 22805, true },
		{ "2.28.0-2.28.5,2.31.2", "", 22806, false },
		{ "2.28.0-2.28.5,2.31.2", "", 23102, true },
		{ "2.28.0-2.28.5,2.31.2", "", 23103, false },
		{ " 2.31.2 , 2.30.7", "", 23007, true },
		{ "0.0.0-999.99.99", "", 0, false }, /* not known */
		{ "", "", 23007, false },
		{ ",,", "", 23007, false },
		{ "2.30,2.30.7", "2.30", 23007, true },
		{ "2.30", "2.30", 23000, false },
		{ "2.30.7-", "2.30.7-", 23007, false },
		{ "-2.30.7", "-2.30.7", 23007, false },
		{ "2.30.7-2.30.6", "2.30.7-2.30.6", 23007, false },
		{ "2.30.7-2.30.8-2.30.9", "2.30.7-2.30.8-2.30.9", 23007, false },
		{ "2.30.100", "2.30.100", 23100, false },
		{ "2.4294967298.0", "2.4294967298.0", 20200, false },
		{ "2.30.7x", "2.30.7x", 23007, false },
		{ "all", "all", 23007, false },
		{ "*\x1b[31m", "*?[31m", 23007, false },
	};
	char bad[64];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		bool listed = deny_lists(cases[i].list, cases[i].version, bad, sizeof(bad));

		ok(listed == cases[i].listed && !strcmp(bad, cases[i].bad), "list %zu: %d '%s'", i,
		   listed, bad);
	}
	char many[200];

	memset(many, '1', sizeof(many) - 1);
	many[sizeof(many) - 1] = '\0';
	ok(!deny_lists(many, 111, bad, sizeof(bad)) && strlen(bad) == sizeof(bad) - 1,
	   "a long word is cut, not read");
}

static void test_killswitch(void)
{
	struct killswitch ks;

	killswitch_open(&ks, dir);
	ok(!ks.disabled && ks.dir.fd > 2, "nothing is disabled");
	switch_on();
	ok(killswitch_look(&ks), "now it is");
	switch_off();
	ok(!killswitch_look(&ks), "and no more");
	switch_on();
	killswitch_look(&ks);
	close(ks.dir.fd); /* as applications do that close what they do not know */
	ok(killswitch_look(&ks), "what the application has closed is opened again");
	int mine = open("/proc/self", O_RDONLY | O_DIRECTORY), number = ks.dir.fd;

	dup2(mine, number);
	switch_off();
	ok(!killswitch_look(&ks) && ks.dir.fd != number,
	   "what it has made of the descriptor is not looked at");
	ok(fcntl(number, F_GETFD) >= 0, "nor closed");
	close(number);
	close(mine);
	killswitch_open(&ks, "");
	ok(!killswitch_look(&ks) && ks.dir.fd < 0,
	   "without a directory there is nothing to look at");
	killswitch_open(&ks, "/nonexistent/control");
	ok(!killswitch_look(&ks) && ks.dir.fd < 0, "nor where it is missing");
	killswitch_open(&ks, "/proc/self/fdinfo");
	ok(!killswitch_look(&ks) && ks.dir.fd < 0, "elsewhere than on tmpfs it is looked at once");
}

int main(void)
{
	snprintf(dir, sizeof(dir), "/dev/shm/nccl-inspector-test-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	test_versions();
	test_killswitch();
	rmdir(dir);
	return done_testing();
}
