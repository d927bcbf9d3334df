# Installation, by parts. Packages are made of the same parts: packaging/packages/ has the list.
#
# Each part is first put together below STAGE, as it will be below DESTDIR. install-tree.sh copies it
# from there and keeps the list of its files in LIBDIR/installed: what `make uninstall` removes.

# systemd looks below /usr and /usr/local. With another PREFIX say UNITDIR=/etc/systemd/system.
UNITDIR ?= $(PREFIX)/lib/systemd/system
PRESETDIR ?= $(PREFIX)/lib/systemd/system-preset
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
# Where `doctor` finds the pages that it names.
DOCDIR ?= $(PREFIX)/share/doc/slurm-nccl-inspector
# mount(8) looks nowhere else for the helper, whatever PREFIX is.
SBINDIR ?= /usr/sbin
# For what is run here. The installed command finds its Python itself.
PYTHON ?= python3

STAGE ?= build/stage
PARTS := profiler spank node controller python report enroot monitoring doc
C_PARTS := profiler spank node controller

# The files in the repository have the default paths; each is installed with the paths as given.
GIVEN = -e 's;/usr/lib/nccl-inspector/spank_nccl_inspector.so;@SPANK@;g' \
	-e 's;/usr/lib/nccl-inspector;$(LIBDIR);g' -e 's;@SPANK@;$(SLURM_PLUGINDIR)/spank_nccl_inspector.so;g' \
	-e 's;/usr/lib/tmpfiles.d;$(TMPFILESDIR);g' -e 's;/usr/bin/nccl-inspector\>;$(PREFIX)/bin/nccl-inspector;g' \
	-e 's;/usr/share/doc/slurm-nccl-inspector;$(DOCDIR);g' -e 's;/etc/\(nccl-inspector\|enroot\)\>;$(SYSCONFDIR)/\1;g' -e 's;:/usr/local/bin ;:/usr/local/bin:$(PREFIX)/bin ;'
AS_GIVEN = sed $(GIVEN)
# $(call put,MODE,FILE,PATH): a text file of the part that is put together.
put = install -d '$S$(dir $(3))' && $(AS_GIVEN) '$(2)' >'$S$(3)' && chmod $(1) '$S$(3)'
S = $(STAGE)/$(@:stage-%=%)

#: make install      the C parts, the hooks and the units, below DESTDIR. PREFIX=, LIBDIR=, SYSCONFDIR=, SLURM_PLUGINDIR=, UNITDIR=
install: $(C_PARTS:%=install-%)
#: make install-python  the command nccl-inspector and its man pages; finds a Python from 3.11 on by itself
#: make install-tools   what reports need: numpy, duckdb, jinja2, sqlalchemy, psycopg and obstore for PYTHON, and the controller's hook and units
install-tools: install-controller install-report
#: make install-PART    one of profiler, spank, node, controller, python, report, enroot, monitoring, doc
$(PARTS:%=install-%): install-%: stage-%
	@sh packaging/install-tree.sh '$(STAGE)/$*' '$(DESTDIR)' '$(LIBDIR)/installed/$*'
	$(if $(filter python,$*),$(if $(DESTDIR),,@$(PYTHON) -m compileall -q '$(LIBDIR)/python' '$(LIBDIR)/vendor'))
#: make uninstall    removes every file that `make install...` has put there; reports and configuration stay
uninstall:
	$(if $(DESTDIR),,@[ ! -x '$(LIBDIR)/unplug' ] || '$(LIBDIR)/unplug')
	@sh packaging/install-tree.sh --remove '$(DESTDIR)' '$(LIBDIR)/installed'
# The parts below STAGE alone, for packages.
stage: $(PARTS:%=stage-%)
.PHONY: install install-tools uninstall stage $(PARTS:%=install-%) $(PARTS:%=stage-%)

stage-profiler: $(PROFILER)
	@rm -rf $S
	@install -D -m 0755 $(PROFILER) $S$(LIBDIR)/libnccl-profiler-inspector.so

stage-spank: $(SPANK) build/gen/nccl-inspector.conf.sample
	@rm -rf $S
	@install -D -m 0755 $(SPANK) $S$(SLURM_PLUGINDIR)/spank_nccl_inspector.so
	@$(call put,0644,build/gen/nccl-inspector.conf.sample,$(LIBDIR)/nccl-inspector.conf.sample)
	@$(call put,0644,packaging/plugstack.conf,$(LIBDIR)/plugstack.conf.sample)
	@$(call put,0755,packaging/unplug,$(LIBDIR)/unplug)

NODE_UNITS := nccl-inspector-agent.service nccl-inspector-collect.service nccl-inspector-collect.timer \
	run-nccl\x2dinspector.mount run-nccl\x2dinspector-prom.mount run-nccl\x2dinspector-control.mount
