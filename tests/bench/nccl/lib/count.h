/* SPDX-License-Identifier: Apache-2.0 */
/* count.h - what count.so has counted, found with dlsym(). */
#ifndef COUNT_H
#define COUNT_H

struct counts {
	unsigned long locks, clocks;
};

/* Of the calling thread since its start. */
struct counts count_so_far(void);

#endif
