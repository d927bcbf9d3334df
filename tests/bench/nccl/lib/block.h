/* SPDX-License-Identifier: Apache-2.0 */
/* block.h - how a benchmark stops the file system of block.so, found with dlsym(). */
#ifndef BLOCK_H
#define BLOCK_H

/* From here on nothing below $BLOCK_DIR answers. */
void block_from_now(void);

/* Threads that hang there. */
int block_held(void);

#endif
