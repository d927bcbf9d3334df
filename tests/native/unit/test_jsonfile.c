/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the JSON mode: names, rotation, what fails, gzip. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "json/file.h"
#include "tap.h"

static char base[64];
static _Atomic bool full; /* the disk: takes one byte more, and gives none back */

/* Before the C library's. */
ssize_t write(int fd, const void *data, size_t length)
{
	static _Atomic bool taken;

	if (!atomic_load(&full))
		return syscall(SYS_write, fd, data, length);
	if (!atomic_exchange(&taken, true))
		return syscall(SYS_write, fd, data, 1);
	errno = ENOSPC;
	return -1;
}

int ftruncate(int fd, off_t length)
{
	if (!atomic_load(&full))
		return (int)syscall(SYS_ftruncate, fd, length);
	errno = EIO;
	return -1;
}

static const char *path_of(const char *name)
{
	static __thread char paths[2][256];
	static __thread unsigned next;
	char *path = paths[next++ % 2];

	snprintf(path, sizeof(*paths), "%s/%s", base, name);
	return path;
}

/* Bytes of a file, "(none)" without it. */
static const char *content(const char *name)
{
	static char text[4096];
	FILE *file = fopen(path_of(name), "r");

	if (!file)
		return "(none)";
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	return text;
}

static void put(const char *name, const char *text)
{
	FILE *file = fopen(path_of(name), "w");

	if (file)
		fputs(text, file);
	if (file)
		fclose(file);
}

static struct jsonfile open_in(const char *dir)
{
	struct jsonfile file;

	jsonfile_init(&file, path_of(dir), "vm-pid7");
	return file;
}

static int add(struct jsonfile *file, const char *lines)
{
	return jsonfile_write(file, lines, strlen(lines));
}

static void test_place(void)
{
	struct jsonfile file = open_in("a/b/c"), other = open_in("a/b/c");
	struct stat found;

	umask(022);
	ok(add(&file, "one\n") == 0 && !strcmp(content("a/b/c/vm-pid7.log"), "one\n"),
	   "the directory is made, with its parents");
	ok(stat(path_of("a/b"), &found) == 0 && (found.st_mode & 0777) == 0755,
	   "for others to read");
	ok(stat(path_of("a/b/c/vm-pid7.log"), &found) == 0 && (found.st_mode & 0777) == 0644,
	   "like the file");
	ok(fcntl(file.log.fd, F_GETFD) == FD_CLOEXEC && file.log.fd > 2,
	   "which programs that the job starts do not get");
	ok(add(&other, "x\n") == 0 && !strcmp(content("a/b/c/vm-pid7.1.log"), "x\n"),
	   "a name that is taken is left alone");
	ok(add(&file, "two\n") == 0 && !strcmp(content("a/b/c/vm-pid7.log"), "one\ntwo\n"),
	   "lines are appended");
	jsonfile_close(&file);
	ok(add(&file, "three\n") == 0 && !strcmp(content("a/b/c/vm-pid7.log"), "one\ntwo\nthree\n"),
	   "after a pause, too");
	jsonfile_close(&file);
	unlink(path_of("a/b/c/vm-pid7.log"));
	put("a/b/c/vm-pid7.log", "another's\n");
	ok(add(&file, "four\n") == 0 && !strcmp(content("a/b/c/vm-pid7.log"), "another's\n") &&
	       !strcmp(content("a/b/c/vm-pid7.2.log"), "four\n"),
	   "but not to a file that is not ours");
	jsonfile_close(&file);
	jsonfile_close(&other);
}

