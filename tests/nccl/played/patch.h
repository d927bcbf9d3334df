/* SPDX-License-Identifier: Apache-2.0 */
/* patch.h - puts our CUDA runtime in the place of the one inside libnccl.so.2.
 *
 * NVIDIA's wheel has the CUDA runtime linked in, and keeps the names of its functions in .symtab.
 * The file stays as it is: only in the memory of this process the first bytes of each function
 * cuda*() become a jump to the function of the same name of this program. */
#ifndef NCCL_PATCH_H
#define NCCL_PATCH_H

/* `path`: of the loaded library. Returns how many functions were redirected, or -1 with a line on
 * stderr. A function that cuda.c does not have ends the process, with a line that names it. */
int patch_cuda(const char *path);

#endif
