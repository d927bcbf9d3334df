/* SPDX-License-Identifier: Apache-2.0 */
/* Histogram buckets, logarithms, rounding, bandwidth factors, size labels and NCCL's words. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "box/bandwidth.h"
#include "box/box.h"
#include "box/histogram.h"
#include "base/log2.h"
#include "box/names.h"
#include "prom/rounding.h"
#include "tap.h"
#include "nccl/strings.h"

static void test_hist(void)
{
	bool in_order = true, close = true, inside = true;

	for (uint64_t ns = 1; ns < 1ull << 37; ns += 1 + ns / 97) {
		unsigned i = hist_bucket(ns);
		double middle = ((double)hist_lower_ns(i) + (double)hist_lower_ns(i + 1)) / 2;

		inside &= i < HIST_BUCKETS && hist_lower_ns(i) <= ns && ns < hist_lower_ns(i + 1);
		in_order &= i >= hist_bucket(ns - 1);
		if (ns >= 1024)
			close &= fabs(middle / (double)ns - 1) < 0.02;
	}
	ok(inside, "a time lies between the bounds of its bucket");
	ok(in_order, "a longer time never has a lower bucket");
	ok(close, "the middle of a bucket is within 2 %% of every time in it");
	ok(hist_bucket(UINT64_MAX) == HIST_BUCKETS - 1, "the last bucket takes what is longer");
}

static void test_log2(void)
{
	double worst = 0, worst_exp = 0;

	log2_init();
	for (uint64_t v = 1; v && v < 1ull << 62; v += 1 + v / 53) {
		double error = fabs(log2_q20(v) / (double)LOG2_ONE - log2((double)v));

		worst = error > worst ? error : worst;
	}
	for (double x = -40; x < 40; x += 0.37)
		worst_exp = fmax(worst_exp, fabs(rounding_exp2(x) / exp2(x) - 1));
	ok(worst < 5.0 / LOG2_ONE, "log2 is off by less than 5 units of 2^-20 (%g)",
	   worst * LOG2_ONE);
	ok(log2_q20(0) == 0, "log2 of nothing is 0");
	ok(worst_exp < 1e-12, "2^x is within 1e-12 (%g)", worst_exp);
}

static void test_rounding(void)
{
	double worst = 0;

	for (double v = 1e-6; v < 1e9; v *= 1.01)
		worst = fmax(worst, fabs(rounding_binary(v, 9) / v - 1));
	ok(worst < 0.002, "9 binary digits are within 0.2 %% (%g)", worst);
	ok(rounding_binary(0, 9) == 0 && rounding_binary(NAN, 9) == 0,
	   "nothing and no number round to 0");
	ok(rounding_binary(44.1181, 9) == 44.125, "44.1 GB/s is a short number");
	ok(rounding_seconds(1500000000) == 1.5, "1.5 s is 1.5");
	ok(rounding_seconds(1) == 0, "seconds are rounded down");
}

static void test_bandwidth(void)
{
	static const struct {
		unsigned func;
		int nranks;
		double factor;
	} cases[] = {
		{ BOX_FUNC_ALLREDUCE, 1, 0 }, { BOX_FUNC_ALLREDUCE, 0, 0 },
		{ BOX_FUNC_ALLTOALL, 8, 1 },  { BOX_FUNC_UNKNOWN, 8, 0 },
		{ BOX_FUNC_ALLREDUCE, 2, 1 }, { BOX_FUNC_ALLREDUCE, 8, 1.75 },
		{ BOX_FUNC_ALLGATHER, 8, 7 }, { BOX_FUNC_REDUCESCATTER, 32, 31 },
		{ BOX_FUNC_BROADCAST, 8, 1 }, { BOX_FUNC_SEND, 8, 1 },
	};
	static const struct {
		uint64_t bytes;
		const char *label;
	} sizes[] = {
		{ 0, "0-2B" },
		{ 1, "0-2B" },
		{ 2, "2-4B" },
		{ 1023, "512-1024B" },
		{ 1024, "1-2KB" },
		{ 65536, "64-128KB" },
		{ 1048575, "512-1024KB" },
		{ 1048576, "1-2MB" },
		{ 1572864, "1-2MB" },
		{ 512ull << 20, "512-1024MB" },
		{ 9ull << 29, "4-8GB" },
		{ UINT64_MAX, "8-16EB" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		ok(bandwidth_bus_factor(cases[i].func, cases[i].nranks) == cases[i].factor,
		   "factor of %s on %d ranks", box_func_name(cases[i].func), cases[i].nranks);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		char label[24];

		bandwidth_size_label(bandwidth_size_class(sizes[i].bytes), label, sizeof(label));
		ok(!strcmp(label, sizes[i].label), "%llu bytes are %s (%s)",
		   (unsigned long long)sizes[i].bytes, sizes[i].label, label);
	}
}

static void test_words(void)
{
	bool round_trip = true;

	for (unsigned i = 1; i < BOX_FUNCS; i++)
		round_trip &= strings_number(STRINGS_FUNC, box_func_name(i)) == i;
	for (unsigned i = 1; i < BOX_ALGO_GROUP; i++)
		round_trip &= strings_number(STRINGS_ALGO, box_algo_name(i)) == i;
	for (unsigned i = 1; i < BOX_PROTOS; i++)
		round_trip &= strings_number(STRINGS_PROTO, box_proto_name(i)) == i;
	ok(round_trip, "every word has a number and comes back");
	ok(!strings_number(STRINGS_FUNC, NULL) && !strings_number(STRINGS_FUNC, "") &&
	       !strings_number(STRINGS_FUNC, "AllReduceX") &&
	       !strings_number(STRINGS_ALGO, "ring") && !strings_number(STRINGS_ALGO, "GROUP"),
	   "other words are not known");
	ok(!strcmp(box_func_name(999), "Unknown"), "a number that is none has a name");
	ok(strings_datatype_bytes("ncclFloat32") == 4 &&
	       strings_datatype_bytes("ncclBfloat16") == 2 &&
	       strings_datatype_bytes("ncclInt64") == 8,
	   "elements have NCCL's sizes");
	ok(strings_datatype_bytes("Unknown") == 1 && strings_datatype_bytes(NULL) == 1,
	   "ncclUint8, which NCCL calls Unknown, has 1 byte");
}

int main(void)
{
	test_hist();
	test_log2();
	test_rounding();
	test_bandwidth();
	test_words();
	return done_testing();
}
