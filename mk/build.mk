# build.mk - what is built from what.
#
#   src/ without main.c                 libmiles.a
#   src/cli/main.c, version.c           miles
#   src/comm/mpi/                       libmiles_mpi.so (mk/mpi.mk)
#   tests/support/                      libtest.a
#   tests/{unit,golden,parity}/*.c      a program each
#   tests/checkop/*.c                   one program, checkop
#   tests/load/*.c                      one program, load_serve
#   tests/fuzz/fuzz_*.c                 a program each (mk/test.mk)
#   tests/faults/inject.c               inject.so, which lets calls fail
#   tools/*.c                           a program each
#   bench/bench_*.c                     a program each; OpenBLAS, the peer of some, is linked there alone

# V=1 shows whole commands.
Q := $(if $(V),,@)

MODULES ?= $(notdir $(wildcard src/*))

ifeq ($(ARCH),x86_64)
OTHER_ARCH := src/backend/cpu/arm/%
else ifeq ($(ARCH),aarch64)
OTHER_ARCH := src/backend/cpu/x86/%
else
OTHER_ARCH := src/backend/cpu/arm/% src/backend/cpu/x86/%
endif

SRC := $(filter-out src/cli/main.c src/cli/version.c src/comm/mpi/% $(OTHER_ARCH), \
  $(sort $(shell find $(MODULES:%=src/%) -name '*.c')))
objects = $(patsubst %.c,$(B)/%.o,$(1))
programs = $(patsubst %.c,$(B)/%,$(sort $(wildcard $(1))))

UNIT := $(call programs,tests/unit/test_*.c)
GOLDEN := $(call programs,tests/golden/*.c)
PARITY := $(call programs,tests/parity/*.c)
RANKS := $(call programs,tests/ranks/*.c)
CHECKOP := $(if $(wildcard tests/checkop/*.c),$(B)/checkop)
LOAD := $(B)/tests/load/load_serve
BENCH := $(call programs,bench/bench_*.c)
TOOLS := $(call programs,tools/*.c)

all: miles
programs: $(B)/miles $(UNIT) $(GOLDEN) $(PARITY) $(RANKS) $(CHECKOP) $(LOAD) $(TOOLS) $(B)/inject.so
.PHONY: all programs

miles: $(B)/miles
	cp $< $@

$(B)/miles: $(B)/src/cli/main.o $(B)/src/cli/version.o $(B)/libmiles.a
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

$(B)/libmiles.a: $(call objects,$(SRC))
$(B)/libtest.a: $(call objects,$(sort $(wildcard tests/support/*.c)))
$(B)/lib%.a:
	@rm -f $@
	@echo '  ar  $@'
	$(Q)$(AR) rcs $@ $^

$(UNIT) $(GOLDEN) $(PARITY) $(RANKS): %: %.o $(B)/libtest.a $(B)/libmiles.a
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

# Counts what a step allocates.
$(B)/tests/unit/test_model: private LDFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc

# Some of them run the program itself, which needs all modules.
ifeq ($(filter-out $(MODULES),$(notdir $(wildcard src/*))),)
$(UNIT) $(GOLDEN) $(PARITY) $(RANKS): | $(B)/miles
endif

$(B)/checkop: $(call objects,$(sort $(wildcard tests/checkop/*.c))) $(B)/libtest.a $(B)/libmiles.a
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

$(LOAD): $(call objects,$(sort $(wildcard tests/load/*.c))) $(B)/libtest.a $(B)/libmiles.a | $(B)/miles
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

# Preloaded into uninstrumented programs by tests/e2e/faults.py.
$(B)/inject.so: tests/faults/inject.c $(B)/flags
	@echo '  ld  $@'
	$(Q)$(CC) $(filter-out $(SAN_FLAGS),$(ALL_CFLAGS)) -fPIC -shared -o $@ $< -ldl

$(TOOLS): %: %.o $(B)/libmiles.a
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

$(BENCH): %: %.o $(B)/libmiles.a
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS) $(BENCH_LIBS)
$(B)/bench/bench_gemm $(B)/bench/bench_model $(B)/bench/bench_train \
  $(B)/bench/bench_engine: BENCH_LIBS := -lopenblas

# Objects are rebuilt when the way of compiling changes, not only the source.
$(B)/%.o: %.c $(B)/flags | $(B)/deps.ok
	@mkdir -p $(@D)
	@echo '  cc  $@'
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# These embed files, which the compiler's list of dependencies does not show.
$(B)/src/plugin/python_modules.o: $(shell find share/python -name "*.py")
$(B)/src/dash/dash.o: $(wildcard src/dash/page/*)
$(B)/src/run/trackers.o: share/tracker.py
$(B)/src/run/speeds.o: $(wildcard share/speeds/*.json)

# Only this file knows the commit; the tests are not linked again for each one.
COMMIT := $(shell git describe --always --dirty --exclude='*' 2>/dev/null)
$(B)/src/cli/version.o: private FILE_CFLAGS = $(if $(COMMIT),-DML_COMMIT='"$(COMMIT)"')
$(B)/src/cli/version.o: $(B)/commit
$(B)/commit: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@

$(B)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(ALL_CFLAGS) $(KERNEL_OPT) $(AVX2) $(AVX512)' | cmp -s - $@ || \
	  echo '$(CC) $(ALL_CFLAGS) $(KERNEL_OPT) $(AVX2) $(AVX512)' > $@
FORCE:
.PHONY: FORCE

# A build only looks; `make deps` installs.
$(B)/deps.ok: tools/check-deps.sh
	@mkdir -p $(@D)
	@CC='$(CC)' tools/check-deps.sh build
	@touch $@

deps:
	@CC='$(CC)' tools/check-deps.sh --install build test
	@tools/check-deps.sh --install ranks || echo 'without MPI: tests of several ranks are skipped'
.PHONY: deps

-include $(shell find $(B) -name '*.d' 2>/dev/null)
