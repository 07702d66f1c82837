# How the tests are built and run. Included by the Makefile.
#
# tests/unit/<room>/test_<file>.c   Criterion; one program each, linked with every room
# tests/tsan/*.c                    plain mains for threaded code (Criterion does not run under TSan)
# tests/fuzz/fuzz_<parser>.c        LLVMFuzzerTestOneInput, corpus in tests/fuzz/corpus/<parser>/
# tests/integration/test_*.py       pytest, on the programs as built

TEST_LIBS := $(LIB_cli) $(LIB_sidecar) $(LIB_launch) $(LIB_job) $(LIB_wire) $(LIB_base)
UNIT_SRC := $(wildcard tests/unit/*/test_*.c)
UNIT_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(UNIT_SRC))

$(BUILD)/tests/%: tests/%.c $(TEST_LIBS)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DTEST_DIR='"$(CURDIR)/tests"' -MMD -MP $(ALL_LDFLAGS) -o $@ $< $(TEST_LIBS) $(LIBS) $(if $(findstring /unit/,$@),-lcriterion)
