# Ringmaster. `make help` lists the verbs.
#
# One file, no recursion. Everything that is made goes under build/ (or BUILD=...). A room is found by wildcard: a new .c
# file in a room is compiled and linked without touching this file.
#
# Variants live side by side: `make VARIANT=asan` builds into build/asan. See OPT_* below for what they are.

.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

VERSION := 0.1.0
VARIANT ?= release
TOP := build
BUILD ?= $(TOP)$(if $(filter-out release,$(VARIANT)),/$(VARIANT))
PREFIX ?= /usr/local
DESTDIR ?=
VENV := $(TOP)/venv
PYTHON := $(VENV)/bin/python
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# One short line per step; V=1 shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' '$(1)' '$(2)')

ifeq ($(origin CC),default)
CC := $(if $(filter fuzz,$(VARIANT)),clang,gcc)
endif
AR := ar

# Texts of fixed size are cut on purpose (struct error, wire fields): -Wformat-truncation would forbid that.
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wwrite-strings -Wvla -Wformat=2 \
        -Wimplicit-fallthrough -Wundef -Werror $(if $(findstring gcc,$(CC)),-Wno-format-truncation)
OPT_release := -O2 -g
OPT_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_ubsan := -O1 -g -fsanitize=undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
OPT_valgrind := -O1 -g -fno-omit-frame-pointer
OPT_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT := $(OPT_$(VARIANT))
$(if $(OPT),,$(error VARIANT=$(VARIANT) is none of release, asan, ubsan, tsan, valgrind, fuzz))
CFLAGS ?=
ALL_CFLAGS := -std=gnu17 $(OPT) $(WARN) -fno-common -fvisibility=hidden -fPIE -pthread -D_GNU_SOURCE \
              -DRINGMASTER_VERSION='"$(VERSION)"' -Ilib -I. $(CFLAGS)
LDFLAGS ?=
ALL_LDFLAGS := $(filter -fsanitize% -fno-sanitize%,$(OPT)) -pthread -pie -Wl,--gc-sections $(LDFLAGS)
LIBS := -Wl,--as-needed -lcjson -lyaml -lssl -lcrypto -lm
LIBS_kube := -lcurl
LIBS_s3 := -lcurl
LIBS_operator := $(LIBS_kube) -lwebsockets

.PHONY: all
all: programs client ## build the programs and the client library (the default)

.PHONY: help
help: ## list the verbs
	@echo 'make VERB [-j N] [VARIANT=release|asan|ubsan|tsan|valgrind|fuzz] [PREFIX=/usr/local] [DESTDIR=]'
	@awk -F ':.*## ' '/^[a-z][a-zA-Z0-9%-]*:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile tests/tests.mk

