/* SPDX-License-Identifier: Apache-2.0 */
#include "throttle.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"

static uint64_t whole(const char *text)
{
	char *end;
	unsigned long long value = text ? strtoull(text, &end, 10) : 0;

	if (!text || *text < '0' || *text > '9' || *end || value > 1000000)
		die("--throttle: '%s' is not a number from 0 to 1000000", text ? text : "");
	return value;
}

static void name(struct throttle *throttle, char *where)
{
	char *plus = strchr(where, '+');

	if (plus)
		*plus++ = '\0';
	if (!*where || (plus && !*plus) || strlen(where) >= sizeof(throttle->node[0]) ||
	    (plus && strlen(plus) >= sizeof(throttle->node[1])))
		die("--throttle: '%s' is not all, a node, or two with a + between", where);
	if (!plus && !strcmp(where, "all"))
		return;
	strcpy(throttle->node[0], where);
	strcpy(throttle->node[1], plus ? plus : "");
}

void throttle_parse(struct throttle *throttle, char *text)
{
	char *rest = NULL, *where = strtok_r(text, ":", &rest), *rate = strtok_r(NULL, ":", &rest),
	     *from = strtok_r(NULL, ":", &rest), *until = strtok_r(NULL, ":", &rest);

	*throttle = (struct throttle){ .on = true, .rate_mbs = whole(rate) };
	name(throttle, where);
	throttle->from_s = from ? whole(from) : 0;
	throttle->until_s = until ? whole(until) : 0;
	if (until && !throttle->rate_mbs)
		die("--throttle: what is cut, with a rate of 0, does not come back");
	if (until && throttle->until_s <= throttle->from_s)
		die("--throttle: it would end before it begins");
	if (strtok_r(NULL, ":", &rest))
		die("--throttle: more than a place, a rate, a begin and an end");
}

bool throttle_is_of(const struct throttle *throttle, const char *from, const char *to)
{
	const char *one = throttle->node[0], *other = throttle->node[1];

	if (!throttle->on || !strcmp(from, to))
		return false;
	if (!*one)
		return true;
	if (!*other)
		return !strcmp(one, from) || !strcmp(one, to);
	return (!strcmp(one, from) && !strcmp(other, to)) ||
	       (!strcmp(one, to) && !strcmp(other, from));
}
