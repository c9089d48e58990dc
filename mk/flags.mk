# flags.mk - how a file is compiled.
#
# Numerics are written, not left to the compiler: no contraction, no reassociation, and
# instruction sets by file, never by the machine that happens to build.

ARCH := $(shell $(CC) -dumpmachine | sed 's/-.*//')
AR := $(shell $(CC) -print-prog-name=ar)

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Wstrict-prototypes \
  -Wmissing-prototypes -Wwrite-strings -Wdouble-promotion -Wconversion -Wcast-qual \
  -Wpointer-arith -Wno-missing-field-initializers -Werror

# SAN: sanitizers, as -fsanitize= takes them.  Their instrumentation confuses gcc's flow
# warnings, so that in these builds warnings are not errors.  Kernels are large after inlining:
# checks by call, line numbers without variables (in all builds) and less optimisation halve the
# time to compile them.  gcc 12 may give a live variable the stack of a dead one (its bug 90348),
# which instrumented kernels have met: they share none.
SAN ?=
ifneq ($(SAN),)
OPT ?= -O1
KERNEL_OPT ?= -O1 $(if $(findstring gcc,$(CC)),-fstack-reuse=none \
  --param asan-instrumentation-with-call-threshold=0)
DEBUG := -g1
SAN_FLAGS := -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-error
else
OPT ?= -O2
KERNEL_OPT ?= -O3 -g1
DEBUG := -g
SAN_FLAGS :=
endif

ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -I. -ffp-contract=off \
  -fno-strict-aliasing -fvisibility=hidden -pthread $(DEBUG) $(WARN) $(OPT) $(SAN_FLAGS) \
  $(FILE_CFLAGS) $(CFLAGS)
ALL_LDFLAGS = -pthread $(SAN_FLAGS) $(LDFLAGS)
# Debian's libevent-dev is there for one architecture at a time: for another one than this
# machine's, the libraries themselves are named.
LIBEVENT := $(if $(filter-out $(shell uname -m),$(ARCH)),-l:libevent_openssl-2.1.so.7 \
  -l:libevent_extra-2.1.so.7 -l:libevent_core-2.1.so.7,-levent_openssl -levent_extra -levent_core)
LIBS := -lpcre2-8 -lutf8proc $(LIBEVENT) -lssl -lcrypto -lzstd -lxxhash -llzma -lz -lsnappy -llz4 -lbrotlidec -lsqlite3 -lyaml -lm

# STATIC=1: everything but the C library is part of the program (mk/install.mk).
ifeq ($(STATIC),1)
LIBS := -Wl,-Bstatic $(filter-out -lm,$(LIBS)) -lbrotlicommon -lstdc++ -Wl,-Bdynamic -lm
ALL_LDFLAGS += -static-libgcc
endif

# FILE_CFLAGS: what one file needs beyond the rest.
comma := ,
# Intel's cores from Skylake to Cascade Lake do not cache decoded code whose jump crosses or ends at a
# multiple of 32 bytes (the JCC erratum): where the kernels' loops lay decided 9 % of a GEMM's speed.
LOOPS := -falign-loops=64 $(if $(findstring clang,$(CC)),,-Wa$(comma))-mbranches-within-32B-boundaries
AVX2 := $(LOOPS) -mavx2 -mfma -mf16c
AVX512 := $(LOOPS) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma
# A square root that sets errno is not vectorised.
KERNEL_FLAGS = $(KERNEL_OPT) -fno-math-errno
$(B)/src/backend/cpu/%: private FILE_CFLAGS = $(KERNEL_FLAGS)
# References in f64 and difference quotients are most of a kernel test's time.
$(B)/tests/checkop/%: private FILE_CFLAGS = -O2
$(B)/src/backend/cpu/x86/%_avx2.o $(B)/src/backend/cpu/x86/%_avx2.h.ok: private FILE_CFLAGS = $(KERNEL_FLAGS) $(AVX2)
$(B)/src/backend/cpu/x86/%_avx512.o $(B)/src/backend/cpu/x86/%_avx512.h.ok: private FILE_CFLAGS = $(KERNEL_FLAGS) $(AVX512)