# ---- rooms -----------------------------------------------------------------------------------------------------------
SRC_base := $(wildcard lib/base/*.c)
SRC_wire := $(wildcard lib/wire/*.c)
SRC_s3 := $(wildcard lib/s3/*.c)
SRC_checkpoint := $(wildcard lib/checkpoint/*.c)
SRC_job := $(wildcard lib/job/*.c)
SRC_kube := $(wildcard lib/kube/*.c)
SRC_sidecar := $(filter-out sidecar/main.c,$(wildcard sidecar/*.c sidecar/ring/*.c sidecar/checkpoint/*.c sidecar/supervise/*.c))
SRC_launch := $(filter-out sidecar/launch/main.c,$(wildcard sidecar/launch/*.c))
SRC_cli := $(filter-out cli/main.c,$(wildcard cli/*.c))
SRC_operator := $(filter-out operator/main.c,$(wildcard operator/*.c))
ROOMS := base wire s3 checkpoint kube job sidecar launch cli operator

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
$(foreach r,$(ROOMS),$(eval OBJ_$(r) := $(call obj,$(SRC_$(r)))))
$(foreach r,$(ROOMS),$(eval LIB_$(r) := $(BUILD)/lib/lib$(r).a))
$(foreach r,$(ROOMS),$(eval $(LIB_$(r)): $(OBJ_$(r))))

# Two stamps that change only when what they hold changes: the flags (all objects depend on them) and the list of sources
# (the archives depend on it, so that a file that was removed leaves its archive).
stamp = $(shell mkdir -p $(BUILD); printf '%s\n' '$(subst ','\'',$(2))' | cmp -s - $(1) || printf '%s\n' '$(subst ','\'',$(2))' > $(1))
$(call stamp,$(BUILD)/.flags,$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(LIBS))
$(call stamp,$(BUILD)/.sources,$(foreach r,$(ROOMS),$(SRC_$(r))))

$(BUILD)/lib/lib%.a: $(BUILD)/.sources
	@mkdir -p $(@D)
	@rm -f $@
	$(call say,ar,$@)
	$(Q)$(AR) rcs $@ $(filter %.o,$^)

# The packages come before the first object (order-only), with -j too.
$(BUILD)/obj/%.o: %.c $(BUILD)/.flags | $(TOP)/.deps-apt
	@mkdir -p $(@D)
	$(call say,cc,$<)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# SIMD kernels are compiled for their instruction set and chosen at run time.
$(BUILD)/obj/sidecar/ring/reduce_avx2.o: ALL_CFLAGS += -mavx2 -mfma -mf16c
$(BUILD)/obj/sidecar/ring/reduce_avx512.o: ALL_CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq

# Files that programs carry inside them (.incbin): lib/job/schema.c the CRDs, cli/report_html.c the page of the HTML report.
$(BUILD)/obj/lib/job/schema.o: $(wildcard crd/*.yaml)
$(BUILD)/obj/cli/report_html.o: cli/report.html

# ---- programs --------------------------------------------------------------------------------------------------------
PROGRAMS := $(BUILD)/bin/ringmaster $(BUILD)/bin/ringmaster-sidecar $(BUILD)/bin/ringmaster-launch $(BUILD)/bin/ringmaster-operator
.PHONY: programs
programs: $(PROGRAMS) ## build the programs alone

$(BUILD)/bin/ringmaster: $(call obj,cli/main.c) $(LIB_cli) $(LIB_job) $(LIB_kube) $(LIB_checkpoint) $(LIB_s3) $(LIB_wire) $(LIB_base)
$(BUILD)/bin/ringmaster: LIBS += $(LIBS_kube)
$(BUILD)/bin/ringmaster-sidecar: LIBS += $(LIBS_s3)
$(BUILD)/bin/ringmaster-sidecar: $(call obj,sidecar/main.c) $(LIB_sidecar) $(LIB_job) $(LIB_checkpoint) $(LIB_s3) $(LIB_wire) $(LIB_base)
$(BUILD)/bin/ringmaster $(BUILD)/bin/ringmaster-sidecar:
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/bin/ringmaster-operator: $(call obj,operator/main.c) $(LIB_operator) $(LIB_job) $(LIB_kube) $(LIB_wire) $(LIB_base)
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS) $(LIBS_operator)

# The launcher is static: it is copied into the user's container and must run in any image. The sanitizers and valgrind need
# a dynamic one.
LAUNCH_STATIC := $(if $(filter release,$(VARIANT)),-static -no-pie)
$(BUILD)/bin/ringmaster-launch: $(call obj,sidecar/launch/main.c) $(LIB_launch) $(LIB_wire) $(LIB_base)
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(filter-out $(if $(LAUNCH_STATIC),-pie),$(ALL_LDFLAGS)) $(LAUNCH_STATIC) -o $@ $^

# The client is the same for every variant: the programs of a variant find it beside themselves.
ifneq ($(BUILD),$(TOP))
$(PROGRAMS): | $(BUILD)/client
$(BUILD)/client:
	@mkdir -p $(@D)
	ln -sfn $(abspath $(TOP))/client $@
endif

# ---- client: built by zig against an old glibc, so that it loads in old images ----------------------------------------
ZIG := $(VENV)/bin/python -m ziglang
ZIG_TARGET := x86_64-linux-gnu.2.28
SRC_client := $(wildcard client/c/src/*.c)
CLIENT_HEADERS := $(wildcard client/c/include/*.h client/c/src/*.h lib/wire/*.h)
.PHONY: client
client: $(TOP)/client/lib/libringmaster.so $(TOP)/client/lib/libringmaster_tf.so $(TOP)/client/python/.stamp ## build what training processes load

# Kernels for the GPUs that are around (A100, H100, B200), and PTX for those after them. nvcc comes from PyPI (110 MB to fetch, 270 MB in
# build/venv-cuda) unless one that is installed is named: make NVCC=/usr/local/cuda/bin/nvcc. Running needs nothing of it.
CUDA_VENV := $(TOP)/venv-cuda
CUDA_HOME = $(wildcard $(CUDA_VENV)/lib/python3*/site-packages/nvidia/cu13)
NVCC ?= $(CUDA_HOME)/bin/nvcc
GPU_CODE := $(foreach n,80 90 100,-gencode arch=compute_$(n),code=sm_$(n)) -gencode arch=compute_80,code=compute_80
$(TOP)/gpu/kernels.fatbin: client/gpu/kernels.cu client/c/src/gpu_kernels.h requirements-cuda.txt \
                           | $(if $(filter file,$(origin NVCC)),$(TOP)/.deps-cuda)
	@mkdir -p $(@D)
	$(call say,nvcc,$@)
	$(Q)$(NVCC) -I. -fatbin $(GPU_CODE) -Werror all-warnings -o $@ $<

