// SPDX-License-Identifier: Apache-2.0
#include "options.h"
#include "values.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MODES_HELP "modes: prom, json, prom+json, report, off"

static int parse_mode(struct settings *settings, const char *word, char *why)
{
	char quoted[SETTINGS_QUOTE_BYTES];

	if (!values_parse_mode(word, &settings->mode))
		return 0;
	settings_quote(quoted, word);
	snprintf(why, SETTINGS_WHY_BYTES, "unknown mode %s; " MODES_HELP, quoted);
	return -EINVAL;
}

/* A key without a value means 1, or for a level of a log `warn`. A setting that is a text needs a
 * value. */
static int set_bare(struct settings *settings, const char *name, char *why)
{
	const struct setting *setting = settings_find(SETTING_SCOPE_OPTION, name);

	if (setting && setting->type == SETTING_TYPE_LEVEL)
		return settings_set(settings, SETTING_SCOPE_OPTION, name, "warn", why);
	if (!setting || !values_are_text(setting->type))
		return settings_set(settings, SETTING_SCOPE_OPTION, name, "1", why);
	snprintf(why, SETTINGS_WHY_BYTES, "%s needs a value: %s=...", name, name);
	return -EINVAL;
}

/* Parses `key` or `key=value`; changes `item`. */
static int parse_key(struct settings *settings, char *item, char *why)
{
	char *equals = strchr(item, '=');
	char reason[SETTINGS_WHY_BYTES], names[256];
	int rc;

	if (equals)
		*equals = '\0';
	rc = equals ? settings_set(settings, SETTING_SCOPE_OPTION, item, equals + 1, reason)
	            : set_bare(settings, item, reason);
	if (!rc)
		return 0;
	settings_names(SETTING_SCOPE_OPTION, names, sizeof(names));
	/* The reason for an unknown key lists the keys already. */
	if (strstr(reason, "; keys: "))
		snprintf(why, SETTINGS_WHY_BYTES, "%s", reason);
	else
		snprintf(why, SETTINGS_WHY_BYTES, "%.400s; keys: %s", reason, names);
	return rc;
}

int options_parse(struct settings *settings, const char *text, char *why)
{
	struct settings wish = *settings;
	char copy[OPTIONS_MAX_BYTES + 1];
	size_t len = strnlen(text, sizeof(copy));
	char *rest = copy;

	if (len == sizeof(copy)) {
		snprintf(why, SETTINGS_WHY_BYTES, "the value has more than %u bytes; " MODES_HELP,
		         OPTIONS_MAX_BYTES);
		return -EINVAL;
	}
	memcpy(copy, text, len + 1);
	if (parse_mode(&wish, strsep(&rest, ","), why))
		return -EINVAL;
	while (rest)
		if (parse_key(&wish, strsep(&rest, ","), why))
			return -EINVAL;
	*settings = wish;
	return 0;
}

static int set_word(struct settings *settings, const char *word, char *why)
{
	char key[64], reason[SETTINGS_WHY_BYTES];
	size_t key_bytes = strcspn(word, "=");
	int rc;

	if (key_bytes >= sizeof(key))
		key_bytes = sizeof(key) - 1;
	memcpy(key, word, key_bytes);
	key[key_bytes] = '\0';
	rc = settings_set(settings, SETTING_SCOPE_SITE | SETTING_SCOPE_OPTION, key,
	                  strchr(word, '=') ? strchr(word, '=') + 1 : "", reason);
	if (rc && settings_find(SETTING_SCOPE_AGENT, key))
		snprintf(why, SETTINGS_WHY_BYTES,
		         "plugstack.conf: %s is the agent's, only nccl-inspector.conf may have it",
		         key);
	else if (rc)
		snprintf(why, SETTINGS_WHY_BYTES, "plugstack.conf: %.500s", reason);
	return rc;
}

int options_load_site(struct settings *settings, int word_count, char *const words[], char *why)
{
	static const char conf[] = "conf=";
	const char *path = SETTINGS_DEFAULT_FILE;
	struct settings site;
	int rc;

	settings_init(settings);
	site = *settings;
	for (int i = 0; i < word_count; i++)
		if (!strncmp(words[i], conf, strlen(conf)))
			path = words[i] + strlen(conf);
	rc = settings_read_file(&site, path, why);
	for (int i = 0; !rc && i < word_count; i++)
		if (strncmp(words[i], conf, strlen(conf)) != 0)
			rc = set_word(&site, words[i], why);
	if (!rc)
		*settings = site;
	return rc;
}
