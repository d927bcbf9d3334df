/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - what a job asks for, and what its site says: text -> struct settings. */
#ifndef NCCL_INSPECTOR_OPTIONS_H
#define NCCL_INSPECTOR_OPTIONS_H

#include "settings.h"

#define OPTIONS_MAX_BYTES 1024u /* of one option's value, without its NUL */

/* Lays a job's wish, `MODE[,key[=value]]...`, over `settings`: its mode, and the keys it names; a
 * bare key means 1. Returns 0, or -EINVAL with one line in `why` (SETTINGS_WHY_BYTES) that has the
 * good values, and `settings` unchanged. */
int options_parse(struct settings *settings, const char *text, char *why);

/* The site's settings: the table's, the file's, then the words of plugstack.conf's line, of which
 * `conf=PATH` names another file. Returns 0, or -errno with a reason in `why`; then `settings` has
 * the table's values. */
int options_load_site(struct settings *settings, int word_count, char *const words[], char *why);

#endif