$(TOP)/client/lib/libringmaster.so: $(SRC_client) $(CLIENT_HEADERS) $(TOP)/gpu/kernels.fatbin Makefile | $(TOP)/.deps-python
	@mkdir -p $(@D)
	$(call say,zig,$@)
	$(Q)$(ZIG) cc -target $(ZIG_TARGET) -std=gnu17 -O2 -g -fPIC -shared -fvisibility=hidden -D_GNU_SOURCE $(filter-out -Wno-format-truncation,$(WARN)) \
	    -DRINGMASTER_VERSION='"$(VERSION)"' -Iclient/c/include -Ilib -Wl,-soname,libringmaster.so -o $@ $(SRC_client) -lpthread -ldl

SRC_tf := $(wildcard client/tensorflow/*.c client/tensorflow/*.cc)
$(TOP)/client/lib/libringmaster_tf.so: $(SRC_tf) $(wildcard client/tensorflow/*.h) tools/build-tensorflow-op.sh requirements.txt \
                                       $(TOP)/client/lib/libringmaster.so
	$(call say,zig,$@)
	$(Q)tools/build-tensorflow-op.sh $(PYTHON) "$(ZIG)" $(ZIG_TARGET) $@ $(SRC_tf)

PY_FILES := $(shell find client/python \( -name '*.py' -o -name 'py.typed' -o -name METADATA -o -name 'entry_points.txt' \) -not -path '*/__pycache__/*' 2>/dev/null)
$(TOP)/client/python/.stamp: $(PY_FILES)
	@rm -rf $(TOP)/client/python && mkdir -p $(TOP)/client/python
	$(call say,copy,$(@D))
	@cp -R client/python/. $(TOP)/client/python/
	@find $(TOP)/client/python -name __pycache__ -prune -exec rm -rf {} +
	@touch $@

# ---- what has to be installed -----------------------------------------------------------------------------------------
# The stamps say "looked and found"; a stamp whose packages went away again is mended by `make deps`, which always looks.
APT := build-essential libc6-dev pkg-config libcjson-dev libyaml-dev libssl-dev libcurl4-openssl-dev libwebsockets-dev ca-certificates procps python3 python3-venv
APT_TEST := libcriterion-dev clang clang-tidy libclang-rt-14-dev valgrind strace gdb mandoc chromium qemu-user
.PHONY: deps
deps: ## install all that building, running and testing need (asks for root only when a package is missing)
	@mkdir -p $(TOP)
	tools/install-packages.sh $(APT) $(APT_TEST)
	tools/install-venv.sh $(VENV) requirements.txt requirements-lint.txt
	tools/install-venv.sh $(CUDA_VENV) requirements-cuda.txt
	@touch $(TOP)/.deps-apt $(TOP)/.deps-apt-test $(TOP)/.deps-python $(TOP)/.deps-lint $(TOP)/.deps-cuda

$(TOP)/.deps-apt: Makefile
	@mkdir -p $(@D)
	tools/install-packages.sh $(APT)
	@touch $@
$(TOP)/.deps-apt-test: Makefile | $(TOP)/.deps-apt
	@mkdir -p $(@D)
	tools/install-packages.sh $(APT_TEST)
	@touch $@
$(TOP)/.deps-python: requirements.txt tools/install-venv.sh | $(TOP)/.deps-apt
	tools/install-venv.sh $(VENV) requirements.txt
	@touch $@

$(TOP)/.deps-cuda: requirements-cuda.txt tools/install-venv.sh | $(TOP)/.deps-apt
	tools/install-venv.sh $(CUDA_VENV) requirements-cuda.txt
	@touch $@

# PyTorch has an environment of its own: its wheel brings gigabytes.
.PHONY: deps-torch
deps-torch: $(TOP)/.deps-torch ## install PyTorch for the tests of ringmaster.torch into build/venv-torch (5 GB)
$(TOP)/.deps-torch: requirements-torch.txt tools/install-venv.sh | $(TOP)/.deps-apt
	tools/install-venv.sh $(TOP)/venv-torch requirements-torch.txt
	@touch $@

# ---- running ----------------------------------------------------------------------------------------------------------
.PHONY: demo
demo: all ## train digits on this machine, lose a worker, come back; report in build/demo
	examples/digits/demo.sh

BENCHES := $(patsubst bench/bench_%.py,%,$(wildcard bench/bench_*.py))
.PHONY: bench $(addprefix bench-,$(BENCHES))
bench: $(addprefix bench-,$(BENCHES)) ## run every benchmark (bench-NAME: one); figures in build/bench/NAME.json
$(addprefix bench-,$(BENCHES)): bench-%: all test-programs
	$(PYTHON) bench/bench_$*.py $(TOP)/bench/$*.json
bench-operator: $(TOP)/bench/post

# Sends one request many times: how benchmarks submit jobs. No part of it is lib/kube.
$(TOP)/bench/post: bench/post.c $(LIB_base) $(BUILD)/.flags | $(TOP)/.deps-apt
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -MF $@.d -MT $@ $(ALL_LDFLAGS) -o $@ $< $(LIB_base) $(LIBS) -lcurl

# What the all-reduce is held against: loops of our own around OpenMPI and Gloo, and one around our ring.
APT_ALLREDUCE := openmpi-bin libopenmpi-dev libgloo-dev
bench-allreduce: $(TOP)/bench/ring $(TOP)/bench/openmpi $(TOP)/bench/gloo
$(TOP)/.deps-apt-allreduce: Makefile
	tools/install-packages.sh $(APT_ALLREDUCE)
	@touch $@
$(TOP)/bench/openmpi: bench/allreduce/openmpi.c bench/allreduce/figures.h | $(TOP)/.deps-apt-allreduce
	@mkdir -p $(@D)
	$(Q)mpicc -O2 -o $@ $<
$(TOP)/bench/gloo: bench/allreduce/gloo.cc bench/allreduce/figures.h | $(TOP)/.deps-apt-allreduce
	@mkdir -p $(@D)
	$(Q)g++ -O2 -o $@ $< -lgloo -lpthread
$(TOP)/bench/ring: bench/allreduce/ring.c bench/allreduce/figures.h $(LIB_sidecar) $(LIB_job) $(LIB_checkpoint) $(LIB_s3) $(LIB_wire) $(LIB_base)
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $< $(LIB_sidecar) $(LIB_job) $(LIB_checkpoint) $(LIB_s3) $(LIB_wire) $(LIB_base) $(LIBS) $(LIBS_s3)

# ---- installing -------------------------------------------------------------------------------------------------------
INSTALLED_BIN := ringmaster ringmaster-sidecar ringmaster-launch ringmaster-operator
MAN1 := $(wildcard docs/man/*.1)
.PHONY: install
install: all ## install under DESTDIR/PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/ringmaster $(DESTDIR)$(PREFIX)/include \
	    $(DESTDIR)$(PREFIX)/share/ringmaster/crd $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 755 $(addprefix $(BUILD)/bin/,$(INSTALLED_BIN)) $(DESTDIR)$(PREFIX)/bin/
	install -m 755 $(TOP)/client/lib/libringmaster.so $(TOP)/client/lib/libringmaster_tf.so $(DESTDIR)$(PREFIX)/lib/ringmaster/
	install -m 644 client/c/include/ringmaster.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 $(wildcard crd/*.yaml) $(DESTDIR)$(PREFIX)/share/ringmaster/crd/
	rm -rf $(DESTDIR)$(PREFIX)/share/ringmaster/python
	cp -R $(TOP)/client/python $(DESTDIR)$(PREFIX)/share/ringmaster/python
	rm -f $(DESTDIR)$(PREFIX)/share/ringmaster/python/.stamp
	$(if $(MAN1),install -m 644 $(MAN1) $(DESTDIR)$(PREFIX)/share/man/man1/)

.PHONY: uninstall
uninstall: ## remove what install put there
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,$(INSTALLED_BIN)) $(DESTDIR)$(PREFIX)/include/ringmaster.h \
	    $(addprefix $(DESTDIR)$(PREFIX)/share/man/man1/,$(notdir $(MAN1)))
	rm -rf $(DESTDIR)$(PREFIX)/lib/ringmaster $(DESTDIR)$(PREFIX)/share/ringmaster

.PHONY: images
images: ## build the images of sidecar and operator into build/images
	tools/install-packages.sh buildah
	rm -rf $(TOP)/images/installed
	$(MAKE) --no-print-directory install DESTDIR=$(TOP)/images/installed PREFIX=/usr/local
	images/build.sh $(VERSION) $(TOP)/images $(TOP)/images/installed

.PHONY: training-image
training-image: ## build the image of the examples' manifests; TensorFlow in it only with TRAINING_VENV=build/venv
	tools/install-packages.sh buildah busybox-static
	images/training/build.sh $(TOP)/images $(TRAINING_VENV)

.PHONY: chart
chart: ## package the Helm chart as build/ringmaster-VERSION.tgz and render build/install.yaml
	tools/chart.sh build $(VERSION) $(TOP)

# ---- cleaning ---------------------------------------------------------------------------------------------------------
.PHONY: clean
clean: ## remove what was built; the Python environment stays
	find $(TOP) -mindepth 1 -maxdepth 1 ! -name 'venv*' ! -name '.deps-*' -exec rm -rf {} +

.PHONY: distclean
distclean: ## remove build/ altogether
	rm -rf $(TOP)

include tests/tests.mk
-include $(shell find $(BUILD)/obj $(BUILD)/tests -name '*.d' 2>/dev/null)
