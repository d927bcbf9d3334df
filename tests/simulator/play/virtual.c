/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define SECOND_NS 1000000000
#define ACTORS 16
#define FOR_EVER INT64_MAX
#define YIELD_NS 1000               /* how long sched_yield takes, so that others get their turn */
#define LOOK_CPU_NS 20000           /* processor time of a thread between two looks at its clock */
#define REALTIME_LEAST_S 1000000000 /* a due time beyond is of the time of day */

/* A thread, while it lives. Only the one whose turn it is touches them. */
struct actor {
	bool used;
	int64_t due_ns;   /* true time; FOR_EVER: until somebody signals */
	const void *cond; /* that it waits for; NULL: for the time */
	bool signalled;
	int64_t cpu_ns;
	struct carrier *carrier;
};

static const struct virtual_world *world; /* NULL: time is the machine's */
static int64_t now_ns;
static struct actor actors[ACTORS];
static int last_used; /* no actor beyond it ever was */
static _Thread_local struct actor *self;
static volatile uint64_t counter_reads;
static uint64_t turns;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static FILE *(*real_fopen)(const char *, const char *);

static void *next(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found) {
		fprintf(stderr, "the C library has no %s\n", name);
		exit(2);
	}
	return found;
}

__attribute__((constructor)) static void find_real(void)
{
	real_clock_gettime = (int (*)(clockid_t, struct timespec *))next("clock_gettime");
	real_create = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))next(
	    "pthread_create");
	real_fopen = (FILE * (*)(const char *, const char *)) next("fopen");
}

static void __attribute__((noreturn)) fail(const char *why)
{
	fprintf(stderr, "virtual time: %s\n", why);
	_exit(2);
}

/* --- whose turn it is -------------------------------------------------------------------- */

static void take_turns(struct carrier *from, struct carrier *to);

/* Of those that are due at the same time the main thread, which is the first, comes last. */
static struct actor *first_due(void)
{
	struct actor *first = NULL;

	for (int i = last_used; i >= 0; i--)
		if (actors[i].used && (!first || actors[i].due_ns < first->due_ns))
			first = &actors[i];
	if (!first || first->due_ns == FOR_EVER)
		fail("all threads wait for each other");
	if (first->due_ns > now_ns)
		now_ns = first->due_ns;
	return first;
}

/* Returns whether it was signalled. */
static bool wait_until(int64_t due_ns, const void *cond)
{
	struct actor *first;

	self->due_ns = due_ns;
	self->cond = cond;
	self->signalled = false;
	first = first_due();
	if (first != self)
		take_turns(self->carrier, first->carrier);
	self->cond = NULL;
	return self->signalled;
}

static void signal_waiting(const void *cond, bool all)
{
	for (int i = 0; i <= last_used; i++) {
		if (!actors[i].used || actors[i].cond != cond)
			continue;
		actors[i].signalled = true;
		actors[i].cond = NULL;
		actors[i].due_ns = now_ns;
		if (!all)
			return;
	}
}

/* --- threads ----------------------------------------------------------------------------- */

#if defined(__x86_64__)

#define PARKING_BYTES 65536
#define ARCH_SET_FS 0x1002 /* asm/prctl.h */

/* The kernel takes tens of microseconds to let another thread run, and milliseconds on a busy
 * machine. So the program's first thread carries all of them: it changes to the stack and the
 * thread-local data of the one whose turn it is. The thread that the kernel made for these is
 * parked until it is to end. */
struct carrier {
	ucontext_t context, parking;
	uint64_t base;         /* of its thread-local data */
	uint32_t parked, over; /* futexes */
	struct actor *actor;
	void *(*main)(void *argument);
	void *argument;
	char stack[PARKING_BYTES];
};

static struct carrier *leaving; /* of a thread that has just had its last turn */