static void test_end(void)
{
	struct jsonfile file = open_in("end");

	jsonfile_put_end(&file, "{}\n", 3);
	ok(!strcmp(content("end/vm-pid7.log.end"), "(none)"), "without lines there is no end");
	add(&file, "one\n");
	put("end/vm-pid7.log.end", "of another process that had this name");
	jsonfile_put_end(&file, "{}\n", 3);
	ok(!strcmp(content("end/vm-pid7.log.end"), "{}\n"), "the end is beside the lines");
	jsonfile_close(&file);
	jsonfile_remove_end(&file);
	ok(!strcmp(content("end/vm-pid7.log.end"), "(none)"), "it goes when the process goes on");
	jsonfile_put_end(&file, "{}\n", 3);
	ok(!strcmp(content("end/vm-pid7.log.end"), "{}\n"), "and comes again");
	jsonfile_close(&file);
	unlink(path_of("end/vm-pid7.log"));
	put("end/vm-pid7.log", "another's\n");
	jsonfile_remove_end(&file);
	ok(!strcmp(content("end/vm-pid7.log.end"), "{}\n"),
	   "beside a file that is not ours it stays");
	unlink(path_of("end/vm-pid7.log"));
	unlink(path_of("end/vm-pid7.log.end"));
	rmdir(path_of("end"));
	jsonfile_close(&file);
	jsonfile_put_end(&file, "{}\n", 3);
	ok(access(path_of("end"), F_OK) != 0,
	   "a directory that was removed is not made again for it");
	jsonfile_close(&file);
}

static void test_links(void)
{
	struct jsonfile file = open_in("links");

	mkdir(path_of("links"), 0755);
	put("victim", "untouched\n");
	ok(symlink("../victim", path_of("links/vm-pid7.log")) == 0 &&
	       symlink("nowhere", path_of("links/vm-pid7.1.log")) == 0 &&
	       add(&file, "one\n") == 0 && !strcmp(content("victim"), "untouched\n") &&
	       !strcmp(content("links/vm-pid7.2.log"), "one\n"),
	   "a link is not followed");
	jsonfile_close(&file);
}

static void test_rotation(void)
{
	struct jsonfile file = open_in("rotated");

	file.file_bytes = 10;
	file.files = 2;
	for (int i = 0; i < 5; i++)
		ok(add(&file, "12345\n") == 0, "line %d", i);
	ok(!strcmp(content("rotated/vm-pid7.2.log"), "(none)") &&
	       !strcmp(content("rotated/vm-pid7.3.log"), "12345\n") &&
	       !strcmp(content("rotated/vm-pid7.4.log"), "12345\n"),
	   "the newest two are kept");
	ok(add(&file, "1234567890\n") == -EFBIG &&
	       !strcmp(content("rotated/vm-pid7.4.log"), "12345\n"),
	   "a line larger than a file is an error");
	put("rotated/mine", "mine\n");
	ok(rename(path_of("rotated/mine"), path_of("rotated/vm-pid7.3.log")) == 0 &&
	       add(&file, "12345\n") == 0 && !strcmp(content("rotated/vm-pid7.3.log"), "mine\n"),
	   "what the user put in place of an old one is not removed");
	jsonfile_close(&file);
}

static void test_emptied(void)
{
	struct jsonfile file = open_in("emptied");

	add(&file, "one\n");
	put("emptied/vm-pid7.log", "");
	ok(add(&file, "two\n") == 0 && !strcmp(content("emptied/vm-pid7.log"), "two\n"),
	   "a file that the user emptied begins anew");
	ok(jsonfile_room(&file, false) == JSONFILE_CHUNK_BYTES, "much is written at a time");
	file.file_bytes = 1000;
	ok(jsonfile_room(&file, false) == 1000, "but no more than a file may hold");
	jsonfile_close(&file);
}

static void test_removed(void)
{
	struct jsonfile file = open_in("gone/deep");

	add(&file, "one\n");
	unlink(path_of("gone/deep/vm-pid7.log"));
	ok(add(&file, "two\n") == 0 && !strcmp(content("gone/deep/vm-pid7.1.log"), "two\n"),
	   "a file that was removed is followed by another");
	unlink(path_of("gone/deep/vm-pid7.1.log"));
	rmdir(path_of("gone/deep"));
	rmdir(path_of("gone"));
	ok(add(&file, "three\n") == 0 && !strcmp(content("gone/deep/vm-pid7.2.log"), "three\n"),
	   "a directory that was removed is made anew");
	jsonfile_close(&file);
}

