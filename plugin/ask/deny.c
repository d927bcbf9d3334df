/* SPDX-License-Identifier: Apache-2.0 */
#include "ask/deny.h"

#include <string.h>

#include "base/printable.h"

#define MOST_MAJOR 999u
#define MOST_PART 99u /* minor and patch have two digits in NCCL's own number */

/* A decimal number of at most `most`. */
static bool part(const char **text, uint32_t most, uint32_t *value)
{
	const char *at = *text;

	*value = 0;
	for (; *at >= '0' && *at <= '9' && *value <= most; at++)
		*value = *value * 10 + (uint32_t)(*at - '0');
	if (at == *text || *value > most)
		return false;
	*text = at;
	return true;
}

static bool skip(const char **text, char c)
{
	bool is_there = **text == c;

	*text += is_there;
	return is_there;
}

static bool version_of(const char **text, uint32_t *version)
{
	uint32_t major, minor, patch;

	if (!part(text, MOST_MAJOR, &major) || !skip(text, '.') || !part(text, MOST_PART, &minor) ||
	    !skip(text, '.') || !part(text, MOST_PART, &patch))
		return false;
	*version = major * 10000 + minor * 100 + patch;
	return true;
}

static bool range_of(const char *item, uint32_t *first, uint32_t *last)
{
	if (!version_of(&item, first))
		return false;
	*last = *first;
	return (!skip(&item, '-') || version_of(&item, last)) && !*item && *first <= *last;
}

bool deny_lists(const char *list, uint32_t version, char *bad, size_t room)
{
	bool found = false;

	*bad = '\0';
	while (*list) {
		char item[64];
		size_t length = strcspn(list, ", \t");
		uint32_t first, last;

		printable_copy(item, length < sizeof(item) ? length + 1 : sizeof(item), list);
		list += length;
		list += strspn(list, ", \t");
		if (!*item)
			continue;
		if (length < sizeof(item) && range_of(item, &first, &last))
			found = found || (version && version >= first && version <= last);
		else if (!*bad)
			printable_copy(bad, room, item);
	}
	return found;
}
