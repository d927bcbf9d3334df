/* SPDX-License-Identifier: Apache-2.0 */
/* patch.c - redirects the CUDA runtime inside libnccl.so.2. x86-64 only. */
#include "patch.h"

#include <ctype.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define JUMP_BYTES 13
#define STUB_BYTES 32
#define STUBS_MAX 1024

static unsigned char *stubs;
static unsigned n_stubs;

__attribute__((noreturn, used)) static void not_played(const char *name)
{
	fprintf(stderr, "NCCL calls %s(), which tests/nccl/played does not have\n", name);
	_exit(3);
}

/* mov r11, to; jmp r11 */
static void write_jump(unsigned char *at, const void *to)
{
	at[0] = 0x49;
	at[1] = 0xbb;
	memcpy(at + 2, &to, sizeof(to));
	memcpy(at + 10, "\x41\xff\xe3", 3);
}

/* Code that calls not_played(name): mov rdi, name; jump. NULL when there is no room. */
static const void *stub_for(const char *name)
{
	unsigned char *stub = stubs + (size_t)n_stubs * STUB_BYTES;

	if (n_stubs == STUBS_MAX)
		return NULL;
	n_stubs++;
	stub[0] = 0x48;
	stub[1] = 0xbf;
	memcpy(stub + 2, &name, sizeof(name));
	write_jump(stub + 10, (const void *)(uintptr_t)not_played);
	return stub;
}

static int redirect(unsigned char *function, const void *to)
{
	uintptr_t page = (uintptr_t)function & ~(uintptr_t)4095;

	if (mprotect((void *)page, 2 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) {
		perror("mprotect");
		return -1;
	}
	write_jump(function, to);
	return 0;
}

static int is_runtime(const Elf64_Sym *symbol, const char *name)
{
	return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_size >= JUMP_BYTES &&
	       !strncmp(name, "cuda", 4) && isupper((unsigned char)name[4]);
}

/* The file of the library as it is on the disk, which stays mapped: names are kept. */
static const unsigned char *map_file(const char *path)
{
	struct stat info;
	void *data = MAP_FAILED;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0 && !fstat(fd, &info))
		data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (fd >= 0)
		close(fd);
	if (data == MAP_FAILED) {
		perror(path);
		return NULL;
	}
	return data;
}

/* The function of this name in this library, or one that says that there is none. */
static const void *played(const char *name)
{
	static void *self;
	Dl_info info;
	const void *function;

	if (!self && dladdr((const void *)(uintptr_t)played, &info))
		self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	function = self ? dlsym(self, name) : NULL;
	return function ? function : stub_for(name);
}

static int patch_table(const unsigned char *file, const Elf64_Shdr *table, const char *names,
                       unsigned char *base)
{
	const Elf64_Sym *symbols = (const Elf64_Sym *)(const void *)(file + table->sh_offset);
	int patched = 0;

	for (size_t i = 0; i < table->sh_size / sizeof(*symbols); i++) {
		const char *name = names + symbols[i].st_name;
		const void *to;

		if (!is_runtime(&symbols[i], name))
			continue;
		to = played(name);
		if (!to || redirect(base + symbols[i].st_value, to))
			return -1;
		patched++;
	}
	return patched;
}

int patch_cuda(const char *path)
{
	struct link_map *map;
	void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	const unsigned char *file = map_file(path);
	const Elf64_Ehdr *head = (const Elf64_Ehdr *)(const void *)file;
	const Elf64_Shdr *sections;

	stubs = mmap(NULL, STUBS_MAX * STUB_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
	             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!file || stubs == MAP_FAILED || !library || dlinfo(library, RTLD_DI_LINKMAP, &map))
		return -1;
	sections = (const Elf64_Shdr *)(const void *)(file + head->e_shoff);
	for (unsigned i = 0; i < head->e_shnum; i++) {
		const char *names;

		if (sections[i].sh_type != SHT_SYMTAB)
			continue;
		names = (const char *)file + sections[sections[i].sh_link].sh_offset;
		return patch_table(file, &sections[i], names, (unsigned char *)map->l_addr);
	}
	fprintf(stderr, "%s: no .symtab: it is stripped\n", path);
	return -1;
}
