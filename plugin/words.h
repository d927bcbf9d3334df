/* SPDX-License-Identifier: Apache-2.0 */
/* words.h - NCCL's strings to the numbers of box.h, at event time: the strings die with libnccl. */
#ifndef NCCL_INSPECTOR_WORDS_H
#define NCCL_INSPECTOR_WORDS_H

#include <stdint.h>

/* Each takes NULL and unknown words (0: not known). */
uint8_t words_func(const char *word);
uint8_t words_algo(const char *word);
uint8_t words_proto(const char *word);

/* Bytes of one element. NCCL has no name for ncclUint8 and sends "Unknown": 1. */
unsigned words_datatype_bytes(const char *word);

#endif
