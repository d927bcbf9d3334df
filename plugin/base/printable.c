/* SPDX-License-Identifier: Apache-2.0 */
#include "base/printable.h"

void printable_copy(char *to, size_t room, const char *from)
{
	size_t i = 0;

	for (; from && from[i] && i + 1 < room; i++)
		to[i] = (char)(from[i] >= 0x20 && from[i] < 0x7f ? from[i] : '?');
	to[i] = '\0';
}
