/* SPDX-License-Identifier: Apache-2.0 */
#include "base/textbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"

/* Above malloc's threshold for maps of their own: what is never written to costs nothing. Holds
 * most texts. */
#define FIRST_ROOM (160u << 10)

void textbuf_clear(struct textbuf *text)
{
	text->length = 0;
	text->failed = false;
}

static bool make_room(struct textbuf *text, size_t more)
{
	size_t room = text->room ? text->room : FIRST_ROOM;
	char *data;

	if (text->length + more < text->room)
		return true;
	while (room <= text->length + more)
		room *= 2;
	data = realloc(text->data, room);
	if (!data) {
		text->failed = true;
		return false;
	}
	text->data = data;
	text->room = room;
	return true;
}

void textbuf_add(struct textbuf *text, const char *format, ...)
{
	va_list list;

	if (text->failed || !make_room(text, 512))
		return;
	/* clang-tidy 14 does not see that va_start initializes the list. */
	va_start(list, format);
	int length =
	    vsnprintf(text->data + text->length, text->room - text->length, format, list); // NOLINT
	va_end(list);
	if (length < 0) {
		text->failed = true;
		return;
	}
	if ((size_t)length >= text->room - text->length) {
		if (!make_room(text, (size_t)length))
			return;
		va_start(list, format);
		vsnprintf(text->data + text->length, text->room - text->length, format, list);
		va_end(list);
	}
	text->length += (size_t)length;
}

void textbuf_add_bytes(struct textbuf *text, const char *bytes, size_t length)
{
	if (text->failed || !make_room(text, length))
		return;
	memcpy(text->data + text->length, bytes, length);
	text->length += length;
	text->data[text->length] = '\0';
}

void textbuf_repeat(struct textbuf *text, size_t from, size_t length)
{
	/* Room first: it may move the text. */
	if (text->failed || !make_room(text, length))
		return;
	textbuf_add_bytes(text, text->data + from, length);
}

void textbuf_add_label(struct textbuf *text, const char *name, const char *value)
{
	size_t name_length = strlen(name), length = strlen(value);
	char *at;

	/* Every character may need a backslash. */
	if (text->failed || !make_room(text, name_length + 2 * length + 3))
		return;
	at = text->data + text->length;
	memcpy(at, name, name_length);
	at += name_length;
	*at++ = '=';
	*at++ = '"';
	for (; *value; value++) {
		if (*value == '\\' || *value == '"' || *value == '\n')
			*at++ = '\\';
		*at++ = (char)(*value == '\n' ? 'n' : *value);
	}
	*at++ = '"';
	*at = '\0';
	text->length = (size_t)(at - text->data);
}

void textbuf_add_17g(struct textbuf *text, double value)
{
	if (text->failed || !make_room(text, PUT_DOUBLE_ROOM))
		return;
	text->length = (size_t)(put_17g(text->data + text->length, value) - text->data);
	text->data[text->length] = '\0';
}

void textbuf_add_3f(struct textbuf *text, double value)
{
	if (text->failed || !make_room(text, PUT_DOUBLE_ROOM))
		return;
	text->length = (size_t)(put_3f(text->data + text->length, value) - text->data);
	text->data[text->length] = '\0';
}
