// SPDX-License-Identifier: Apache-2.0
#include "settings.h"
#include "values.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* clang-format off */
const struct setting settings_table[] = {
#define SETTING(name, type, initial, min, max, scope, help) \
	{ name, type, initial, min, max, scope, help },
#include "settings_table.h"
#undef SETTING
	{ NULL, SETTING_TYPE_WORD, NULL, NULL, NULL, 0, NULL },
};
/* clang-format on */

#define ALL_SCOPES (SETTING_SCOPE_SITE | SETTING_SCOPE_OPTION | SETTING_SCOPE_AGENT)

/* The field for each value. A setting without a field is only checked. */
static const struct {
	const char *name;
	size_t offset;
} places[] = {
	{ "default", offsetof(struct settings, mode) },
	{ "partitions", offsetof(struct settings, partitions) },
	{ "qos", offsetof(struct settings, qos) },
	{ "min_gpus", offsetof(struct settings, min_gpus) },
	{ "sample", offsetof(struct settings, sample) },
	{ "interval", offsetof(struct settings, interval_us) },
	{ "p2p", offsetof(struct settings, p2p) },
	{ "min_size", offsetof(struct settings, min_size_bytes) },
	{ "verbose", offsetof(struct settings, verbose) },
	{ "dir", offsetof(struct settings, dir) },
	{ "gzip", offsetof(struct settings, gzip) },
	{ "json_max", offsetof(struct settings, json_max_bytes) },
	{ "json_min_size", offsetof(struct settings, json_min_size_bytes) },
	{ "phases", offsetof(struct settings, phases) },
	{ "host_time", offsetof(struct settings, host_time) },
	{ "broadcasts", offsetof(struct settings, broadcasts) },
	{ "net", offsetof(struct settings, net) },
	{ "debug", offsetof(struct settings, debug) },
	{ "ras", offsetof(struct settings, ras) },
	{ "fr", offsetof(struct settings, fr) },
	{ "fr_pipe", offsetof(struct settings, fr_pipe) },
	{ "deny_nccl", offsetof(struct settings, deny_nccl) },
	{ "budget", offsetof(struct settings, budget_millipercent) },
	{ "profiler", offsetof(struct settings, profiler) },
	{ "run_dir", offsetof(struct settings, run_dir) },
	{ "hooks", offsetof(struct settings, hooks) },
};

void settings_quote(char out[SETTINGS_QUOTE_BYTES], const char *text)
{
	const size_t room = SETTINGS_QUOTE_BYTES - sizeof("\"...\"");
	size_t len = 0;

	out[len++] = '"';
	for (; *text && len <= room; text++)
		out[len++] = (char)(*text >= ' ' && *text <= '~' ? *text : '?');
	if (*text) {
		memcpy(out + len, "...", 3);
		len += 3;
	}
	out[len++] = '"';
	out[len] = '\0';
}

static bool in_range(const struct setting *setting, uint64_t number)
{
	uint64_t limit = 0;

	if (strcmp(setting->min, "-") && values_parse(setting->type, setting->min, &limit) &&
	    number < limit)
		return false;
	return !strcmp(setting->max, "-") || !values_parse(setting->type, setting->max, &limit) ||
	       number <= limit;
}

static void store(struct settings *settings, const struct setting *setting, const char *text,
                  uint64_t number)
{
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		char *place = (char *)settings + places[i].offset;

		if (strcmp(places[i].name, setting->name))
			continue;
		if (setting->type == SETTING_TYPE_MODE)
			settings->mode = (enum mode)number;
		else if (setting->type == SETTING_TYPE_VERSIONS)
			values_expand_versions(place, text);
		else if (values_are_text(setting->type))
			memcpy(place, text, strlen(text) + 1);
		else
			memcpy(place, &number, sizeof(number));
	}
}

void settings_init(struct settings *settings)
{
	char why[SETTINGS_WHY_BYTES];

	memset(settings, 0, sizeof(*settings));
	for (const struct setting *s = settings_table; s->name; s++)
		settings_set(settings, s->scope, s->name, s->initial, why);
}

void settings_names(unsigned int scopes, char *out, size_t out_bytes)
{
	size_t len = 0;

	*out = '\0';
	for (const struct setting *s = settings_table; s->name; s++) {
		int n;

		if (!(s->scope & scopes))
			continue;
		n = snprintf(out + len, out_bytes - len, "%s%s", len ? ", " : "", s->name);
		if (n < 0 || (size_t)n >= out_bytes - len)
			return;
		len += (size_t)n;
	}
}

/* Returns the setting of this name; if there is none, the entry that ends the table. */
static const struct setting *find_setting(unsigned int scopes, const char *name)
{
	const struct setting *setting = settings_table;

	while (setting->name && (strcmp(setting->name, name) || !(setting->scope & scopes)))
		setting++;
	return setting;
}

const struct setting *settings_find(unsigned int scopes, const char *name)
{
	const struct setting *setting = find_setting(scopes, name);

	return setting->name ? setting : NULL;
}