static void test_bad_places(void)
{
	struct jsonfile file = open_in("file/below");

	put("file", "");
	ok(add(&file, "one\n") == -ENOTDIR, "below a file there is no place");
	unlink(path_of("file"));
	ok(add(&file, "one\n") == 0, "until the file is gone");
	jsonfile_close(&file);
	jsonfile_init(&file, "/proc/self/fdinfo", "vm-pid7");
	ok(add(&file, "one\n") < 0, "nor in /proc");
	jsonfile_close(&file);
	jsonfile_init(&file, "", "vm-pid7");
	ok(add(&file, "one\n") < 0, "nor without a name");
	jsonfile_close(&file);
}

static void test_limits(void)
{
	struct rlimit limit, old;
	struct jsonfile file = open_in("limited");
	struct sigaction act = { .sa_handler = SIG_DFL };

	sigaction(SIGXFSZ, &act, NULL);
	getrlimit(RLIMIT_FSIZE, &old);
	limit = old;
	limit.rlim_cur = 16;
	file.files = 3;
	setrlimit(RLIMIT_FSIZE, &limit);
	int first = add(&file, "1234567890\n"), second = add(&file, "1234567890\n");
	int large = add(&file, "1234567890123456\n");

	setrlimit(RLIMIT_FSIZE, &old);
	ok(!first && !second && large == -EFBIG &&
	       !strcmp(content("limited/vm-pid7.log"), "1234567890\n") &&
	       !strcmp(content("limited/vm-pid7.1.log"), "1234567890\n"),
	   "the limit of the process on files is kept without a signal");
	jsonfile_close(&file);
}

static void test_full_disk(void)
{
	struct jsonfile file = open_in("full");

	file.files = 2;
	add(&file, "one\n");
	atomic_store(&full, true);
	ok(add(&file, "two\n") == -ENOSPC && !strcmp(content("full/vm-pid7.log"), "one\nt"),
	   "a full disk is an error");
	atomic_store(&full, false);
	ok(add(&file, "three\n") == 0 && !strcmp(content("full/vm-pid7.log"), "one\nt") &&
	       !strcmp(content("full/vm-pid7.1.log"), "three\n"),
	   "and what could not be taken back stays in a file of its own");
	jsonfile_close(&file);
}

