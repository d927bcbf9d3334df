/* SPDX-License-Identifier: Apache-2.0 */
/* script.h - the command line as steps: a verb, then name=value words, then a comma. */
#ifndef DEFECTS_SCRIPT_H
#define DEFECTS_SCRIPT_H

#include <stdbool.h>
#include <stdint.h>

struct step {
	const char *verb;
	char **words;
	int n_words;
};

/* Takes the next step from the words; false at their end. */
bool script_next(struct step *step, char ***words);

/* Value of a word of the step, or the fallback. A number that is none ends the process. */
const char *script_text(const struct step *step, const char *name, const char *fallback);
int64_t script_number(const struct step *step, const char *name, int64_t fallback);

/* Ends the process with status 2 and a line on stderr. */
__attribute__((noreturn, format(printf, 1, 2))) void script_fail(const char *format, ...);

#endif
