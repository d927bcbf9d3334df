# slurm-nccl-inspector: the one entry point. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := build

CC := gcc
# In a Turkish locale toupper("i") is no I.
AWK := LC_ALL=C awk
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' python/nccl_inspector/__init__.py)
CSTD := -std=gnu11
WARN := -Wall -Wextra -Wshadow -Wconversion -Wformat=2 -Wvla -Wstrict-prototypes $(if $(CI),-Werror)
# SAN=address,undefined or SAN=thread builds everything again in a folder of its own; at -O1 that takes a fifth less time.
SAN ?=
OPT ?= $(if $(SAN),-O1,-O2) -g
# CROSS=MACHINE builds in a folder of its own, with that machine's compiler in CC.
CROSS ?=
comma := ,
B := build$(if $(CROSS),/$(CROSS))$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
CFLAGS_ALL := $(CSTD) $(OPT) $(WARN) -D_GNU_SOURCE -fPIC -pthread -MMD -MP -ffile-prefix-map=$(CURDIR)=. $(SANFLAGS) -DNCCL_INSPECTOR_VERSION='"$(VERSION)"' $(CFLAGS)
# For what is loaded into other people's processes; not with the sanitizers, which have checks of their own. HARDEN= leaves
# it out. FORTIFY's level is the highest that compiler and C library have; what it calls is older than glibc 2.28.
ifeq ($(origin HARDEN),undefined)
FORTIFY := $(shell echo __USE_FORTIFY_LEVEL | $(CC) $(OPT) $(CFLAGS) -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -include features.h -E -P - 2>/dev/null | tail -n 1)
cc_knows = $(shell $(CC) $(1) -x c -c -o /dev/null /dev/null 2>/dev/null && echo $(1))
HARDEN := -U_FORTIFY_SOURCE $(if $(filter 2 3,$(FORTIFY)),-D_FORTIFY_SOURCE=$(FORTIFY)) -fstack-protector-strong \
	$(call cc_knows,-fstack-clash-protection) \
	$(call cc_knows,$(if $(findstring aarch64,$(shell $(CC) -dumpmachine)),-mbranch-protection=standard,-fcf-protection))
endif
HARD_CFLAGS := $(if $(SAN),,$(HARDEN))
HARD_LDFLAGS := -Wl,-z,relro,-z,now,-z,noexecstack -Wl,--build-id
# SLURM_INCLUDE=DIR builds the SPANK plugin for the Slurm whose DIR/slurm/spank.h that is, in a folder of its own.
SLURM_INCLUDE ?=
slurm_number = $(shell sed -n 's/^.define SLURM_VERSION_NUMBER *//p' $(SLURM_INCLUDE)/slurm/slurm_version.h)
slurm_version = $(shell n=$(slurm_number); printf '%d.%02d.%d' $$((n >> 16)) $$((n >> 8 & 255)) $$((n & 255)))
PREFIX ?= /usr
SYSCONFDIR ?= /etc
LIBDIR ?= $(PREFIX)/lib/nccl-inspector
SLURM_PLUGINDIR ?= $(LIBDIR)
# With other paths than the usual ones the SPANK plugin is another library, in a folder of its own, too.
OTHER_PATHS = $(filter-out /usr/lib/nccl-inspector /etc,$(LIBDIR) $(SYSCONFDIR))
SB := $(B)$(if $(SLURM_INCLUDE),/slurm-$(slurm_version))$(if $(OTHER_PATHS),/paths-$(firstword $(shell echo $(LIBDIR) $(SYSCONFDIR) | cksum)))
VENV := .venv
PY := $(VENV)/bin/python

