/* SPDX-License-Identifier: Apache-2.0 */
/* base/compat.h - ask for the oldest versions of glibc's functions.
 *
 * The plugin is loaded inside the user's container, whose glibc may be as old as 2.28; glibc 2.32
 * and 2.34 moved these functions into libc and gave them new versions without changing them.
 * Headers from 2.38 on call strtol and its like by another name, which also reads 0b101: we read
 * decimal numbers. Included before everything else by the Makefile (not in sanitizer builds, whose
 * interceptors know the new versions only). A test holds the libraries of both machines to 2.28 and
 * names what needs a line here. stat and its like, new in 2.33, have no older version to ask for:
 * use statx.
 */
#ifndef NCCL_INSPECTOR_BASE_COMPAT_H
#define NCCL_INSPECTOR_BASE_COMPAT_H

#if defined(__x86_64__)
#define COMPAT_BASE "GLIBC_2.2.5"
#define COMPAT_CONDATTR "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define COMPAT_BASE "GLIBC_2.17"
#define COMPAT_CONDATTR "GLIBC_2.17"
#endif

#ifdef COMPAT_BASE
#define COMPAT_AS(name, function, version) __asm__(".symver " #name "," #function "@" version)
#define COMPAT(function, version) COMPAT_AS(function, function, version)
COMPAT(dladdr, COMPAT_BASE);
COMPAT(dlclose, COMPAT_BASE);
COMPAT(dlopen, COMPAT_BASE);
COMPAT(dlsym, COMPAT_BASE);
COMPAT(pthread_attr_setstacksize, COMPAT_BASE);
COMPAT(pthread_condattr_setclock, COMPAT_CONDATTR);
COMPAT(pthread_create, COMPAT_BASE);
COMPAT(pthread_detach, COMPAT_BASE);
COMPAT(pthread_mutex_trylock, COMPAT_BASE);
COMPAT(pthread_sigmask, COMPAT_BASE);
COMPAT_AS(__isoc23_strtol, strtol, COMPAT_BASE);
COMPAT_AS(__isoc23_strtoll, strtoll, COMPAT_BASE);
COMPAT_AS(__isoc23_strtoul, strtoul, COMPAT_BASE);
COMPAT_AS(__isoc23_strtoull, strtoull, COMPAT_BASE);
#undef COMPAT
#undef COMPAT_AS
#endif

#endif
