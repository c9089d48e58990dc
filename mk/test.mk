# test.mk - which tests run when.  tools/run-tests.sh explains the lines of the lists.

SELF := $(MAKE) --no-print-directory -j$(JOBS)
FUZZ_SECONDS ?= 10
ARM_RUN := qemu-aarch64 -L /usr/aarch64-linux-gnu

define NL


endef

# $(call tests,LIMIT,PROGRAMS,PREFIX): a line for each program; $(1) and PREFIX as given.
tests = $(foreach t,$(2),$(1) $(subst build/,,$(t)) $(3) $(t)$(NL))

FUZZ_TARGETS := $(patsubst tests/fuzz/%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
fuzz_lines = $(foreach t,$(FUZZ_TARGETS),$(1) fuzz/$(t) $(MAKE) --no-print-directory $(t)$(NL))

GATES := layers headers names forbidden symbols format docs-check
gate_lines = $(foreach g,$(GATES),120 gate/$(g) $(MAKE) --no-print-directory CONFIG=$(CONFIG) CC=$(CC) $(g)$(NL))

# The same programs in another configuration.
in_config = $(patsubst $(B)/%,build/$(1)/%,$(2))
# ...of a sanitizer, whose allocator and own memory leave these nothing to test.
UNSANITIZED := $(B)/tests/golden/test_memory $(B)/tests/unit/test_serve_faults
sanitized = $(call in_config,$(1),$(filter-out $(UNSANITIZED),$(2)))

# Attention and the LM head take minutes under a sanitizer or an emulator: there they run at
# the machine's best level with a few threads, and in the short tier inside models only.
QUICK_OPS := embed linear rmsnorm rope-table rope add glu moe-route moe-gather moe-linear moe-combine slice conv decay linear-rnn row-gate scale moe-scale lora
TOP_LEVEL := $(or $(if $(filter aarch64,$(ARCH)),neon),$(shell grep -qs avx512f /proc/cpuinfo && \
  echo avx512 || echo avx2))
# Products have cases of hundreds of rows, 5 minutes under a sanitizer: the long tier has them.
SHORT_OPS := $(filter-out linear moe-linear linear-rnn lora,$(QUICK_OPS))
PRODUCTS := $(filter-out $(SHORT_OPS),$(QUICK_OPS))
# $(call quick_checkop,CONFIG,OPS[,NAME]): the ops that are not slow.
quick_checkop = 1800 $(1)/checkop$(3) $(call in_config,$(1),$(CHECKOP)) $(2) --level $(TOP_LEVEL) --threads 3$(NL)

# Whole runs, whole models and processes of others.
WHOLE := $(addprefix $(B)/tests/,unit/test_async unit/test_external unit/test_supervisor_run \
  unit/test_supervisor_kills unit/test_train_models unit/test_train_delta unit/test_train_replay \
  unit/test_turns unit/test_extensions unit/test_debug unit/test_train_sft unit/test_train_lora \
  unit/test_train_quantized unit/test_train_prefix unit/test_rollout \
  unit/test_record unit/test_run_dir unit/test_comm_device unit/test_python unit/test_sandbox unit/test_job_cost \
  unit/test_train_critic unit/test_worker_pool unit/test_reward_faults unit/test_doctor_ranks \
  unit/test_train_snapshot golden/test_lora_golden golden/test_preferences golden/test_reward_model golden/test_optimizers golden/test_golden golden/test_training golden/test_model_plugin)

# Ranks that train together, as far as the second compiler builds them in the long tier.
FEW_RANKS := $(filter %/test_pp %/test_moves,$(RANKS))

# What the short tier runs under the address sanitizer: tests of the modules that read files, text and requests.
# A build of all modules would take a third of the tier's time: the long tier has it.
INPUT_MODULES := base tensor io net text
INPUT := $(addprefix $(B)/tests/,$(addprefix unit/test_,answer_parsers base checkpoint conversation detok \
  dir_replace file grammar http_client http_connections http_server jinja json jsonl loop parquet quant \
  random_schemas safetensors table tokenizer torch_file worker) \
  $(addprefix golden/test_,encode jinja_golden parquet_golden quantize))

# Programs with cases of $MILES_FIXTURES, which the long tier sets.
FIXTURES := $(addprefix $(B)/tests/,golden/test_jinja_golden golden/test_encode golden/test_mtp_golden \
  golden/test_parquet_golden golden/test_formats unit/test_turn_text)

# What the long tier adds under the address sanitizer.
CHECKED := $(filter-out $(UNSANITIZED) $(filter-out $(FIXTURES),$(INPUT)),$(UNIT) $(GOLDEN) $(RANKS))

# What the long tier leaves out under the thread sanitizer: one thread alone.
ONE_THREAD := $(addprefix $(B)/tests/unit/test_,advantage answer_parsers bench calculator checkpoint choices cli \
  cli_names cli_program cmd_loss conversation cpu data_source debug detok dir_replace file grammar \
  host_memory jinja json jsonl loss math packing philox prompter pyrandom random_schemas run_dir safetensors sample \
  spec_shard train_lr train_replay train_sft turn_text weight_delta)
# Runs of miles whose threads the other programs have, too: the soak tier's.
RUNS := $(addprefix $(B)/tests/unit/test_,train_models train_delta train_quantized train_prefix train_critic \
  train_snapshot train_lora extensions record turns supervisor_run supervisor_kills)
SEVERAL_THREADS := $(filter-out $(ONE_THREAD) $(RUNS) $(UNSANITIZED),$(UNIT))
# Tests of several ranks whose communication other tests use, too: also the soak tier's.
LAYOUTS := $(filter %/test_meshes %/test_mtp_training,$(RANKS))

# What the long tier runs with the second compiler; the soak tier has the rest.
CLANG := $(CHECKOP) $(filter-out %/test_engine_parity,$(PARITY)) $(GOLDEN) $(filter-out $(WHOLE),$(UNIT)) $(FEW_RANKS)
CLANG_REST := $(filter-out $(CLANG),$(PARITY) $(RANKS) $(UNIT) $(GOLDEN))

# Model families that have between them every kind of layer: experts, sliding windows, sinks, MLA,
# sparse and linear attention, Mamba.  Sanitizers see these; the others have the same ops.
FAMILIES := qwen3_moe gemma2 gpt_oss deepseek_v3 qwen3_next nemotron_h
SLOW_PARITY := $(addprefix $(B)/tests/parity/test_,parity engine_parity levels train_parity together)
# $(call slow_parity,CONFIG,PROGRAMS,FAMILIES,OTHERS): lines for a configuration in which models are slow;
# OTHERS have no families.
slow_parity = $(foreach t,$(2),\
1800 $(1)/tests/parity/$(t) build/$(1)/tests/parity/$(t) $(3)$(NL))\
$(call tests,1800,$(addprefix build/$(1)/tests/parity/,$(4)))
# The thread sanitizer sees two in the long tier, which have attention, experts and recurrent layers, and
# the others in the soak tier.
TSAN_FAMILIES := qwen3_moe qwen3_next

# $(call load,CONFIG,SECONDS,ARGS): the server under a hundred clients; in the short tier's
# sanitized build, two servers behind the router.
load = 300 $(1)/load $(call in_config,$(1),$(LOAD)) --connections 100 --seconds $(2) $(3)$(NL)

# Leak checks cost gcc 5 s for each process on arm64, and every test is a process: there they are
# left to x86-64, whose tiers run the same tests with them.
ifeq ($(ARCH),aarch64)
export ASAN_OPTIONS := detect_leaks=0
endif

ASAN := CONFIG=asan SAN=address,undefined
TSAN := CONFIG=tsan SAN=thread

# Long commands stand first in their part, so that no core waits for the last one.  Some of the sanitized tests
# run miles, for which there is a link to the release build's.
define CI_TIER
!900 build $(SELF) CONFIG=$(CONFIG) CC=$(CC) programs
&900 asan-input/build $(SELF) CONFIG=asan-input SAN=address,undefined MODULES='$(INPUT_MODULES)' $(call in_config,asan-input,$(INPUT)) && ln -sfn ../$(notdir $(B))/miles build/asan-input/miles
$(gate_lines)
400 e2e/quickstart tests/e2e/train_quickstart.sh $(B) 1
300 e2e/docs-commands tests/e2e/docs_commands.py --build $(B)
$(call tests,600,$(PARITY) $(RANKS))
$(call tests,400,$(CHECKOP))
60 checkop/coverage $(CHECKOP) --coverage
$(call load,$(CONFIG),15)
$(call tests,300,$(UNIT) $(GOLDEN))
300 e2e/openai tools/with-python.sh openai tests/e2e/serve_openai.py --miles $(B)/miles
300 e2e/anthropic tools/with-python.sh anthropic tests/e2e/serve_anthropic.py --miles $(B)/miles
300 e2e/tls tools/with-python.sh openai tests/e2e/serve_tls.py --miles $(B)/miles
300 e2e/faults tests/e2e/faults.py --miles $(B)/miles --inject $(B)/inject.so --faults 40 --seed 1
120 e2e/algorithms tests/e2e/train_algorithms.sh $(B) short
300 e2e/serve tests/e2e/serve_native.py --miles $(B)/miles
300 e2e/serve-qos tests/e2e/serve_qos.py --miles $(B)/miles
120 e2e/curriculum tests/e2e/curriculum.sh $(B)
120 e2e/judge tests/e2e/judge.py --miles $(B)/miles
300 e2e/mtp tests/e2e/train_mtp.py --build $(B)
300 e2e/draft-head tests/e2e/train_mtp.py --build $(B) --head
300 e2e/serve-lora tests/e2e/serve_lora.py --miles $(B)/miles
300 e2e/multi-lora tests/e2e/multi_lora.py --miles $(B)/miles
300 e2e/serve-ranks tests/e2e/serve_native.py --miles $(B)/miles --ranks 2
300 e2e/comm-mpi tests/e2e/comm_mpi.sh $(B)
300 e2e/ranks tests/e2e/ranks.sh $(B)
60 e2e/install tests/e2e/install.sh $(B)
60 e2e/runner tests/e2e/run_tests.sh
60 e2e/make-jobs tests/e2e/make_jobs.sh
60 e2e/recipes tests/e2e/train_recipes.sh $(B)
120 e2e/parquet tests/e2e/train_parquet.sh $(B)
1200 e2e/miles-compat tests/e2e/miles_compat.py --build $(B)
60 e2e/miles-scripts tests/e2e/miles_scripts.py --miles $(B)/miles
120 e2e/run-dir tests/e2e/train_run_dir.sh $(B)
120 e2e/dashboard-control tests/e2e/dashboard_control.py --build $(B)
wait
$(call tests,300,$(call in_config,asan-input,$(INPUT)))
endef

TORCH_PYTHON := torch,transformers,accelerate,gguf,compressed_tensors
TINKER_PYTHON := tinker,tinker_cookbook,datasets,torch,sympy,pylatexenc,math_verify

# All builds stand first: after them nothing waits for all before it, so that cores idle at the end
# only.  What the short tier runs in the same build is not here.  PyTorch is installed meanwhile.
define LONG_TIER
&1200 python tools/with-python.sh $(TORCH_PYTHON) -c pass
&1200 python/tinker env PYTHON_DIR=build/python-tinker tools/with-python.sh $(TINKER_PYTHON) -c pass
!900 build $(SELF) CONFIG=$(CONFIG) CC=$(CC) programs
=900 build/bench $(SELF) CONFIG=$(CONFIG) CC=$(CC) $(BENCH)
!900 clang/build $(SELF) CONFIG=clang CC=clang $(call in_config,clang,$(B)/miles $(CLANG) $(B)/tests/parity/test_engine_parity)
=900 clang/headers $(SELF) CONFIG=clang CC=clang headers
!1800 asan/build $(SELF) $(ASAN) build/asan/miles $(call in_config,asan,$(CHECKED) $(SLOW_PARITY) $(CHECKOP) $(LOAD))
!1800 tsan/build $(SELF) $(TSAN) build/tsan/miles $(call in_config,tsan,$(SEVERAL_THREADS) $(filter-out %/test_levels %/test_train_parity,$(SLOW_PARITY)) $(filter-out $(LAYOUTS),$(RANKS)) $(CHECKOP) $(LOAD))
!900 fuzz/build $(SELF) fuzz-build
600 e2e/sessions-1000 tools/with-python.sh openai,anthropic tests/e2e/sessions.py --miles $(B)/miles --long
400 load-router $(LOAD) --connections 1000 --seconds 60 --router
600 serve-10000 tests/e2e/serve_qos.py --miles $(B)/miles --long
$(if $(and $(filter 1,$(CUDA)),$(wildcard /dev/nvidia0)),3600 gpu $(MAKE) --no-print-directory CONFIG=$(CONFIG) CC=$(CC) gpu-tests)
$(if $(filter 1,$(CUDA)),1800 gpu/oldest $(MAKE) --no-print-directory JOBS=1 cuda-oldest)
3600 arm $(MAKE) --no-print-directory JOBS=1 arm
3600 lint $(MAKE) --no-print-directory JOBS=1 lint
2400 mutants tools/mutants.sh
$(call quick_checkop,tsan,$(PRODUCTS),-products)
$(call quick_checkop,asan,$(QUICK_OPS))
900 asan/checkop-attn $(call in_config,asan,$(CHECKOP)) attn lmhead --level $(TOP_LEVEL) --threads 3
$(call slow_parity,asan,test_parity test_engine_parity test_levels,$(FAMILIES),test_train_parity test_together)
$(call slow_parity,tsan,test_parity test_engine_parity,$(TSAN_FAMILIES),test_together)
1800 algorithms tests/e2e/train_algorithms.sh $(B) long
1800 matrix tests/e2e/train_matrix.sh $(B)
1800 faults tests/e2e/faults.py --miles $(B)/miles --inject $(B)/inject.so --faults 160
1200 e2e/tinker-recipes env PYTHON_DIR=build/python-tinker tools/with-python.sh $(TINKER_PYTHON) tests/e2e/tinker_recipes.py --miles $(B)/miles
900 e2e/tinker env PYTHON_DIR=build/python-tinker tools/with-python.sh tinker tests/e2e/tinker_client.py --miles $(B)/miles
1200 diff/transformers tools/with-python.sh $(TORCH_PYTHON) tools/diff_transformers.py --miles $(B)/miles
1200 diff/torch-dump tools/with-python.sh torch tools/diff_torch_dump.py --build $(B)
1200 diff/reward-model tools/with-python.sh torch,transformers tools/diff_reward_model.py --build $(B)
1200 diff/peft tools/with-python.sh torch,transformers,peft tools/diff_peft.py --build $(B)
1200 diff/llama-cpp tools/with-python.sh torch,transformers,tokenizers tools/diff_llama_cpp.py --miles $(B)/miles
1200 diff/tokenizer tools/with-python.sh tokenizers tools/diff_tokenizer.py --miles $(B)/miles --seed 7
1200 diff/jinja tools/with-python.sh jinja2 tools/diff_jinja.py --miles $(B)/miles --seed 5 --conversations 5
1200 diff/loss tools/with-python.sh torch tools/ref_loss.py --miles $(B)/miles --seed 7
900 diff/trackers tools/with-python.sh wandb,mlflow,trackio tools/diff_trackers.py --build $(B)
900 e2e/verifiers-v0 env PYTHON_DIR=build/python-verifiers tools/with-python.sh 'verifiers<0.2,datasets' tests/e2e/environments.py --build $(B) verifiers-v0
900 e2e/verifiers-v1 env PYTHON_DIR=build/python-verifiers-v1 tools/with-python.sh verifiers,uv tests/e2e/environments.py --build $(B) verifiers-v1
900 e2e/openenv tools/with-python.sh openenv_core tests/e2e/environments.py --build $(B) openenv
900 e2e/examples-of-miles tests/e2e/environments.py --build $(B) checkout
1200 install tests/e2e/install.sh $(B) long
1200 ranks tests/e2e/ranks.sh $(B) long
900 rank-hosts tests/e2e/rank_hosts.sh $(B)
900 rank-kills tests/e2e/rank_kills.sh $(B) 3
900 rank-kills-lora tests/e2e/rank_kills.sh $(B) 2 --lora-rank 4 --target-modules all-linear
600 serve-lora-ranks tests/e2e/serve_lora.py --miles $(B)/miles --ranks 3
900 lora-memory tests/e2e/lora_memory.py --miles $(B)/miles
900 sampling-support tests/e2e/train_support.sh $(B)
900 grammar-schemas tools/with-python.sh jsonschema tests/e2e/grammar_schemas.py --build $(B)
900 mtp tests/e2e/train_mtp.py --build $(B) --long
900 draft-head tests/e2e/train_mtp.py --build $(B) --head --long
400 run-dir tests/e2e/train_run_dir.sh $(B) tensorboard
600 dashboard tests/e2e/dashboard.py --build $(B)
900 seed/2 $(CHECKOP) --seed 2 --level $(TOP_LEVEL) --threads 2
$(call load,tsan,30,--no-rss)
$(call load,asan,15,--no-rss --router)
$(call quick_checkop,tsan,$(SHORT_OPS))
$(call tests,1800,$(call in_config,tsan,$(filter-out $(LAYOUTS),$(RANKS)) $(SEVERAL_THREADS)))
$(call tests,1800,$(call in_config,asan,$(CHECKED)))
900 clang/engine_parity build/clang/tests/parity/test_engine_parity $(FAMILIES)
$(call tests,900,$(call in_config,clang,$(CLANG)))
$(call fuzz_lines,300)
endef

# $(call long_kills,NAME,PROGRAM,TESTS): a series of 20 or 50 kills.
long_kills = 1800 kills/$(1) env MILES_LONG=1 $(B)/tests/unit/$(2) $(3)$(NL)

# What takes half an hour and repeats what the other tiers do a few times: servers under load, with
# a thousand clients and instrumented; series of kills; every mix of requests and more seeds.
define SOAK_TIER
!900 build $(SELF) CONFIG=$(CONFIG) CC=$(CC) programs
3600 rank-kills tests/e2e/rank_kills.sh $(B) 50
3600 rank-kills-lora tests/e2e/rank_kills.sh $(B) 50 --lora-rank 4 --target-modules all-linear
3600 multi-lora-kills tests/e2e/multi_lora.py --miles $(B)/miles --kills 50
$(if $(filter 1,$(CUDA)),7200 gpu/all $(MAKE) --no-print-directory cuda-all)
3600 tinker-kills env PYTHON_DIR=build/python-tinker tools/with-python.sh tinker tests/e2e/tinker_client.py --miles $(B)/miles --only tenant_kills --kills 50
!900 clang/build $(SELF) CONFIG=clang CC=clang $(call in_config,clang,$(B)/miles $(CLANG_REST))
!900 fuzz/build $(SELF) fuzz-build
!1800 asan/build $(SELF) $(ASAN) build/asan/miles $(call in_config,asan,$(LOAD))
!1800 tsan/build $(SELF) $(TSAN) build/tsan/miles $(call in_config,tsan,$(LOAD) $(RUNS) $(LAYOUTS) $(filter-out %/test_levels %/test_together,$(SLOW_PARITY)))
&2400 asan/load $(call in_config,asan,$(LOAD)) --connections 100 --seconds 1800 --no-rss --router
&2400 tsan/load $(call in_config,tsan,$(LOAD)) --connections 100 --seconds 1800 --no-rss
&2400 load $(LOAD) --connections 1000 --seconds 1800
$(call long_kills,models,test_train_models,kills)
$(call long_kills,train,test_rollout,kills)
$(call long_kills,async,test_async,kills)
$(call long_kills,turns,test_turns,kills)
$(call long_kills,engines,test_supervisor_kills,die)
$(call long_kills,sft,test_train_sft,kills)
$(call long_kills,lora,test_train_lora,kills)
$(call long_kills,snapshot,test_train_snapshot,killed)
1800 mixes env MILES_LONG=1 $(B)/tests/parity/test_engine_parity
1800 lora-ranks env MILES_LONG=1 $(B)/tests/ranks/test_lora_ranks
1800 moves env MILES_LONG=1 $(B)/tests/ranks/test_moves
1800 pipelines env MILES_LONG=1 $(B)/tests/ranks/test_pp
3600 meshes env MILES_LONG=1 $(B)/tests/ranks/test_meshes
$(call fuzz_lines,600)
3600 faults tests/e2e/faults.py --miles $(B)/miles --inject $(B)/inject.so --faults 640 --seed 2
3600 lint $(MAKE) --no-print-directory JOBS=1 LINT_NODES=225000 lint
$(call slow_parity,tsan,test_parity test_engine_parity,$(filter-out $(TSAN_FAMILIES),$(FAMILIES)),test_train_parity)
$(call tests,1800,$(call in_config,tsan,$(RUNS) $(LAYOUTS)))
$(call tests,900,$(call in_config,clang,$(CLANG_REST)))
$(foreach n,3 4 5,900 seed/$(n) $(CHECKOP) --seed $(n) --level $(TOP_LEVEL) --threads 2$(NL))
$(foreach f,qwen3_moe qwen3_next,900 quickstart/$(f) tests/e2e/train_quickstart.sh $(B) 1 $(f)$(NL))
$(foreach n,2 3 4 5,900 quickstart/$(n) tests/e2e/train_quickstart.sh $(B) $(n)$(NL))
7200 quickstart-precision tests/e2e/quickstart_precision.sh $(B) 1 2 3 4 5
endef

# Emulators of user programs may not survive fork or threads, so one thread and no test runner:
# every kernel against the committed hashes, every model against the bytes of the native build.
define ARM_TIER
!1800 arm/build $(SELF) CONFIG=arm CC=aarch64-linux-gnu-gcc build/arm/miles build/arm/checkop
!900 arm/native $(SELF) CONFIG=$(CONFIG) CC=$(CC) $(B)/miles
3000 arm/checkop $(ARM_RUN) build/arm/checkop --level neon --threads 1
1800 arm/models tools/compare-runs.sh '$(ARM_RUN) build/arm/miles' $(B)/miles
endef

export CI_TIER LONG_TIER SOAK_TIER ARM_TIER

test: deps
	@printf '%s\n' "$$CI_TIER" | tools/run-tests.sh

test-long: export FUZZ_SECONDS := 10
test-long: export MILES_FIXTURES := ../shared/fixtures
test-long: deps
	@printf '%s\n' "$$LONG_TIER" | tools/run-tests.sh

test-soak: export FUZZ_SECONDS := 120
test-soak: deps
	@printf '%s\n' "$$SOAK_TIER" | tools/run-tests.sh

# The same bits on the other architecture, under emulation.
arm:
ifeq ($(shell uname -m),aarch64)
	@echo "skipped: this machine is arm64: make test checks what make arm emulates"
else
	@if tools/check-deps.sh --install arm; then \
	  printf '%s\n' "$$ARM_TIER" | tools/run-tests.sh; \
	else \
	  echo "skipped: the arm64 cross compiler and qemu-user are missing and cannot be installed (tools/check-deps.sh --install arm)"; \
	fi
endif

# Plants faults and wants parity tests to find them.
mutants:
	@tools/mutants.sh

checkop: $(B)/checkop
	$(B)/checkop $(ARGS)

asan:
	@$(SELF) $(ASAN) run-all
ubsan:
	@$(SELF) CONFIG=ubsan SAN=undefined run-all
tsan:
	@$(SELF) $(TSAN) run-all

define ALL_PROGRAMS
$(call tests,1800,$(UNIT) $(CHECKOP) $(GOLDEN) $(PARITY) $(RANKS))
endef
export ALL_PROGRAMS
run-all: programs
	@printf '%s\n' "$$ALL_PROGRAMS" | tools/run-tests.sh

# Fuzzing: clang only.  What reads the files of strangers is instrumented; kernels, which the
# targets link but do not run, are not.  What is found grows under build/fuzz/corpus; the
# committed corpus is the seed.
FUZZ_MAKE := $(SELF) CONFIG=fuzz CC=clang SAN=fuzzer-no-link,address,undefined \
  KERNEL_OPT='-O1 -fno-sanitize=all' MODULES='base tensor text net io backend comm model engine gen train rl serve tinker dash'
fuzz: fuzz-build
	@printf '%s\n' $(foreach t,$(FUZZ_TARGETS),'7200 fuzz/$(t) $(MAKE) --no-print-directory $(t)') | \
	  tools/run-tests.sh
fuzz-build:
	@$(FUZZ_MAKE) $(FUZZ_TARGETS:%=build/fuzz/tests/fuzz/%)
$(FUZZ_TARGETS): fuzz_%:
	@mkdir -p build/fuzz/corpus/$* tests/fuzz/corpus/$*
	build/fuzz/tests/fuzz/$@ -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=10 \
	  -artifact_prefix=build/fuzz/$*- build/fuzz/corpus/$* tests/fuzz/corpus/$*
$(FUZZ_TARGETS:%=build/fuzz/tests/fuzz/%): build/fuzz/%: build/fuzz/%.o build/fuzz/libmiles.a
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LIBS)

