/* SPDX-License-Identifier: Apache-2.0 */
/* base/textbuf.h - a text that grows while it is written, for one thread.
 *
 * Without memory it is marked failed, and later calls do nothing until it is cleared. A structure
 * of zeros is an empty text.
 */
#ifndef NCCL_INSPECTOR_BASE_TEXTBUF_H
#define NCCL_INSPECTOR_BASE_TEXTBUF_H

#include <stdbool.h>
#include <stddef.h>

struct textbuf {
	char *data; /* ends with '\0' once something was added */
	size_t length, room;
	bool failed;
};

/* Makes it empty, and keeps the memory. */
void textbuf_clear(struct textbuf *text);

/* Adds what printf makes of the arguments. */
__attribute__((format(printf, 2, 3))) void textbuf_add(struct textbuf *text, const char *format,
                                                       ...);

/* Adds `length` bytes; a string literal. */
void textbuf_add_bytes(struct textbuf *text, const char *bytes, size_t length);
#define TEXTBUF_ADD(text, literal) textbuf_add_bytes(text, literal, sizeof(literal) - 1)

/* Adds once more what is there: `length` bytes of the text from offset `from` on. */
void textbuf_repeat(struct textbuf *text, size_t from, size_t length);

/* Adds name="value", escaped as the text format of Prometheus wants it. */
void textbuf_add_label(struct textbuf *text, const char *name, const char *value);

/* Add a number as "%.17g" and "%.3f" would. */
void textbuf_add_17g(struct textbuf *text, double value);
void textbuf_add_3f(struct textbuf *text, double value);

#endif