/* Not the C library's, which writes errno: that is another thread's in between. */
static long call_kernel(long number, long one, long two, long three)
{
	register long four __asm__("r10") = 0;
	long result;

	__asm__ volatile("syscall"
	                 : "=a"(result)
	                 : "a"(number), "D"(one), "S"(two), "d"(three), "r"(four)
	                 : "rcx", "r11", "memory");
	return result;
}

static uint64_t own_base(void)
{
	uint64_t base;

	__asm__("mov %%fs:0, %0" : "=r"(base));
	return base;
}

static void await(uint32_t *word)
{
	while (!__atomic_load_n(word, __ATOMIC_ACQUIRE))
		call_kernel(SYS_futex, (long)word, FUTEX_WAIT_PRIVATE, 0);
}

static void tell(uint32_t *word)
{
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	call_kernel(SYS_futex, (long)word, FUTEX_WAKE_PRIVATE, 1);
}

/* After each change of threads: the kernel's thread of one that is over may end now. */
static void let_leave(void)
{
	if (leaving)
		tell(&leaving->over);
	leaving = NULL;
}

static void change(struct carrier *from, struct carrier *to)
{
	turns++;
	call_kernel(SYS_arch_prctl, ARCH_SET_FS, (long)to->base, 0);
	swapcontext(&from->context, &to->context);
}

static void take_turns(struct carrier *from, struct carrier *to)
{
	change(from, to);
	let_leave();
}

/* The kernel's thread, beside its stack. */
static void park(unsigned high, unsigned low)
{
	struct carrier *carrier = (struct carrier *)((uint64_t)high << 32 | low);

	tell(&carrier->parked);
	await(&carrier->over);
	setcontext(&carrier->context);
}

static void go_and_park(struct carrier *carrier)
{
	uint64_t word = (uint64_t)carrier;

	carrier->base = own_base();
	getcontext(&carrier->parking);
	carrier->parking.uc_stack.ss_sp = carrier->stack;
	carrier->parking.uc_stack.ss_size = sizeof(carrier->stack);
	makecontext(&carrier->parking, (void (*)(void))park, 2, (unsigned)(word >> 32),
	            (unsigned)word);
	swapcontext(&carrier->context, &carrier->parking);
}

static void *actor_main(void *argument)
{
	struct carrier *carrier = argument;
	sigset_t signals;
	void *result;

	/* The plugin's threads are born with all signals blocked, but traps and the alarm are for
	 * the first thread, which carries them. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGSEGV);
	sigaddset(&signals, SIGALRM);
	pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
	self = carrier->actor;
	go_and_park(carrier);
	let_leave();
	result = carrier->main(carrier->argument);
	self->used = false;
	leaving = carrier;
	change(carrier, first_due()->carrier);
	free(carrier); /* in the kernel's thread again */
	return result;
}

static int start(struct actor *actor, pthread_t *thread, const pthread_attr_t *attributes,
                 void *(*main)(void *), void *argument)
{
	struct carrier *carrier = calloc(1, sizeof(*carrier));
	int error = EAGAIN;

	if (carrier) {
		carrier->actor = actor;
		carrier->main = main;
		carrier->argument = argument;
		*actor = (struct actor){ .used = true, .due_ns = now_ns, .carrier = carrier };
		error = real_create(thread, attributes, actor_main, carrier);
	}
	actor->used = !error;
	if (error)
		free(carrier);
	else
		await(&carrier->parked);
	return error;
}

static bool carry_self(struct actor *actor)
{
	actor->carrier = calloc(1, sizeof(*actor->carrier));
	if (!actor->carrier)
		return false;
	actor->carrier->base = own_base();
	return true;
}

#else

struct carrier {
	char none;
};

static void take_turns(struct carrier *from, struct carrier *to)
{
	(void)from;
	(void)to;
}

static int start(struct actor *actor, pthread_t *thread, const pthread_attr_t *attributes,
                 void *(*main)(void *), void *argument)
{
	(void)actor;
	return real_create(thread, attributes, main, argument);
}

