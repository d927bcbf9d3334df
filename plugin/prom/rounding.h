/* SPDX-License-Identifier: Apache-2.0 */
/* prom/rounding.h - numbers with few binary digits, and 2^x, without libm. */
#ifndef NCCL_INSPECTOR_PROM_ROUNDING_H
#define NCCL_INSPECTOR_PROM_ROUNDING_H

#include <stdint.h>

/* Returns the nearest number with `bits` binary digits: 9 are within 0.2 %, 11 within 0.05 %; 0 for
 * a negative value or NaN. */
double rounding_binary(double value, int bits);

/* Returns seconds in steps of 2^-10, rounded down, so that a counter never runs ahead. */
double rounding_seconds(uint64_t ns);

/* Returns 2^x, within 1e-12 of it. */
double rounding_exp2(double x);

#endif