# Trains a small model from random weights; SEED selects the model and the problems.
SEED ?= 1
quickstart:
	@CC='$(CC)' tools/check-deps.sh --install build
	@$(SELF) CONFIG=$(CONFIG) CC=$(CC) miles $(TOOLS)
	@MILES_BUILD=$(B) recipes/quickstart.sh build/quickstart $(SEED)

# All of them run; a goal that is missed fails the target at the end.
bench: $(B)/deps-bench.ok $(BENCH)
	@status=0; \
	$(B)/bench/bench_gemm $(ARGS) || status=1; \
	$(B)/bench/bench_model $(ARGS) || status=1; \
	bench/bench_train.sh $(B)/bench/bench_train || status=1; \
	$(B)/bench/bench_ranks || status=1; \
	$(B)/bench/bench_prefix || status=1; \
	$(B)/bench/bench_engine $(ARGS) || status=1; \
	$(B)/bench/bench_quant $(ARGS) || status=1; \
	bench/bench_tokenize.sh $(B)/bench/bench_tokenize || status=1; \
	$(B)/bench/bench_grammar || status=1; \
	tools/with-python.sh pyarrow bench/bench_parquet.py --program $(B)/bench/bench_parquet || status=1; \
	exit $$status
$(filter-out $(GPU_BENCH:%=%.o),$(BENCH:%=%.o)): | $(B)/deps-bench.ok
$(B)/deps-bench.ok: tools/check-deps.sh
	@mkdir -p $(@D)
	@tools/check-deps.sh --install bench
	@touch $@

.PHONY: test test-long test-soak arm mutants checkop asan ubsan tsan run-all fuzz fuzz-build $(FUZZ_TARGETS) quickstart bench
