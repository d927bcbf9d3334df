/* SPDX-License-Identifier: Apache-2.0 */
/* tap.h - the Test Anything Protocol in two functions, for one-file test programs.
 *
 * ok() prints one result and returns it; main() ends with `return done_testing();`.
 */
#ifndef NCCL_INSPECTOR_TAP_H
#define NCCL_INSPECTOR_TAP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static int tap_run;
static int tap_failed;

__attribute__((format(printf, 2, 3), unused)) static bool ok(bool passed, const char *format, ...)
{
	va_list args;

	printf("%s %d - ", passed ? "ok" : "not ok", ++tap_run);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	tap_failed += !passed;
	return passed;
}

__attribute__((unused)) static int done_testing(void)
{
	printf("1..%d\n", tap_run);
	return tap_failed || !tap_run;
}

#endif