static bool carry_self(struct actor *actor)
{
	(void)actor;
	return false;
}

#endif

int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict attributes,
                   void *(*main)(void *), void *restrict argument)
{
	int i = 0;

	if (!world)
		return real_create(thread, attributes, main, argument);
	while (i < ACTORS && actors[i].used)
		i++;
	if (i == ACTORS)
		return EAGAIN;
	last_used = i > last_used ? i : last_used;
	return start(&actors[i], thread, attributes, main, argument);
}

/* --- clocks ------------------------------------------------------------------------------ */

static int64_t host_ns(int64_t base_ns, int64_t true_ns)
{
	return base_ns + true_ns + (int64_t)((double)true_ns * world->drift);
}

/* The first true time at which the node's clock shows as much. */
static int64_t true_ns(int64_t base_ns, int64_t shown_ns)
{
	int64_t ns = (int64_t)((double)(shown_ns - base_ns) / (1 + world->drift)) - 1;

	while (host_ns(base_ns, ns) < shown_ns)
		ns++;
	return ns;
}

static int64_t show(clockid_t id)
{
	switch (id) {
	case CLOCK_REALTIME:
	case CLOCK_REALTIME_COARSE:
	case CLOCK_TAI:
		return host_ns(world->real0_ns, now_ns);
	case CLOCK_PROCESS_CPUTIME_ID:
	case CLOCK_THREAD_CPUTIME_ID:
		return self->cpu_ns += LOOK_CPU_NS;
	default:
		return host_ns(world->mono0_ns, now_ns);
	}
}

int clock_gettime(clockid_t id, struct timespec *shown)
{
	int64_t ns;

	if (!world || !self)
		return real_clock_gettime(id, shown);
	ns = show(id);
	shown->tv_sec = (time_t)(ns / SECOND_NS);
	shown->tv_nsec = (long)(ns % SECOND_NS);
	return 0;
}

int gettimeofday(struct timeval *restrict shown, void *restrict zone)
{
	struct timespec time;
	int error = clock_gettime(CLOCK_REALTIME, &time);

	(void)zone;
	shown->tv_sec = time.tv_sec;
	shown->tv_usec = time.tv_nsec / 1000;
	return error;
}

time_t time(time_t *shown)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	if (shown)
		*shown = time.tv_sec;
	return time.tv_sec;
}

static int64_t span_ns(const struct timespec *span)
{
	return (int64_t)span->tv_sec * SECOND_NS + span->tv_nsec;
}

static int64_t due_ns(const struct timespec *due)
{
	bool by_day = due->tv_sec >= REALTIME_LEAST_S;

	return true_ns(by_day ? world->real0_ns : world->mono0_ns, span_ns(due));
}

/* --- waits ------------------------------------------------------------------------------- */

int nanosleep(const struct timespec *span, struct timespec *rest)
{
	if (!world)
		return (int)syscall(SYS_nanosleep, span, rest);
	wait_until(now_ns + span_ns(span), NULL);
	return 0;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *span, struct timespec *rest)
{
	if (!world)
		return syscall(SYS_clock_nanosleep, id, flags, span, rest) ? errno : 0;
	wait_until(flags & TIMER_ABSTIME ? due_ns(span) : now_ns + span_ns(span), NULL);
	return 0;
}

int usleep(useconds_t us)
{
	struct timespec span = { (time_t)(us / 1000000), (long)(us % 1000000) * 1000 };

	return nanosleep(&span, NULL);
}

int sched_yield(void)
{
	if (world)
		wait_until(now_ns + YIELD_NS, NULL);
	return 0;
}