/* The application closes what it has not opened, and its own files get the numbers. */
static void test_taken_descriptors(void)
{
	struct jsonfile file = open_in("taken");
	int file_fd, dir_fd, mine;

	mkdir(path_of("other"), 0755);
	add(&file, "one\n");
	file_fd = file.log.fd;
	dir_fd = file.at.fd;
	mine = open(path_of("mine"), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	dup2(mine, file_fd);
	close(mine);
	mine = open(path_of("other"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dup2(mine, dir_fd);
	close(mine);
	ok(add(&file, "two\n") == 0 && !strcmp(content("taken/vm-pid7.log"), "one\ntwo\n") &&
	       !strcmp(content("mine"), ""),
	   "a descriptor that is the application's now is not written to");
	ok(rmdir(path_of("other")) == 0, "nor is a file made in its directory");
	ok(fcntl(file_fd, F_GETFD) >= 0 && fcntl(dir_fd, F_GETFD) >= 0, "and neither is closed");
	int ours = file.log.fd, our_dir = file.at.fd;

	dup2(file_fd, ours);
	dup2(file_fd, our_dir);
	jsonfile_close(&file);
	ok(fcntl(ours, F_GETFD) >= 0 && fcntl(our_dir, F_GETFD) >= 0, "nor at the end");
	ok(add(&file, "three\n") == 0 && !strcmp(content("taken/vm-pid7.log"), "one\ntwo\nthree\n"),
	   "lines go on in the file");
	jsonfile_close(&file);
	for (int i = 0; i < 4; i++)
		close((int[]){ file_fd, dir_fd, ours, our_dir }[i]);
}

/* As an old container runtime does it. False where that cannot be had. */
static bool refuse(unsigned first, unsigned second)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, second, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(steps) / sizeof(*steps), steps };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static unsigned count_files(const char *name)
{
	unsigned count = 0;
	DIR *dir = opendir(path_of(name));

	for (struct dirent *entry; dir && (entry = readdir(dir));)
		count += entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return count;
}

/* Exit status of a child that writes 20 full files: 2 where nothing can be refused, 1 when it could
 * not write. */
static int write_refused(const char *dir, unsigned also)
{
	int status = 0;
	pid_t child = fork();

	if (!child) {
		struct jsonfile file = open_in(dir);
		int error = 0;

		file.file_bytes = 10;
		file.files = 2;
		if (!refuse(SYS_statx, also))
			_exit(2);
		for (int i = 0; i < 20 && !error; i++)
			error = add(&file, "12345\n");
		_exit(error != 0);
	}
	return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_refused_calls(void)
{
	int code = write_refused("refused", SYS_statx);

	if (code == 2) {
		printf("# nothing can be refused here\n");
		return;
	}
	ok(code == 0 && count_files("refused") == 2,
	   "where statx is refused old files are removed like elsewhere (%d, %u)", code,
	   count_files("refused"));
	code = write_refused("blind", SYS_newfstatat);
	ok(code == 1 && count_files("blind") == 0,
	   "files that could never be removed are not made (%d, %u)", code, count_files("blind"));
}

/* Both lines, by the real zlib. */
static void test_gzip(void)
{
	struct jsonfile file = open_in("packed");
	char command[320], lines[64] = "";

	file.gzip = gzip_open();
	if (!file.gzip && getenv("NCCL_INSPECTOR_TEST_EMULATED"))
		return; /* a foreign machine's libraries are not all here */
	if (!ok(file.gzip != NULL, "zlib is there"))
		return;
	ok(add(&file, "one\n") == 0 && add(&file, "two\n") == 0, "two members are written");
	snprintf(command, sizeof(command), "gzip -dc %s", path_of("packed/vm-pid7.log.gz"));
	FILE *pipe = popen(command, "r");

	lines[pipe ? fread(lines, 1, sizeof(lines) - 1, pipe) : 0] = '\0';
	ok(pipe && pclose(pipe) == 0 && !strcmp(lines, "one\ntwo\n"), "and read as one file (%s)",
	   lines);
	jsonfile_close(&file);
}

static void *make_one(void *argument)
{
	struct jsonfile file = open_in("race/of/ranks");
	unsigned *good = argument;

	*good = add(&file, "one\n") == 0;
	jsonfile_close(&file);
	return NULL;
}

static void test_race(void)
{
	pthread_t threads[16];
	unsigned good[16] = { 0 }, sum = 0, files = 0;

	for (int i = 0; i < 16; i++)
		pthread_create(&threads[i], NULL, make_one, &good[i]);
	for (int i = 0; i < 16; i++) {
		pthread_join(threads[i], NULL);
		sum += good[i];
	}
	DIR *dir = opendir(path_of("race/of/ranks"));

	for (struct dirent *entry; dir && (entry = readdir(dir));)
		files += strstr(entry->d_name, "vm-pid7") == entry->d_name;
	if (dir)
		closedir(dir);
	ok(sum == 16 && files == 16,
	   "sixteen that make the directory at once all write (%u, %u files)", sum, files);
}

int main(void)
{
	snprintf(base, sizeof(base), "/dev/shm/test_jsonfile.XXXXXX");
	if (!ok(mkdtemp(base) != NULL, "a directory"))
		return done_testing();
	test_place();
	test_end();
	test_links();
	test_rotation();
	test_emptied();
	test_removed();
	test_bad_places();
	test_limits();
	test_full_disk();
	test_taken_descriptors();
	test_refused_calls();
	test_gzip();
	test_race();
	char command[96];

	snprintf(command, sizeof(command), "rm -r %s", base);
	ok(system(command) == 0, "swept");
	return done_testing();
}
