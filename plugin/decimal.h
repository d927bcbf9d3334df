/* SPDX-License-Identifier: Apache-2.0 */
/* decimal.h - numbers as printf writes them, ten times as fast for those that metrics have: integers, and fractions of
 * few binary digits. Others go to printf itself, whose decimal point is that of the calling thread's locale. */
#ifndef NCCL_INSPECTOR_DECIMAL_H
#define NCCL_INSPECTOR_DECIMAL_H

#define DECIMAL_ROOM 320u /* of the longest one: "%.3f" of the largest double */

/* Each writes at most DECIMAL_ROOM bytes and returns the end of the number. */
char *decimal_17g(char *to, double value); /* "%.17g" */
char *decimal_3f(char *to, double value);  /* "%.3f" */

#endif