PLUGIN_SRC := $(wildcard plugin/*.c plugin/*/*.c)
SPANK_SRC := $(wildcard spank/*.c)
STANDIN_SRC := $(wildcard tests/native/standin/*.c)
PLUGIN_OBJ := $(PLUGIN_SRC:%.c=$(B)/%.o)
SPANK_OBJ := $(SPANK_SRC:%.c=$(SB)/%.o)
PLAYER_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard tests/native/player/*.c))
STANDIN_OBJ := $(STANDIN_SRC:%.c=$(B)/%.o)
# Callbacks need Slurm around them.
CALLBACK_OBJ := $(B)/spank/spank_nccl_inspector.o $(B)/spank/job_script.o
UNIT_OBJ := $(filter-out $(CALLBACK_OBJ),$(PLUGIN_OBJ) $(SPANK_SRC:%.c=$(B)/%.o))
UNIT_BIN := $(patsubst tests/native/unit/%.c,$(B)/c/%,$(wildcard tests/native/unit/test_*.c))
HOST_BIN := $(patsubst tests/native/host/%.c,$(B)/host/%,$(wildcard tests/native/host/*.c))
PLAYER_CHECK_BIN := $(patsubst tests/native/player/check/%.c,$(B)/player/%,$(wildcard tests/native/player/check/*.c))
BENCH_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard tests/bench/nccl/*.c))
BENCH_BIN := $(B)/bench/nccl $(patsubst tests/bench/nccl/lib/%.c,$(B)/bench/%.so,$(wildcard tests/bench/nccl/lib/*.c))
PLAYER_CHECK_SO := $(patsubst tests/native/player/check/lib/%.c,$(B)/player/%.so,$(wildcard tests/native/player/check/lib/*.c))
GEN := build/gen/settings_table.h build/gen/metrics_table.h build/gen/deny_nccl.h

PROFILER := $(B)/libnccl-profiler-inspector.so
SPANK := $(SB)/spank_nccl_inspector.so
STANDIN := $(B)/nccl-standin
FAKECUDA := $(B)/fakecuda/libcuda.so.1
PLAYED_NCCL := $(B)/player/libnccl.so.2
# A CUDA runtime to put into NVIDIA's libnccl.so.2, and the NVML that it asks for. x86-64 only, and not part of `build`.
NCCL_CUDA := $(B)/nccl-played/libplayed-cuda.so
NCCL_CUDA_OBJ := $(patsubst %,$(B)/tests/nccl/played/%.o,cuda driver gpu graph net patch)
NCCL_NVML := $(B)/nccl-played/libnvidia-ml.so.1
FAKENVML := $(B)/fakenvml/libnvidia-ml.so.1
FAKEDATE := $(B)/fakedate/libfakedate.so
RECORDER := $(B)/recorder.so
NVIDIA_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard tests/native/nvidia/*.c))
NVIDIA := $(B)/nvidia-standin.so
DEFECTS_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard tests/native/defects/*.c))
DEFECTS_PLAY := $(B)/defects/play
SIMULATOR_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard tests/simulator/play/*.c))
SIMULATOR_PLAY := $(B)/simulator/play

.PHONY: help build product testparts setup apt venv test test-long verified bench lint demo cluster-up cluster-down clean san
help:
	@sed -n 's/^#: //p' Makefile packaging/install.mk

#: make build        the two plugins and what the tests need, into build/
# In parallel by itself: what comes before it (setup) must not be. Jobs of other users load what it makes.
# Inside another of its kind it shares the processes of that.
AT_ONCE = umask 022; $(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
build:
	@$(AT_ONCE) product testparts
product: $(PROFILER) $(SPANK)
testparts: $(STANDIN) $(FAKECUDA) $(PLAYED_NCCL) $(FAKENVML) $(FAKEDATE) $(RECORDER) $(NVIDIA) $(DEFECTS_PLAY) $(SIMULATOR_PLAY) $(HOST_BIN) $(UNIT_BIN) $(PLAYER_CHECK_BIN) $(PLAYER_CHECK_SO) $(BENCH_BIN)

build/gen/settings_table.h: python/nccl_inspector/settings/settings.tsv packaging/gen-settings.awk
	@mkdir -p $(@D)
	@$(AWK) -f packaging/gen-settings.awk $< >$@.tmp && mv $@.tmp $@
build/gen/metrics_table.h: python/nccl_inspector/exposition/metrics.tsv packaging/gen-metrics.awk
	@mkdir -p $(@D)
	@$(AWK) -f packaging/gen-metrics.awk $< >$@.tmp && mv $@.tmp $@
build/gen/deny_nccl.h: python/nccl_inspector/settings/deny_nccl.tsv packaging/gen-deny-nccl.awk
	@mkdir -p $(@D)
	@$(AWK) -f packaging/gen-deny-nccl.awk $< >$@.tmp && mv $@.tmp $@

build/gen/nccl-inspector.conf.sample: python/nccl_inspector/settings/settings.tsv packaging/gen-conf.awk
	@mkdir -p $(@D)
	@$(AWK) -f packaging/gen-conf.awk $< >$@

$(B)/%.o: %.c Makefile | $(GEN)
	@mkdir -p $(@D)
	@echo CC $<
	@$(CC) $(CFLAGS_ALL) $(EXTRA) -Ibuild/gen -Iplugin -Ispank -c -o $@ $<

ifneq ($(SB),$(B))
$(SB)/gen/settings_table.h: python/nccl_inspector/settings/settings.tsv packaging/gen-settings.awk
	@mkdir -p $(@D)
	@$(AS_GIVEN) $< | $(AWK) -f packaging/gen-settings.awk >$@.tmp && mv $@.tmp $@
# Only the folder slurm of it: beside that may lie the C library of another system.
$(SB)/include/slurm: $(SLURM_INCLUDE)/slurm/spank.h
	@mkdir -p $(@D)
	@ln -sfn $(abspath $(SLURM_INCLUDE))/slurm $@
$(SB)/%.o: %.c Makefile | $(GEN) $(SB)/gen/settings_table.h $(if $(SLURM_INCLUDE),$(SB)/include/slurm)
	@mkdir -p $(@D)
	@echo CC $< in $(SB)
	@$(CC) $(CFLAGS_ALL) $(HARD_CFLAGS) -DSETTINGS_DEFAULT_FILE='"$(SYSCONFDIR)/nccl-inspector/nccl-inspector.conf"' \
		$(if $(SLURM_INCLUDE),-I$(SB)/include) -I$(SB)/gen -Ibuild/gen -Iplugin -Ispank -c -o $@ $<
endif

$(B)/spank/%.o: EXTRA = $(HARD_CFLAGS)
$(B)/plugin/%.o: EXTRA = -fvisibility=hidden $(HARD_CFLAGS) $(if $(SAN),,-include plugin/base/compat.h)
# On a glibc before 2.34 threads and dlopen live in libraries of their own: say that we need them.
OLD_LIBS := $(if $(SAN),-ldl,-Wl$(comma)--no-as-needed -l:libpthread.so.0 -l:libdl.so.2)

# -z nodelete: a thread that is stuck on a dead file system may outlive NCCL's dlclose.
$(PROFILER): $(PLUGIN_OBJ) plugin/profiler.map
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -o $@ $(PLUGIN_OBJ) -Wl,--version-script=plugin/profiler.map \
		$(HARD_LDFLAGS) -Wl,-z,nodelete -Wl,--no-undefined$(if $(SAN),$(comma)--unresolved-symbols=ignore-all) $(OLD_LIBS)
$(SPANK): $(SPANK_OBJ) spank/spank.map
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -o $@ $(SPANK_OBJ) -Wl,--version-script=spank/spank.map $(HARD_LDFLAGS)
$(STANDIN): $(STANDIN_OBJ)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -rdynamic -o $@ $(STANDIN_OBJ) -ldl -lm
$(FAKECUDA): tests/native/fakecuda/fakecuda.c tests/native/fakecuda/work.c
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -Wl,-soname,libcuda.so.1 -o $@ $^
# A program loads it instead of NCCL's own: it plays NCCL to the profiler.
$(PLAYED_NCCL): $(B)/tests/native/player/lib/libnccl.o $(PLAYER_OBJ)
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -Wl,-soname,libnccl.so.2 -o $@ $^ -ldl
$(FAKENVML): tests/native/fakenvml/fakenvml.c
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -Wl,-soname,libnvidia-ml.so.1 -o $@ $< -ldl
# A date after 2038, for tests in hostile company.
$(FAKEDATE): tests/native/fakedate/fakedate.c
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -o $@ $< -ldl
$(NCCL_CUDA): $(NCCL_CUDA_OBJ)
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -o $@ $^ -ldl
$(NCCL_NVML): $(B)/tests/nccl/played/nvml.o
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -Wl,-soname,libnvidia-ml.so.1 -o $@ $^
$(RECORDER): tests/native/standin/recorder/recorder.c
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -Itests/native/standin -shared -o $@ $<
# A profiler with the habits of NVIDIA's, for sites that use that.
$(B)/tests/native/nvidia/%.o: EXTRA = -Itests/native/standin
$(NVIDIA): $(NVIDIA_OBJ) tests/native/nvidia/inspector.map
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -o $@ $(NVIDIA_OBJ) -Wl,--version-script=tests/native/nvidia/inspector.map -ldl -lm
# -rdynamic: its own write, malloc and so on come before the C library's, for the plugin too.
$(B)/tests/native/defects/%.o: EXTRA = -Itests/native/standin -Itests/native/player
$(DEFECTS_PLAY): $(DEFECTS_OBJ) $(PLAYER_OBJ)
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -rdynamic -o $@ $^ -ldl
# The same for clocks, waits and threads: it plays hours in seconds.
$(B)/tests/simulator/%.o: EXTRA = -Itests/native/standin -Itests/native/player
$(SIMULATOR_PLAY): $(SIMULATOR_OBJ) $(PLAYER_OBJ)
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -rdynamic -o $@ $^ -ldl
$(B)/c/%: $(B)/tests/native/unit/%.o $(UNIT_OBJ)
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -o $@ $^ -ldl -lm
$(B)/c/test_conserves: $(B)/plugin/tables.o $(B)/tests/native/fuzz/calls.o
$(B)/host/%: $(B)/tests/native/host/%.o
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -rdynamic -o $@ $^ -ldl -lm
# A program of one file that plays NCCL: what it needs of tests/native/player, and nothing of the plugin.
$(B)/tests/native/player/%.o: EXTRA = -Itests/native/standin -Itests/native/player
$(B)/player/%: $(B)/tests/native/player/check/%.o $(PLAYER_OBJ)
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -o $@ $^ -ldl
$(B)/player/%.so: tests/native/player/check/lib/%.c
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -shared -o $@ $<
$(B)/tests/bench/nccl/%.o: EXTRA = -Itests/native/standin -Itests/native/player -Itests/bench/nccl/lib
$(B)/bench/nccl: $(BENCH_OBJ) $(PLAYER_OBJ)
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -o $@ $^ -ldl
$(B)/bench/%.so: tests/bench/nccl/lib/%.c
	@mkdir -p $(@D)
	@echo LD $@
	@$(CC) $(CFLAGS_ALL) -Itests/native/standin -shared -o $@ $< -ldl
# The plugin once more, by clang, for libFuzzer. Its clock and its threads are those of tests/native/fuzz/still.c.
FUZZ_CC := clang
FUZZ_FLAGS := $(CSTD) -O1 -g -Wall -Wextra -Wshadow -D_GNU_SOURCE -pthread -MMD -MP -fno-omit-frame-pointer \
	-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all \
	-Dclock_gettime=still_clock_gettime -Dpthread_atfork=still_atfork -DNCCL_INSPECTOR_VERSION='"$(VERSION)"'
FUZZ_OBJ := $(patsubst %.c,build/fuzz/%.o,$(filter-out plugin/inspector.c plugin/base/thread.c,$(PLUGIN_SRC)) \
	$(filter-out tests/native/fuzz/fuzz_%,$(wildcard tests/native/fuzz/*.c)))
FUZZ_BIN := $(patsubst tests/native/fuzz/%.c,build/fuzz/%,$(wildcard tests/native/fuzz/fuzz_*.c))
# What reads words is watched comparison by comparison; in the tables of the rest that would take all the time.
build/fuzz/plugin/%.o: EXTRA = -fsanitize-coverage=inline-8bit-counters,pc-table
build/fuzz/plugin/config.o build/fuzz/plugin/ask/deny.o: EXTRA = -fsanitize=fuzzer-no-link
build/fuzz/tests/native/fuzz/fresh.o: EXTRA = -fsanitize-coverage=inline-8bit-counters,pc-table
build/fuzz/%.o: %.c Makefile | $(GEN)
	@mkdir -p $(@D)
	@echo CC $< for the fuzzer
	@$(FUZZ_CC) $(FUZZ_FLAGS) $(EXTRA) -Ibuild/gen -Iplugin -Itests/native/unit -c -o $@ $<
build/fuzz/fuzz_%: build/fuzz/tests/native/fuzz/fuzz_%.o $(FUZZ_OBJ)
	@echo LD $@
	@$(FUZZ_CC) -fsanitize=fuzzer,address,undefined -pthread -o $@ $^ -ldl -lm
.SECONDARY:

# What the tests need once more with the sanitizers, in one go each. TSan finds nothing in a program of one thread.
THREADED := $(shell grep -lE 'pthread_create|whole_plugin\.h|jsonwriter_' tests/native/unit/test_*.c)
SAN_PARTS = $(PROFILER) $(STANDIN) $(FAKECUDA) $(if $(filter thread,$(SAN)),$(THREADED:tests/native/unit/%.c=$(B)/c/%),$(UNIT_BIN))
#: make san          the same under ASan+UBSan and under TSan, and for libFuzzer, for the tests
san: san-address san-thread san-fuzz
san-address: | $(GEN)
	+@$(AT_ONCE) SAN=address,undefined sanparts
san-thread: | $(GEN)
	+@$(AT_ONCE) SAN=thread sanparts
san-fuzz: | $(GEN)
	+@$(AT_ONCE) fuzzparts
.PHONY: sanparts san-address san-thread san-fuzz
sanparts: $(SAN_PARTS)
# What the short tests need of TSan's.
san-thread-libs: | $(GEN)
	+@$(AT_ONCE) SAN=thread sanlibs
.PHONY: sanlibs san-thread-libs
sanlibs: $(PROFILER) $(STANDIN) $(FAKECUDA)

#: make aarch64      the same for Arm, under -Werror, for tests in an emulator
aarch64: | $(GEN)
	+@$(AT_ONCE) CROSS=aarch64 CC=aarch64-linux-gnu-gcc CI=true crossparts
.PHONY: aarch64 crossparts
crossparts: $(SPANK) $(SAN_PARTS)

#: make setup        apt packages (as root) and .venv; quick when they are there
setup: apt venv
apt:
	@bash packaging/dev-packages.sh
venv: $(VENV)/.ready
# What the demo runs with; a later `make setup` adds the rest.
$(VENV)/.ready-demo: pyproject.toml
	@umask 022; python3 -m venv $(VENV)
	@umask 022; $(PY) -m pip install --quiet --disable-pip-version-check -e '.[gpu,report]'
	@touch $@
# The short tests.
$(VENV)/.ready-test: pyproject.toml
	@umask 022; python3 -m venv $(VENV)
	@umask 022; $(PY) -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@
$(VENV)/.ready: pyproject.toml packaging/dev-packages.sh
	@umask 022; python3 -m venv $(VENV)
	@umask 022; $(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.ready-test

# Debian's packages, pip's and the compilers wait for different things: all at once, but for the first packages.
test-ready:
	@bash packaging/dev-packages.sh first
	@umask 022; $(MAKE) --no-print-directory -j$$(($$(nproc) + 1)) test-parts
test-parts: apt-test $(VENV)/.ready-test product testparts san-address san-thread-libs
apt-test:
	@bash packaging/dev-packages.sh test
.PHONY: test-ready test-parts apt-test

#: make test         what takes less than 20 s apiece and needs no other compiler, machine or service; sets up first
test: test-ready
	@$(PY) -m compileall -q -j 2 python tests
	$(PY) -m tests.tools.again -m 'not long' -n 3 --dist loadfile $(PYTEST_ARGS)
# Hundreds of seeded jobs and the planted defects of the fuzzers, without a cluster: side by side.
TRIALS := tests/unit/analysis tests/fuzzers/test_fuzzers.py
# Of the long tests one part of so many, as CI takes it: TURN=K/N. Without it all are run.
TURN_ARGS = $(if $(TURN),--turn $(TURN))
# Of the cases, which are long tests that other releases of Slurm have, too, twice as large a part.
CASE_ARGS = $(if $(TURN),--case-turn $(firstword $(subst /, ,$(TURN)))/$(shell echo $$(($(lastword $(subst /, ,$(TURN))) / 2))))
#: make test-all     all tests there are, in an hour: what a change that is said to be done has passed
test-all:
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-long
.PHONY: test-all
#: make test-long    the rest; also on other releases of Slurm, as far as a mirror gives them
test-long: setup build san aarch64
	-@$(PY) -m tests.sandbox tree
	$(PY) -m tests.tools.again -m long -n 2 $(TRIALS) $(TURN_ARGS) $(PYTEST_ARGS)
	$(PY) -m tests.tools.again -m long $(TRIALS:%=--ignore=%) $(TURN_ARGS) $(CASE_ARGS) $(PYTEST_ARGS)
	$(PY) -m tests.tools.releases $(TURN_ARGS)

#: make test-prometheus  the rules and alerts in the Prometheus and VictoriaMetrics of other Debian releases
test-prometheus: setup build
	$(PY) -m tests.tools.prometheus_releases $(PYTEST_ARGS)
.PHONY: test-prometheus

#: make verified     packaging/doc/verified.md anew: every case on every release of Slurm
verified: setup build
	rm -rf build/verified
	$(PY) -m pytest -q -m case
	$(PY) -m tests.tools.releases
	$(PY) -m tests.tools.verified

#: make pages        what of packaging/doc follows from tables and the model: settings, findings, nccl-rules, report.schema.json
pages: venv
	$(AWK) -f packaging/gen-settings-page.awk python/nccl_inspector/settings/settings.tsv >packaging/doc/settings.md
	PYTHONPATH=python $(PY) -m nccl_inspector.render.json >packaging/doc/report.schema.json
	PYTHONPATH=python $(PY) -m nccl_inspector.render.findings_page >packaging/doc/findings.md
	PYTHONPATH=python $(PY) -m nccl_inspector.render.nccl_rules_page >packaging/doc/nccl-rules.md
.PHONY: pages

#: make bench        what hooks, SPANK, a publish pass and the profiler plugin cost here; as root. BENCH_ARGS=--json, --check
bench: setup build
	@$(PY) -m tests.bench $(BENCH_ARGS)

#: make trials       packaging/doc/trials.md anew: simulated jobs and what their reports say, two hours. TRIALS_ARGS="--cases 'gpu-*' --seeds 2"; of a run that was stopped "--before tests/simulator/trials.json.gz" does the rest
trials: setup build
	PYTHONPATH=python:. $(PY) -m tests.simulator.trials --seeds 20 --out tests/simulator/trials.json.gz --table packaging/doc/trials.md $(TRIALS_ARGS)
.PHONY: trials

#: make test-gpu     real NCCL on this machine's GPU; needs python3 and gcc, no Slurm, no root. NCCL_LIBS=, GPU_ARGS=
GPU_PY ?= python3
test-gpu: $(PROFILER)
	PYTHONPATH=python:.:$$PYTHONPATH $(GPU_PY) -m tests.gpu.run $(GPU_ARGS)
.PHONY: test-gpu

#: make test-nccl    NVIDIA's own releases of NCCL call the plugin, without a GPU; pip downloads them (300 MB each). Writes packaging/doc/nccl-releases.md. NCCL_RELEASES="2.27.7 2.32.3" tries some and writes nothing
NCCL_RELEASES ?=
test-nccl: setup $(PROFILER) $(FAKECUDA) $(NCCL_CUDA) $(NCCL_NVML)
	PYTHONPATH=python:. $(PY) -m tests.nccl.run $(if $(NCCL_RELEASES),--releases $(NCCL_RELEASES),--table packaging/doc/nccl-releases.md) $(NCCL_ARGS)
.PHONY: test-nccl

#: make test-systemd  a Debian booted with systemd: packages installed, set up, a job reported, agent killed, reboot, upgrade, removal, an image and its first boot; as root, needs systemd-container. SUITE=trixie, BOOTED_ARGS="--parts 'live image'"
SUITE ?= bookworm
test-systemd: setup build
	$(PY) -m tests.tools.booted --suite $(SUITE) $(BOOTED_ARGS)
.PHONY: test-systemd

#: make test-fresh   `make demo` and `make test` of this commit, each on a fresh Debian of each of RELEASES; as root, needs debootstrap
RELEASES ?= bookworm trixie
test-fresh: setup
	@$(PY) -m tests.tools.fresh $(RELEASES) $(FRESH_ARGS)
.PHONY: test-fresh

#: make previews     pictures of the dashboards for the docs, by Grafana's own components; needs npm and Chromium
previews: setup build
	$(PY) -m tests.tools.preview
.PHONY: previews

#: make pictures     pictures of a report's page and of top for the docs, of a job on the sandbox cluster; needs Chromium
pictures: setup build
	@$(PY) -m tests.tools.pictures
.PHONY: pictures

#: make docs         the documentation site (build/site) and the man pages (build/man); a broken link is an error. DOCS_ARGS=--write renews the page of the commands, "--repository URL" says where a git host shows the files
docs: venv
	@$(PY) -m tests.docsite $(DOCS_ARGS)
.PHONY: docs

C_SRC := $(shell git ls-files '*.c' '*.h' 2>/dev/null)
SH_SRC := $(shell git ls-files '*.sh' epilog/nccl-inspector-epilogctld packaging/mount.nccl-inspector \
	packaging/nccl-inspector-hook packaging/nccl-inspector packaging/unplug .ci/run 2>/dev/null)
FUZZ_SECONDS ?= 600
FUZZ_RUN = ASAN_OPTIONS=detect_leaks=0 build/fuzz/fuzz_$(1) -max_total_time=$$(($(FUZZ_SECONDS) * $(2) / 12)) -timeout=30 \
	-print_final_stats=1 -artifact_prefix=build/fuzz/$(1)- $(3) build/fuzz/corpus/$(1)
#: make fuzz         the plugin under libFuzzer, then (the other half) all that Python reads of others; FUZZ_SECONDS in all (600). FUZZ_ARGS="--seed 2 box"
fuzz: setup build
	@$(AT_ONCE) fuzzparts
	@mkdir -p build/fuzz/corpus/config build/fuzz/corpus/events
	$(call FUZZ_RUN,config,1,-max_len=4000)
	$(call FUZZ_RUN,events,5,-max_len=800 -len_control=0)
	PYTHONPATH=python:. $(PY) -m tests.fuzzers --seconds $$(($(FUZZ_SECONDS) / 2)) $(FUZZ_ARGS)
.PHONY: fuzz fuzzparts
fuzzparts: $(FUZZ_BIN)

#: make soak         random jobs, faults and attackers on the sandbox cluster; SOAK_SECONDS (3600). SOAK_ARGS="--seed 2"
soak: setup build
	PYTHONPATH=python:. $(PY) -m tests.soak $(SOAK_ARGS)
.PHONY: soak

#: make format       all C as .clang-format says
format: setup
	$(VENV)/bin/clang-format -i $(C_SRC)
.PHONY: format
#: make lint         ruff, mypy, the rooms, the form of C, the documentation, shellcheck, cppcheck, clang-tidy
lint: setup $(GEN)
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy && $(VENV)/bin/mypy --strict packaging/packages/build.py packaging/requirements/list.py
	$(VENV)/bin/lint-imports
	$(PY) plugin/rooms.py
	$(VENV)/bin/clang-format --dry-run -Werror $(C_SRC)
	$(PY) -m tests.docsite
	shellcheck -S style $(SH_SRC)
	cppcheck --quiet --error-exitcode=1 --enable=warning,performance,portability --inline-suppr \
		'-DSPANK_PLUGIN(n,v)=' '-DNCCL_INSPECTOR_VERSION=""' -Iplugin -Ispank -Itests/native/standin -Ibuild/gen \
		$(filter %.c,$(C_SRC))
	clang-tidy --quiet $(filter plugin/%.c spank/%.c,$(C_SRC)) -- $(CSTD) -D_GNU_SOURCE \
		-DNCCL_INSPECTOR_VERSION='""' -Ibuild/gen -Iplugin -Ispank

#: make demo         the whole way once, on a sandbox Slurm; KEEP=1 leaves it up
demo: apt-demo $(VENV)/.ready-demo
	@$(AT_ONCE) product $(STANDIN) $(FAKECUDA)
	@$(PY) -m tests.tools.demo $(if $(KEEP),--keep)
apt-demo:
	@bash packaging/dev-packages.sh demo
.PHONY: apt-demo

#: make cluster-up   the sandbox Slurm by hand; cluster-down ends it
cluster-up: apt-demo $(VENV)/.ready-demo
	@$(AT_ONCE) product $(STANDIN) $(FAKECUDA)
	@$(PY) -m tests.sandbox up
cluster-down: $(VENV)/.ready-demo
	@$(PY) -m tests.sandbox down

clean:
	rm -rf build

include packaging/install.mk

-include $(shell find build -type f -name '*.d' 2>/dev/null)
