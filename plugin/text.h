/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - a growing text for the writer thread. Out of memory marks it failed; later calls do nothing. */
#ifndef NCCL_INSPECTOR_TEXT_H
#define NCCL_INSPECTOR_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text {
	char *data;
	size_t length, room;
	bool failed;
};

void text_clear(struct text *text);
__attribute__((format(printf, 2, 3))) void text_add(struct text *text, const char *format, ...);
/* name="value", escaped as the Prometheus text format wants it. */
void text_add_label(struct text *text, const char *name, const char *value);

#endif
