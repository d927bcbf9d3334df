/* SPDX-License-Identifier: Apache-2.0 */
#include "prom/rounding.h"

#include <math.h>

double rounding_binary(double value, int bits)
{
	int exponent;

	if (!(value > 0))
		return 0;
	double mantissa = ldexp(frexp(value, &exponent), bits);

	return ldexp((double)(int64_t)(mantissa + 0.5), exponent - bits);
}

double rounding_seconds(uint64_t ns)
{
	return (double)(uint64_t)((double)ns * 1024 / 1e9) / 1024;
}

double rounding_exp2(double x)
{
	int whole = (int)x - (x < 0);
	double y = (x - whole) * 0.693147180559945309417232;
	double sum = 1, term = 1;

	for (int n = 1; n < 20; n++) {
		term *= y / n;
		sum += term;
	}
	return ldexp(sum, whole);
}
