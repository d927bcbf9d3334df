/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - parse the option of a job and the configuration of a site into struct settings. */
#ifndef NCCL_INSPECTOR_OPTIONS_H
#define NCCL_INSPECTOR_OPTIONS_H

#include "settings.h"

#define OPTIONS_MAX_BYTES 1024u /* of the option's value, without its NUL */

/* Sets in `settings` what a job asks for with `MODE[,key[=value]]...`: the mode and each key; a key
 * without a value means 1. Returns 0, or -EINVAL with `settings` unchanged and a line in `why`
 * (SETTINGS_WHY_BYTES) that lists the valid values. */
int options_parse(struct settings *settings, const char *text, char *why);

/* Reads the site's settings. The table has the defaults; the file and then the words of the line in
 * plugstack.conf replace them. A word `conf=PATH` names another file. Returns 0, or -errno with a
 * reason in `why`; then `settings` has the defaults. */
int options_load_site(struct settings *settings, int word_count, char *const words[], char *why);

#endif
