# Ringmaster. `make help` lists the verbs.
#
# One file, no recursion. Everything that is made goes under build/ (or BUILD=...). A room is found by wildcard: a new .c
# file in a room is compiled and linked without touching this file.
#
# Variants live side by side: `make VARIANT=asan` builds into build/asan with the sanitizers named below.

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

CC ?= cc
ifeq ($(origin CC),default)
CC := gcc
endif
AR := ar

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wwrite-strings -Wvla -Wformat=2 \
        -Wimplicit-fallthrough -Wundef -Werror
OPT_release := -O2 -g
OPT_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
OPT := $(OPT_$(VARIANT))
CFLAGS ?=
ALL_CFLAGS := -std=gnu17 $(OPT) $(WARN) -fno-common -fvisibility=hidden -fPIE -pthread -D_GNU_SOURCE \
              -DRINGMASTER_VERSION='"$(VERSION)"' -Ilib -I. $(CFLAGS)
LDFLAGS ?=
ALL_LDFLAGS := $(filter -fsanitize% -fno-sanitize%,$(OPT)) -pthread -pie -Wl,--gc-sections $(LDFLAGS)
LIBS := -lcjson -lyaml -lcrypto -lm

.PHONY: all
all: programs client

# ---- rooms -----------------------------------------------------------------------------------------------------------
SRC_base := $(wildcard lib/base/*.c)
SRC_wire := $(wildcard lib/wire/*.c)
SRC_job := $(wildcard lib/job/*.c)
SRC_sidecar := $(filter-out sidecar/main.c,$(wildcard sidecar/*.c sidecar/ring/*.c sidecar/checkpoint/*.c sidecar/supervise/*.c))
SRC_launch := $(filter-out sidecar/launch/main.c,$(wildcard sidecar/launch/*.c))
SRC_cli := $(filter-out cli/main.c,$(wildcard cli/*.c))

ROOMS := base wire job sidecar launch cli
obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
$(foreach r,$(ROOMS),$(eval OBJ_$(r) := $(call obj,$(SRC_$(r)))))
$(foreach r,$(ROOMS),$(eval LIB_$(r) := $(BUILD)/lib/lib$(r).a))
$(foreach r,$(ROOMS),$(eval $(LIB_$(r)): $(OBJ_$(r))))

$(BUILD)/lib/lib%.a:
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# SIMD kernels are compiled for their instruction set and chosen at run time.
$(BUILD)/obj/sidecar/ring/reduce_avx2.o: ALL_CFLAGS += -mavx2 -mfma -mf16c
$(BUILD)/obj/sidecar/ring/reduce_avx512.o: ALL_CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq

# The CRDs are part of the programs: lib/job/schema.c takes them in with .incbin, so it depends on them.
$(BUILD)/obj/lib/job/schema.o: $(wildcard crd/*.yaml)

# ---- programs --------------------------------------------------------------------------------------------------------
PROGRAMS := $(BUILD)/bin/ringmaster $(BUILD)/bin/ringmaster-sidecar $(BUILD)/bin/ringmaster-launch
.PHONY: programs
programs: $(PROGRAMS)

$(BUILD)/bin/ringmaster: $(call obj,cli/main.c) $(LIB_cli) $(LIB_job) $(LIB_wire) $(LIB_base)
$(BUILD)/bin/ringmaster-sidecar: $(call obj,sidecar/main.c) $(LIB_sidecar) $(LIB_job) $(LIB_wire) $(LIB_base)
$(BUILD)/bin/ringmaster $(BUILD)/bin/ringmaster-sidecar:
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

# The launcher is static: it is copied into the user's container and must run in any image.
LAUNCH_STATIC := $(if $(filter release,$(VARIANT)),-static -no-pie)
$(BUILD)/bin/ringmaster-launch: $(call obj,sidecar/launch/main.c) $(LIB_launch) $(LIB_wire) $(LIB_base)
	@mkdir -p $(@D)
	$(CC) $(filter-out $(if $(LAUNCH_STATIC),-pie),$(ALL_LDFLAGS)) $(LAUNCH_STATIC) -o $@ $^

# ---- client: built by zig against an old glibc, so that it loads in old images ----------------------------------------
ZIG := $(VENV)/bin/python -m ziglang
ZIG_TARGET := x86_64-linux-gnu.2.28
SRC_client := $(wildcard client/c/src/*.c)
CLIENT_HEADERS := $(wildcard client/c/include/*.h client/c/src/*.h lib/wire/*.h)
.PHONY: client
client: $(TOP)/client/lib/libringmaster.so $(TOP)/client/lib/libringmaster_tf.so $(TOP)/client/python/.stamp

$(TOP)/client/lib/libringmaster.so: $(SRC_client) $(CLIENT_HEADERS) $(TOP)/.deps-python Makefile
	@mkdir -p $(@D)
	$(ZIG) cc -target $(ZIG_TARGET) -std=gnu17 -O2 -g -fPIC -shared -fvisibility=hidden -D_GNU_SOURCE $(WARN) \
	    -DRINGMASTER_VERSION='"$(VERSION)"' -Iclient/c/include -Ilib -Wl,-soname,libringmaster.so -o $@ $(SRC_client) -lpthread

SRC_tf := $(wildcard client/tensorflow/*.c client/tensorflow/*.cc)
$(TOP)/client/lib/libringmaster_tf.so: $(SRC_tf) $(wildcard client/tensorflow/*.h) $(TOP)/client/lib/libringmaster.so
	tools/build-tensorflow-op.sh $(PYTHON) "$(ZIG)" $(ZIG_TARGET) $@ $(SRC_tf)

PY_FILES := $(shell find client/python -name '*.py' -o -name 'py.typed' 2>/dev/null)
$(TOP)/client/python/.stamp: $(PY_FILES)
	@rm -rf $(TOP)/client/python && mkdir -p $(TOP)/client/python
	cp -R client/python/. $(TOP)/client/python/
	@find $(TOP)/client/python -name __pycache__ -prune -exec rm -rf {} +
	@touch $@

# ---- what has to be installed -----------------------------------------------------------------------------------------
.PHONY: deps
deps: $(TOP)/.deps-apt $(TOP)/.deps-python ## install what building, running and testing need

APT := build-essential pkg-config libcjson-dev libyaml-dev libssl-dev python3-venv
APT_TEST := libcriterion-dev clang clang-tidy libclang-rt-14-dev valgrind strace mandoc chromium
$(TOP)/.deps-apt: tools/install-packages.sh
	@mkdir -p $(@D)
	tools/install-packages.sh $(APT)
	@touch $@
$(TOP)/.deps-apt-test: tools/install-packages.sh
	@mkdir -p $(@D)
	tools/install-packages.sh $(APT) $(APT_TEST)
	@touch $@
$(TOP)/.deps-python: requirements.txt tools/install-venv.sh | $(TOP)/.deps-apt
	tools/install-venv.sh $(VENV) requirements.txt
	@touch $@

-include $(shell find $(BUILD)/obj $(BUILD)/tests -name '*.d' 2>/dev/null)
include tests/tests.mk
