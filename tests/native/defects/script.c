/* SPDX-License-Identifier: Apache-2.0 */
#include "script.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void script_fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("play: ", stderr);
	vfprintf(stderr, format, arguments);
	fputs("\n", stderr);
	va_end(arguments);
	_Exit(2);
}

bool script_next(struct step *step, char ***words)
{
	char **word = *words;

	if (!*word)
		return false;
	step->verb = *word++;
	step->words = word;
	while (*word && strcmp(*word, ",") != 0)
		word++;
	step->n_words = (int)(word - step->words);
	*words = *word ? word + 1 : word;
	return true;
}

const char *script_text(const struct step *step, const char *name, const char *fallback)
{
	size_t length = strlen(name);

	for (int i = 0; i < step->n_words; i++)
		if (!strncmp(step->words[i], name, length) && step->words[i][length] == '=')
			return step->words[i] + length + 1;
	return fallback;
}

int64_t script_number(const struct step *step, const char *name, int64_t fallback)
{
	const char *text = script_text(step, name, NULL);
	char *end;

	if (!text)
		return fallback;
	errno = 0;
	long long value = strtoll(text, &end, 10);

	if (errno || *end || end == text)
		script_fail("%s: %s=%s is not a number", step->verb, name, text);
	return value;
}
