/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_clear(struct text *text)
{
	text->length = 0;
	text->failed = false;
}

static bool make_room(struct text *text, size_t more)
{
	size_t room = text->room ? text->room : 65536;
	char *data;

	while (room < text->length + more + 1)
		room *= 2;
	if (room == text->room)
		return true;
	data = realloc(text->data, room);
	if (!data) {
		text->failed = true;
		return false;
	}
	text->data = data;
	text->room = room;
	return true;
}

void text_add(struct text *text, const char *format, ...)
{
	va_list list;

	if (text->failed || !make_room(text, 512))
		return;
	/* clang-tidy 14 does not see that va_start initializes the list. */
	va_start(list, format);
	int length = vsnprintf(text->data + text->length, text->room - text->length, format, list); // NOLINT
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

void text_add_label(struct text *text, const char *name, const char *value)
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
