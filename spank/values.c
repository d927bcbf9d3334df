// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "deny_nccl.h"

#define RECOMMENDED "recommended"
#define LENGTH(array) (sizeof(array) / sizeof(*(array)))

static const char *const mode_names[] = {
	[MODE_OFF] = "off",       [MODE_PROM] = "prom",
	[MODE_JSON] = "json",     [MODE_PROM_JSON] = "prom+json",
	[MODE_REPORT] = "report",
};

static const char *const switch_names[] = {
	[SETTINGS_OFF] = "off",
	[SETTINGS_AUTO] = "auto",
	[SETTINGS_ON] = "on",
};

static const char *const level_names[] = {
	[SETTINGS_LEVEL_OFF] = "off",
	[SETTINGS_LEVEL_WARN] = "warn",
	[SETTINGS_LEVEL_INFO] = "info",
};

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit duration_units[] = {
	{ "", 1000000 },   { "ms", 1000 },      { "s", 1000000 },
	{ "m", 60000000 }, { "h", 3600000000 }, { NULL, 0 },
};

static const struct unit size_units[] = {
	{ "", 1 },           { "K", 1ull << 10 }, { "M", 1ull << 20 },
	{ "G", 1ull << 30 }, { "T", 1ull << 40 }, { NULL, 0 },
};

static const struct unit percent_units[] = { { "", 1000 }, { NULL, 0 } };

static const struct unit plain_units[] = { { "", 1 }, { NULL, 0 } };

/* Parses DIGITS[.DIGITS]UNIT; only durations and percents may have a fraction. The limits of 15 and
 * 6 digits avoid overflow here; the multiplication by the unit is checked. */
static bool parse_number(const char *text, const struct unit *units, uint64_t *out)
{
	uint64_t whole = 0, part = 0, scale = 1;
	size_t digits = strspn(text, "0123456789");

	if (!digits || digits > 15)
		return false;
	for (; digits; digits--)
		whole = whole * 10 + (uint64_t)(*text++ - '0');
	if (*text == '.' && (units == duration_units || units == percent_units)) {
		digits = strspn(++text, "0123456789");
		if (!digits || digits > 6)
			return false;
		for (; digits; digits--, scale *= 10)
			part = part * 10 + (uint64_t)(*text++ - '0');
	}
	while (units->name && strcmp(units->name, text))
		units++;
	if (!units->name || __builtin_mul_overflow(whole, units->factor, &whole))
		return false;
	return !__builtin_add_overflow(whole, part * units->factor / scale, out);
}

/* Parses one of the words in `names`; `number` gets its index. */
static bool parse_name(const char *text, const char *const names[], size_t count, uint64_t *number)
{
	for (size_t i = 0; i < count; i++)
		if (!strcmp(text, names[i])) {
			*number = i;
			return true;
		}
	return false;
}

/* Whether NCCL takes the text as the name of a file: libX.so */
static bool is_library_name(const char *text)
{
	size_t len = strlen(text);

	return len > 6 && !strncmp(text, "lib", 3) && !strcmp(text + len - 3, ".so") &&
	       !strchr(text, '/');
}

static bool parse_text(enum setting_type type, const char *text)
{
	size_t len = strnlen(text, SETTINGS_TEXT_BYTES);

	if (len == SETTINGS_TEXT_BYTES || (type == SETTING_TYPE_PATH && *text != '/') ||
	    (type == SETTING_TYPE_LIBRARY && *text != '/' && !is_library_name(text)))
		return false;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f ||
		    (text[i] == ' ' && (type == SETTING_TYPE_WORD || type == SETTING_TYPE_ADDRESS)))
			return false;
	return true;
}

/* Parses a version like 2.28.5 and moves `text` behind it. `out` gets a number in the order of
 * versions. Minor and patch have at most two digits, as in NCCL's own version number. */
static bool parse_version(const char **text, uint32_t *out)
{
	*out = 0;
	for (int part = 0; part < 3; part++) {
		size_t digits = strspn(*text, "0123456789");
		uint32_t number = 0;

		if (!digits || digits > (part ? 2 : 3))
			return false;
		for (; digits; digits--)
			number = number * 10 + (uint32_t)(*(*text)++ - '0');
		*out = *out * 100 + number;
		if (part < 2 && *(*text)++ != '.')
			return false;
	}
	return true;
}

/* Whether the list goes on with the word that stands for the package's own list. */
static bool begins_with_recommended(const char *text)
{
	return strcspn(text, ",") == sizeof(RECOMMENDED) - 1 &&
	       !strncmp(text, RECOMMENDED, sizeof(RECOMMENDED) - 1);
}

