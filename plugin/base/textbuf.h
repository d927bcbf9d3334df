/* SPDX-License-Identifier: Apache-2.0 */
/* base/textbuf.h - a growing text for the writer thread. Out of memory marks it failed; later calls do nothing. */
#ifndef NCCL_INSPECTOR_BASE_TEXTBUF_H
#define NCCL_INSPECTOR_BASE_TEXTBUF_H

#include <stdbool.h>
#include <stddef.h>

struct text {
	char *data; /* ends with '\0' once something was added */
	size_t length, room;
	bool failed;
};

void text_clear(struct text *text);
__attribute__((format(printf, 2, 3))) void text_add(struct text *text, const char *format, ...);
void text_add_bytes(struct text *text, const char *bytes, size_t length);
#define TEXT_ADD(text, literal) text_add_bytes(text, literal, sizeof(literal) - 1)
/* Once more what is there: `length` bytes of the text from `from` on. */
void text_repeat(struct text *text, size_t from, size_t length);
/* name="value", escaped as the Prometheus text format wants it. */
void text_add_label(struct text *text, const char *name, const char *value);
/* As "%.17g" and "%.3f". */
void text_add_17g(struct text *text, double value);
void text_add_3f(struct text *text, double value);

#endif