static int wait_for(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns)
{
	bool signalled;

	if (!world)
		fail("a wait for another thread before time has begun");
	pthread_mutex_unlock(lock);
	signalled = wait_until(until_ns, cond);
	pthread_mutex_lock(lock);
	return signalled ? 0 : ETIMEDOUT;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict lock,
                           const struct timespec *restrict due)
{
	return wait_for(cond, lock, due_ns(due));
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict lock,
                           clockid_t id, const struct timespec *restrict due)
{
	(void)id;
	return wait_for(cond, lock, due_ns(due));
}

int pthread_cond_wait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict lock)
{
	return wait_for(cond, lock, FOR_EVER);
}

int pthread_cond_signal(pthread_cond_t *cond)
{
	signal_waiting(cond, false);
	return 0;
}

int pthread_cond_broadcast(pthread_cond_t *cond)
{
	signal_waiting(cond, true);
	return 0;
}

/* --- who and where we are ---------------------------------------------------------------- */

pid_t getpid(void)
{
	return world ? world->pid : (pid_t)syscall(SYS_getpid);
}

int gethostname(char *name, size_t room)
{
	if (!world) {
		errno = ENOSYS;
		return -1;
	}
	snprintf(name, room, "%s", world->host);
	return 0;
}

/* The plugin's threads would be nice to an application that does not run here. */
int setpriority(__priority_which_t which, id_t who, int priority)
{
	(void)which;
	(void)who;
	(void)priority;
	return 0;
}

/* What the NVIDIA driver says of a GPU; everything else is the machine's. */
FILE *fopen(const char *restrict path, const char *restrict mode)
{
	static const char gpus[] = "/proc/driver/nvidia/gpus/";
	static char text[64];

	if (!world || strncmp(path, gpus, sizeof(gpus) - 1) != 0)
		return real_fopen(path, mode);
	snprintf(text, sizeof(text), "Model:\t\t fake\nDevice Minor: \t %d\n", world->minor);
	return fmemopen(text, strlen(text), "r");
}

/* --- the processor's counter ------------------------------------------------------------- */

#if defined(__x86_64__)

static void on_fault(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	const unsigned char *code = (const unsigned char *)registers[REG_RIP];
	bool is_rdtsc = code[0] == 0x0f && code[1] == 0x31;
	bool is_rdtscp = code[0] == 0x0f && code[1] == 0x01 && code[2] == 0xf9;

	(void)info;
	if (!is_rdtsc && !is_rdtscp) {
		sigaction(signal, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL);
		return; /* and there it is again */
	}
	counter_reads++;
	registers[REG_RAX] = 1;
	registers[REG_RDX] = 0;
	if (is_rdtscp)
		registers[REG_RCX] = 0;
	registers[REG_RIP] += is_rdtscp ? 3 : 2;
}

static bool stop_counter(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	sigaction(SIGSEGV, &action, NULL);
	if (!prctl(PR_SET_TSC, PR_TSC_SIGSEGV))
		return true;
	fprintf(stderr, "virtual time: this kernel cannot make the counter trap (PR_SET_TSC): %s\n",
	        strerror(errno));
	return false;
}

#else

static bool stop_counter(void)
{
	fprintf(stderr, "virtual time: only on x86-64, whose counter can be made to trap\n");
	return false;
}

#endif

/* --- for the player ---------------------------------------------------------------------- */

bool virtual_begin(const struct virtual_world *of)
{
	if (!stop_counter() || !carry_self(&actors[0]))
		return false;
	self = &actors[0];
	self->used = true;
	world = of;
	return true;
}

int64_t virtual_now(void)
{
	return now_ns;
}

void virtual_advance(int64_t ns)
{
	bool is_next = true;

	if (ns <= now_ns)
		return;
	for (int i = 1; i <= last_used; i++)
		is_next = is_next && !(actors[i].used && actors[i].due_ns <= ns);
	if (is_next)
		now_ns = ns;
	else
		wait_until(ns, NULL);
}

uint64_t virtual_counter_reads(void)
{
	return counter_reads;
}

uint64_t virtual_turns(void)
{
	return turns;
}
