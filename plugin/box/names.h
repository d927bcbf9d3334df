/* SPDX-License-Identifier: Apache-2.0 */
/* box/names.h - the names of the box's numbers, as NCCL writes them. Any thread. */
#ifndef NCCL_INSPECTOR_BOX_NAMES_H
#define NCCL_INSPECTOR_BOX_NAMES_H

/* Each returns the name of a number ("AllReduce", "RING", "SIMPLE"), "Unknown" for 0 and for one
 * that there is not. */
const char *box_func_name(unsigned func);
const char *box_algo_name(unsigned algo);
const char *box_proto_name(unsigned proto);

#endif
