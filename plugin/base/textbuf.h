/* SPDX-License-Identifier: Apache-2.0 */
/* base/textbuf.h - a growing text for the writer thread. Out of memory marks it failed; later calls do nothing. */
#ifndef NCCL_INSPECTOR_BASE_TEXTBUF_H
#define NCCL_INSPECTOR_BASE_TEXTBUF_H

#include <stdbool.h>
#include <stddef.h>

struct textbuf {
	char *data; /* ends with '\0' once something was added */
	size_t length, room;
	bool failed;
};

void textbuf_clear(struct textbuf *text);
__attribute__((format(printf, 2, 3))) void textbuf_add(struct textbuf *text, const char *format, ...);
void textbuf_add_bytes(struct textbuf *text, const char *bytes, size_t length);
#define TEXTBUF_ADD(text, literal) textbuf_add_bytes(text, literal, sizeof(literal) - 1)
/* Once more what is there: `length` bytes of the text from `from` on. */
void textbuf_repeat(struct textbuf *text, size_t from, size_t length);
/* name="value", escaped as the Prometheus text format wants it. */
void textbuf_add_label(struct textbuf *text, const char *name, const char *value);
/* As "%.17g" and "%.3f". */
void textbuf_add_17g(struct textbuf *text, double value);
void textbuf_add_3f(struct textbuf *text, double value);

#endif
