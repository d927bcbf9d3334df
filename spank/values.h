/* SPDX-License-Identifier: Apache-2.0 */
/* values.h - parse one value of a setting, by the setting's type. */
#ifndef NCCL_INSPECTOR_VALUES_H
#define NCCL_INSPECTOR_VALUES_H

#include "settings.h"

/* Whether `text` is a valid value of this type. Unless the type is a text, `number` gets the value
 * in the unit given at enum setting_type. The limits of a setting are not checked. */
bool values_parse(enum setting_type type, const char *text, uint64_t *number);

/* Whether values of this type are kept as text. */
bool values_are_text(enum setting_type type);

/* Copies a list of versions; in the place of the word `recommended` it puts the list that comes
 * with the package. Returns whether there is room for all of it. */
bool values_expand_versions(char out[SETTINGS_TEXT_BYTES], const char *text);

/* Returns what a value of this type must be, for the end of an error message. */
const char *values_help(enum setting_type type);

/* Return the name as users write it. */
const char *values_mode_name(enum mode mode);
const char *values_switch_name(enum settings_switch position);

/* Returns 0, or -EINVAL with `mode` unchanged. */
int values_parse_mode(const char *word, enum mode *mode);

#endif