int settings_set(struct settings *settings, unsigned int scopes, const char *name,
                 const char *value, char *why)
{
	const struct setting *setting = find_setting(scopes, name);
	char quoted[SETTINGS_QUOTE_BYTES];
	uint64_t number = 0;
	bool ranged;

	if (!setting->name) {
		char names[256];

		settings_quote(quoted, name);
		settings_names(scopes, names, sizeof(names));
		snprintf(why, SETTINGS_WHY_BYTES, "unknown key %s; keys: %s", quoted, names);
		return -EINVAL;
	}
	if (values_parse(setting->type, value, &number) && in_range(setting, number)) {
		store(settings, setting, value, number);
		return 0;
	}
	settings_quote(quoted, value);
	ranged = strcmp(setting->min, "-") && setting->type != SETTING_TYPE_BOOL;
	snprintf(why, SETTINGS_WHY_BYTES, "%s=%s is not %s%s%s%s%s", name, quoted,
	         values_help(setting->type), ranged ? ", from " : "", ranged ? setting->min : "",
	         ranged ? " to " : "", ranged ? setting->max : "");
	return -EINVAL;
}

/* Removes blanks at both ends of a string, in place. */
static char *trim(char *text)
{
	size_t len;

	text += strspn(text, " \t\r");
	len = strlen(text);
	while (len && strchr(" \t\r", text[len - 1]))
		len--;
	text[len] = '\0';
	return text;
}

/* Parses a line, which is empty or `key = value`; # begins a comment. A key that comes twice is
 * refused, because the site cannot mean both values. */
static int parse_line(struct settings *settings, char *line, unsigned int number,
                      unsigned int set_in[], char *why)
{
	char *key = trim(strsep(&line, "#"));
	char *value = key;
	size_t index;

	if (!*key)
		return 0;
	strsep(&value, "=");
	if (!value) {
		char quoted[SETTINGS_QUOTE_BYTES];

		settings_quote(quoted, key);
		snprintf(why, SETTINGS_WHY_BYTES, "%s is not `key = value'", quoted);
		return -EINVAL;
	}
	key = trim(key);
	index = (size_t)(find_setting(ALL_SCOPES, key) - settings_table);
	if (set_in[index]) {
		snprintf(why, SETTINGS_WHY_BYTES, "%s is set in line %u already", key,
		         set_in[index]);
		return -EINVAL;
	}
	set_in[index] = number;
	return settings_set(settings, ALL_SCOPES, key, trim(value), why);
}

static const char *check_line(const char *line, size_t line_bytes)
{
	if (line_bytes >= SETTINGS_LINE_MAX_BYTES)
		return "the line is too long";
	for (size_t i = 0; i < line_bytes; i++)
		if (((unsigned char)line[i] < ' ' && !strchr("\t\r", line[i])) || !line[i] ||
		    line[i] == 0x7f)
			return "a control character: not a text file?";
	return NULL;
}

int settings_parse_text(struct settings *settings, const char *path, const char *text,
                        size_t text_bytes, char *why)
{
	unsigned int set_in[sizeof(settings_table) / sizeof(*settings_table)] = { 0 };
	struct settings read = *settings;
	const char *end = text + text_bytes;

	for (unsigned int number = 1; text < end; number++) {
		const char *newline = memchr(text, '\n', (size_t)(end - text));
		size_t line_bytes = (size_t)((newline ? newline : end) - text);
		const char *problem = check_line(text, line_bytes);
		char reason[SETTINGS_WHY_BYTES];
		int rc = -EINVAL;

		if (!problem) {
			char line[SETTINGS_LINE_MAX_BYTES];

			memcpy(line, text, line_bytes);
			line[line_bytes] = '\0';
			rc = parse_line(&read, line, number, set_in, reason);
			problem = reason;
		}
		if (rc) {
			snprintf(why, SETTINGS_WHY_BYTES, "%.200s:%u: %.500s", path, number,
			         problem);
			return rc;
		}
		text += line_bytes + 1;
	}
	*settings = read;
	return 0;
}

/* Returns the number of bytes read, or -errno; -EFBIG if there are `room` bytes or more. */
static ssize_t read_all(int fd, char *buf, size_t room)
{
	size_t len = 0;

	for (;;) {
		ssize_t n = read(fd, buf + len, room - len);

		if (n < 0)
			return -errno;
		if (!n)
			return (ssize_t)len;
		len += (size_t)n;
		if (len == room)
			return -EFBIG;
	}
}

int settings_read_file(struct settings *settings, const char *path, char *why)
{
	/* Not on the stack, because the stacks of slurmstepd's threads may be small. A process
	 * calls this from one thread only. */
	static char text[SETTINGS_FILE_MAX_BYTES + 1];
	ssize_t len = 0;
	struct stat st;
	int fd;

	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0 || fstat(fd, &st))
		len = -errno;
	else if (!S_ISREG(st.st_mode))
		len = S_ISDIR(st.st_mode) ? -EISDIR : -ENOTSUP;
	else
		len = read_all(fd, text, sizeof(text));
	if (fd >= 0)
		close(fd);
	if (len >= 0)
		return settings_parse_text(settings, path, text, (size_t)len, why);
	snprintf(why, SETTINGS_WHY_BYTES, "%.200s: %s", path,
	         len == -EFBIG     ? "larger than 64 KiB"
	         : len == -ENOTSUP ? "not a regular file"
	                           : strerror((int)-len));
	return (int)len;
}
