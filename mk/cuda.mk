# cuda.mk - libmiles_cuda.so, the CUDA backend: built where nvcc is, left out where it is not.
#
#   make CUDA=0          without it
#   make CUDA_ARCH=80    for another card than Hopper (sm_90a)
#   make CUDA_ARCH=all   for Ampere to Blackwell, and as PTX for later cards
#
# It links against nothing of the program; what it shares with it is compiled again, as
# position-independent code.  Numerics are written here too: no contraction.

CUDA_HOME ?= /usr/local/cuda
NVCC := $(or $(shell command -v nvcc),$(wildcard $(CUDA_HOME)/bin/nvcc))
CUDA ?= $(if $(and $(NVCC),$(filter $(shell uname -m),$(ARCH)),$(if $(SAN),,1)),1,0)
CUDA_ARCH ?= 90a
CUDA_ARCHS := $(if $(filter all,$(CUDA_ARCH)),80 90a 100 120,$(CUDA_ARCH))

# Hopper has kernels of its own, which are compiled for it alone.
HOPPER := $(filter 90a,$(CUDA_ARCHS))
HOPPER_SRC := $(sort $(wildcard src/backend/cuda/*/*_wgmma.cu src/backend/cuda/*/*_wgmma_back.cu))
CUDA_SRC := $(filter-out $(if $(HOPPER),,$(HOPPER_SRC)),\
  $(sort $(wildcard src/backend/cuda/*.cu src/backend/cuda/*/*.cu)))
CUDA_SHARED := $(addprefix src/base/,clock.c err.c oom.c philox.c shown.c str.c utf8.c) src/tensor/tensor.c src/tensor/codes.c \
  src/backend/support.c
CUDA_LIB := $(B)/libmiles_cuda.so
CUDA_OBJ := $(patsubst %.cu,$(B)/%.cu.o,$(CUDA_SRC)) $(patsubst %.c,$(B)/pic/%.o,$(CUDA_SHARED))

code_for = -gencode=arch=compute_$(1),code=sm_$(1)
LATER_CARDS := -gencode=arch=compute_120,code=compute_120
CUDA_CODE := $(foreach a,$(CUDA_ARCHS),$(call code_for,$(a))) $(if $(filter all,$(CUDA_ARCH)),$(LATER_CARDS))
NVCCFLAGS := -std=c++17 -O3 --fmad=false -Isrc -Iinclude -diag-suppress 177 \
  -DML_WGMMA=$(if $(HOPPER),1,0) -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-ffp-contract=off

$(B)/%.cu.o: %.cu $(B)/cuda-flags
	@mkdir -p $(@D)
	@echo '  nvcc $@'
	$(Q)$(NVCC) $(NVCCFLAGS) $(if $(filter $(HOPPER_SRC),$<),$(call code_for,90a),$(CUDA_CODE)) \
	  -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(B)/pic/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	@echo '  cc  $@'
	$(Q)$(CC) $(ALL_CFLAGS) -fPIC -MMD -MP -c -o $@ $<

$(CUDA_LIB): $(CUDA_OBJ)
	@echo '  ld  $@'
	$(Q)$(NVCC) -shared -Xlinker --no-undefined -o $@ $^ -L$(dir $(NVCC))../lib64 -L$(dir $(NVCC))../lib -lcublasLt

$(B)/cuda-flags: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC) $(NVCCFLAGS) $(CUDA_CODE)' | cmp -s - $@ || echo '$(NVCC) $(NVCCFLAGS) $(CUDA_CODE)' > $@

libmiles_cuda.so: $(CUDA_LIB)
	cp $< $@

cuda: $(CUDA_LIB)
.PHONY: cuda

ifeq ($(CUDA),1)
all: libmiles_cuda.so
endif

# Programs that need a GPU, and say so where there is none.
GPU_BENCH := $(B)/bench/bench_gpu $(B)/bench/bench_roof $(B)/bench/bench_attn $(B)/bench/bench_linear
GPU_TESTS := $(patsubst %.c,$(B)/%,$(sort $(wildcard tests/gpu/*.c)))
$(GPU_TESTS): %: %.o $(B)/libmiles.a
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

gpu-tests: $(CUDA_LIB) $(B)/miles $(B)/checkop $(GPU_TESTS) $(GPU_BENCH) $(TOOLS)
	@tests/gpu/run.sh $(B)

# The table of speeds.
gpu-bench: $(CUDA_LIB) $(B)/miles $(GPU_BENCH)
	@bench/gpu.sh $(B)

# The oldest cards that it is written for, and the newest; nothing of it runs here.
cuda-oldest:
	@$(MAKE) --no-print-directory CONFIG=sm80 CUDA_ARCH=80 CUDA=1 cuda
cuda-all:
	@$(MAKE) --no-print-directory CONFIG=cuda-all CUDA_ARCH=all CUDA=1 cuda
.PHONY: gpu-tests gpu-bench cuda-oldest cuda-all
