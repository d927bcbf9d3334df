/* SPDX-License-Identifier: Apache-2.0 */
/* values.h - one value of a setting: text -> number, by the setting's type. */
#ifndef NCCL_INSPECTOR_VALUES_H
#define NCCL_INSPECTOR_VALUES_H

#include "settings.h"

/* Whether `text` is a value of this type; its number, in the unit of enum setting_type, goes to
 * `number` unless the type is a text. A limit of the setting's is not looked at. */
bool values_parse(enum setting_type type, const char *text, uint64_t *number);

/* Whether values of this type are kept as they are written. */
bool values_are_text(enum setting_type type);

/* What a value of this type must be, for a reason that ends with it. */
const char *values_help(enum setting_type type);

/* As users write it. */
const char *values_mode_name(enum mode mode);
const char *values_switch_name(enum settings_switch position);

/* Returns 0, or -EINVAL with `mode` unchanged. */
int values_parse_mode(const char *word, enum mode *mode);

#endif