stage-node:
	@rm -rf $S
	@$(call put,0755,prolog/50-nccl-inspector.sh,$(LIBDIR)/prolog/50-nccl-inspector.sh)
	@$(call put,0755,epilog/50-nccl-inspector.sh,$(LIBDIR)/epilog/50-nccl-inspector.sh)
	@$(call put,0755,packaging/nccl-inspector-hook,$(LIBDIR)/nccl-inspector-hook)
	@$(call put,0755,packaging/mount.nccl-inspector,$(SBINDIR)/mount.nccl-inspector)
	@$(foreach one,$(NODE_UNITS),$(call put,0644,packaging/$(one),$(UNITDIR)/$(one)) &&) true
	@$(call put,0644,packaging/node.preset,$(PRESETDIR)/80-nccl-inspector-node.preset)
	@$(call put,0644,packaging/tmpfiles.conf,$(TMPFILESDIR)/nccl-inspector.conf)
	@$(call put,0644,packaging/sysusers.conf,$(LIBDIR)/sysusers.conf.sample)

CONTROLLER_UNITS := nccl-inspector-controller.service nccl-inspector-reports.service nccl-inspector-reports.timer
stage-controller:
	@rm -rf $S
	@$(call put,0755,epilog/nccl-inspector-epilogctld,$(LIBDIR)/epilogctld/nccl-inspector-epilogctld)
	@$(call put,0755,packaging/nccl-inspector-mail,$(LIBDIR)/nccl-inspector-mail)
	@$(foreach one,$(CONTROLLER_UNITS),$(call put,0644,packaging/$(one),$(UNITDIR)/$(one)) &&) true
	@$(call put,0644,packaging/controller.preset,$(PRESETDIR)/80-nccl-inspector-controller.preset)
	@# Not below tmpfiles.d: only the controller has such a queue.
	@$(call put,0644,packaging/tmpfiles-controller.conf,$(LIBDIR)/tmpfiles-controller.conf)

stage-enroot:
	@rm -rf $S
	@$(call put,0644,packaging/enroot/50-nccl-inspector.fstab,$(SYSCONFDIR)/enroot/mounts.d/50-nccl-inspector.fstab)
	@$(call put,0755,packaging/enroot/50-nccl-inspector.sh,$(SYSCONFDIR)/enroot/hooks.d/50-nccl-inspector.sh)

stage-monitoring:
	@rm -rf $S
	@install -d $S$(PREFIX)/share/nccl-inspector
	@cp -R --no-preserve=mode packaging/monitoring $S$(PREFIX)/share/nccl-inspector/

stage-doc:
	@rm -rf $S
	@install -d $S$(DOCDIR)
	@cp -R --no-preserve=mode packaging/doc/. $S$(DOCDIR)/

# The command: our source, and beside it the modules that it needs on every host, which are plain
# Python. The command's first line of defence against a user's PYTHONPATH is `python -I`.
stage-python: build/wheels/vendor/.ready
	@rm -rf $S
	@install -d $S$(LIBDIR)/python
	@cd python && find nccl_inspector -name __pycache__ -prune -o -type f -print0 | \
		xargs -0 cp --parents --no-preserve=mode -t '$(abspath $S)$(LIBDIR)/python'
	@grep -rlE '/usr/(lib|bin|share)/|/etc/' $S$(LIBDIR)/python | xargs sed -i $(GIVEN)
	@$(call put,0644,packaging/python_main.py,$(LIBDIR)/python/__main__.py)
	@$(call put,0755,packaging/nccl-inspector,$(PREFIX)/bin/nccl-inspector)
	@cp -R build/wheels/vendor $S$(LIBDIR)/vendor && rm $S$(LIBDIR)/vendor/.ready
	@PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=python:.:build/wheels/vendor $(PYTHON) -m tests.docsite.man $S$(PREFIX)/share/man

# What only reports need has compiled parts: for one release of Python and one machine.
REPORT_PYTHON ?= $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
REPORT_MACHINE ?= $(if $(CROSS),$(CROSS),$(shell uname -m))
REPORT_WHEELS = build/wheels/report-python$(REPORT_PYTHON)-$(REPORT_MACHINE)
WHEELS_FOR = --only-binary :all: --implementation cp --python-version $(REPORT_PYTHON) \
	$(foreach one,2_28 2_27 2_17,--platform manylinux_$(one)_$(REPORT_MACHINE)) --platform manylinux2014_$(REPORT_MACHINE)
stage-report:
	@$(MAKE) --no-print-directory $(REPORT_WHEELS)/.ready
	@rm -rf $S
	@install -d $S$(LIBDIR)/report
	@cp -R $(REPORT_WHEELS) $S$(LIBDIR)/report/python$(REPORT_PYTHON) && rm $S$(LIBDIR)/report/python$(REPORT_PYTHON)/.ready

# A pip of our own, so that none of the system's is needed and none is changed.
PIP = build/pip/bin/python -m pip --disable-pip-version-check
build/pip/.ready:
	@$(PYTHON) -m venv build/pip && touch $@