/* Parses a version or a range and moves `text` behind it. */
static bool parse_range(const char **text)
{
	uint32_t first, last;

	if (!parse_version(text, &first))
		return false;
	last = first;
	return (**text != '-' || ((*text)++, parse_version(text, &last))) && first <= last;
}

static bool parse_versions(const char *text)
{
	char expanded[SETTINGS_TEXT_BYTES];

	if (!*text)
		return true;
	if (!values_expand_versions(expanded, text))
		return false;
	for (;; text++) {
		if (begins_with_recommended(text))
			text += sizeof(RECOMMENDED) - 1;
		else if (!parse_range(&text) || (*text && *text != ','))
			return false;
		if (!*text)
			return true;
	}
}

bool values_expand_versions(char out[SETTINGS_TEXT_BYTES], const char *text)
{
	size_t len = 0;

	*out = '\0';
	while (*text) {
		size_t item_len = strcspn(text, ",");
		bool is_word = begins_with_recommended(text);
		const char *item = is_word ? DENY_NCCL_RECOMMENDED : text;
		size_t room = SETTINGS_TEXT_BYTES - len;
		size_t wanted = is_word ? strlen(item) : item_len;
		int n;

		if (wanted >= room)
			return false;
		n = snprintf(out + len, room, "%s%.*s", len ? "," : "", (int)wanted, item);
		if (n < 0 || (size_t)n >= room)
			return false;
		len += (size_t)n;
		text += item_len;
		text += *text == ',';
	}
	return true;
}

bool values_parse(enum setting_type type, const char *text, uint64_t *number)
{
	switch (type) {
	case SETTING_TYPE_MODE:
		return parse_name(text, mode_names, LENGTH(mode_names), number);
	case SETTING_TYPE_SWITCH:
		return parse_name(text, switch_names, LENGTH(switch_names), number);
	case SETTING_TYPE_LEVEL:
		return parse_name(text, level_names, LENGTH(level_names), number);
	case SETTING_TYPE_DURATION:
		return parse_number(text, duration_units, number);
	case SETTING_TYPE_SIZE:
		return parse_number(text, size_units, number);
	case SETTING_TYPE_PERCENT:
		return parse_number(text, percent_units, number);
	case SETTING_TYPE_BOOL:
		*number = text[0] == '1';
		return (text[0] == '0' || text[0] == '1') && !text[1];
	case SETTING_TYPE_COUNT:
		return parse_number(text, plain_units, number);
	case SETTING_TYPE_VERSIONS:
		return parse_versions(text);
	case SETTING_TYPE_PATH:
	case SETTING_TYPE_LIBRARY:
	case SETTING_TYPE_DIR:
	case SETTING_TYPE_WORD:
	case SETTING_TYPE_ADDRESS:
		return parse_text(type, text);
	}
	return false;
}

bool values_are_text(enum setting_type type)
{
	return type == SETTING_TYPE_PATH || type == SETTING_TYPE_DIR || type == SETTING_TYPE_WORD ||
	       type == SETTING_TYPE_ADDRESS || type == SETTING_TYPE_VERSIONS ||
	       type == SETTING_TYPE_LIBRARY;
}

const char *values_help(enum setting_type type)
{
	switch (type) {
	case SETTING_TYPE_MODE:
		return "prom, json, prom+json, report or off";
	case SETTING_TYPE_SWITCH:
		return "off, auto or on";
	case SETTING_TYPE_LEVEL:
		return "off, warn or info";
	case SETTING_TYPE_DURATION:
		return "a number with ms, s, m or h";
	case SETTING_TYPE_BOOL:
		return "0 or 1";
	case SETTING_TYPE_SIZE:
		return "bytes, with K, M, G or T";
	case SETTING_TYPE_PATH:
		return "a path that begins with /";
	case SETTING_TYPE_LIBRARY:
		return "a path that begins with /, or a name such as libX.so";
	case SETTING_TYPE_DIR:
		return "a path without control characters";
	case SETTING_TYPE_WORD:
		return "a word without blanks";
	case SETTING_TYPE_ADDRESS:
		return "an address such as 127.0.0.1:9435";
	case SETTING_TYPE_VERSIONS:
		return "versions such as recommended,2.28.0-2.28.5";
	case SETTING_TYPE_PERCENT:
	case SETTING_TYPE_COUNT:
		break;
	}
	return "a number";
}

const char *values_mode_name(enum mode mode)
{
	return mode_names[mode];
}

const char *values_switch_name(enum settings_switch position)
{
	return switch_names[position];
}

int values_parse_mode(const char *word, enum mode *mode)
{
	uint64_t number = 0;

	if (!parse_name(word, mode_names, LENGTH(mode_names), &number))
		return -EINVAL;
	*mode = (enum mode)number;
	return 0;
}