FROM_WHEELHOUSE = $(PIP) install --quiet --no-index --find-links build/wheelhouse --no-deps --require-hashes --no-compile
#: make wheelhouse   the wheels that packages carry, into build/wheelhouse, by their hashes: the only step that asks an index. REPORT_PYTHON=3.12, REPORT_MACHINE=aarch64
wheelhouse: build/wheelhouse/.vendor
	@$(MAKE) --no-print-directory build/wheelhouse/.report-python$(REPORT_PYTHON)-$(REPORT_MACHINE)
build/wheelhouse/.vendor: packaging/requirements/vendor.txt | build/pip/.ready
	@$(PIP) download --quiet --no-deps --require-hashes --only-binary :all: -d $(@D) -r $< && touch $@
build/wheelhouse/.report-%: packaging/requirements/report.txt | build/pip/.ready
	@$(PIP) download --quiet --no-deps --require-hashes $(WHEELS_FOR) -d $(@D) -r $< && touch $@
# What only pip would read, and would find untrue.
TIDY = find $(@D) -path '*.dist-info/*' \( -name RECORD -o -name INSTALLER -o -name REQUESTED -o -name direct_url.json \) -delete \
	&& find $(@D) -name '*.py' -exec sed -i '1{/^\#!/d}' {} +
build/wheels/vendor/.ready: build/wheelhouse/.vendor packaging/install.mk
	@rm -rf $(@D)
	@$(FROM_WHEELHOUSE) --target $(@D) -r packaging/requirements/vendor.txt
	@# NVIDIA's wheel has an example as a module of its own. First lines for a shell are of no use here.
	@rm -rf $(@D)/example.py $(@D)/bin && $(TIDY) && touch $@
build/wheels/report-%/.ready: build/wheelhouse/.report-% packaging/install.mk
	@rm -rf $(@D)
	@$(FROM_WHEELHOUSE) $(WHEELS_FOR) --target $(@D) -r packaging/requirements/report.txt
	@rm -rf $(@D)/bin && $(TIDY) && touch $@
#: make lock         the locked releases with their hashes anew, from the ranges of pyproject.toml
lock: venv
	@$(PY) packaging/requirements/list.py vendor | $(LOCK) packaging/requirements/vendor.txt
	@$(PY) packaging/requirements/list.py report | $(LOCK) packaging/requirements/report.txt
LOCK = $(VENV)/bin/pip-compile - --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe --no-header \
	--no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --output-file
.PHONY: wheelhouse lock

PACKAGES ?=
# Who makes the packages, in the variables that Debian's own tools read. Without, no rpm names anybody.
PACKAGER ?= $(if $(DEBEMAIL),$(or $(DEBFULLNAME),$(DEBEMAIL)) <$(DEBEMAIL)>)
PACKAGES_OUT ?= build/packages
PACKAGES_LEVEL ?= 6
package_parts = $(if $(PACKAGES),$(foreach one,$(PACKAGES),$(patsubst command,python,$(patsubst tools,controller report,$(patsubst slurm,spank,$(one))))),$(PARTS))
package_slurm = $(or $(SLURM_INCLUDE),$(if $(SLURM_PREFIX),$(SLURM_PREFIX)/include))
#: make deb, make rpm   the packages, into build/packages. SLURM_INCLUDE=DIR or, of a Slurm that is in no package, SLURM_PREFIX=/opt/slurm; REPORT_PYTHON=3.12, CROSS=aarch64 CC=aarch64-linux-gnu-gcc, PACKAGES="slurm profiler"
deb rpm:
	@CC='$(CC)' PYTHON='$(PYTHON)' SLURM_INCLUDE='$(package_slurm)' PACKAGES='$(PACKAGES)' bash packaging/build-needs.sh $@
	@$(MAKE) --no-print-directory STAGE=$(PACKAGES_OUT)/stage PREFIX=/usr LIBDIR=/usr/lib/nccl-inspector \
		SYSCONFDIR=/etc SLURM_INCLUDE='$(package_slurm)' $(package_parts:%=stage-%)
	@$(PYTHON) packaging/packages/build.py $@ --stage $(PACKAGES_OUT)/stage --out $(PACKAGES_OUT) --version $(VERSION) \
		--machine $(REPORT_MACHINE) --slurm-include $(or $(package_slurm),/usr/include) --slurm-prefix '$(SLURM_PREFIX)' \
		--python $(REPORT_PYTHON) --tools '$(if $(CROSS),$(CROSS)-linux-gnu-)' --maintainer '$(PACKAGER)' --level $(PACKAGES_LEVEL) --packages '$(PACKAGES)'
REPOSITORY ?= build/repository
REPOSITORY_KEY ?=
#: make repo         a directory for apt or dnf (REPOSITORY) of what make deb or make rpm has made; REPOSITORY_KEY=NAME signs it with a key of your gpg
repo:
	@bash packaging/packages/repository.sh '$(PACKAGES_OUT)' '$(REPOSITORY)' '$(REPOSITORY_KEY)'
.PHONY: deb rpm repo
