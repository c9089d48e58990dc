# gates.mk - the rules that a script can check.  Each is one test of `make test`.

# clang-format's output differs between versions: this one decides.
CLANG_FORMAT := $(or $(shell command -v clang-format-14),clang-format)
FORMATTED = $(shell find src include tests bench tools examples -name '*.[ch]' -o -name '*.inc' -o \
  -name '*.cu' -o -name '*.cuh' 2>/dev/null)
HEADERS := $(filter-out $(OTHER_ARCH),$(shell find src include tests -name '*.h' 2>/dev/null))

layers:
	@tools/check-layers.sh
names:
	@tools/check-names.sh
forbidden:
	@tools/check-forbidden.sh
symbols: $(B)/miles $(B)/libmiles.a
	@tools/check-symbols.sh $^

# Every header can be included first.
headers: $(HEADERS:%=$(B)/%.ok)
$(B)/%.h.ok: %.h $(B)/flags
	@mkdir -p $(@D)
	@$(CC) $(ALL_CFLAGS) -Wno-unused-function -x c -fsyntax-only $<
	@touch $@

format fmt-check:
	@case "$$($(CLANG_FORMAT) --version)" in \
	*'version 14.'*) $(CLANG_FORMAT) --dry-run -Werror $(FORMATTED) ;; \
	*) echo "skipped: clang-format 14 decides the layout and is not installed (Debian: clang-format-14)" ;; \
	esac
fmt:
	$(CLANG_FORMAT) -i $(FORMATTED)

docs: $(B)/miles
	$< --print-docs > docs/cli.md
docs-check: $(B)/miles
	@$< --print-docs | diff -u docs/cli.md - || \
	  { echo "docs/cli.md is not what the flag rows say: run make docs"; false; }

# cppcheck 2.10 goes on after a failed ML_BUG_IF or CHECK, and does not parse a compound literal
# between ? and :.
CPPCHECK_SUPPRESS := missingIncludeSystem ctunullpointer internalAstError invalidPointerCast \
  arrayIndexOutOfBoundsCond nullPointerRedundantCheck nullPointerArithmeticRedundantCheck

# The static analyzer examines at most LINT_NODES program states of a function.  With clang's default,
# 225000, which the soak tier uses, clang-tidy takes five times as long, about half an hour of one core.
LINT_NODES ?= 30000
TIDY_LIMIT := $(addprefix --extra-arg=,-Xclang -analyzer-config -Xclang max-nodes=$(LINT_NODES))

# A file is checked again when it, a header or the rules have changed.
TIDY_DIR := build/lint/$(LINT_NODES)
TIDY_FLAGS = $(filter-out -W%,$(ALL_CFLAGS))
TIDY := $(patsubst %.c,$(TIDY_DIR)/%.ok,$(filter-out src/backend/cpu/x86/% src/backend/cpu/arm/%,$(SRC)))
$(TIDY_DIR)/%.ok: %.c .clang-tidy
	@mkdir -p $(@D)
	@clang-tidy --quiet --warnings-as-errors='*' $(TIDY_LIMIT) $< -- $(TIDY_FLAGS) 2>/dev/null
	@$(CC) $(TIDY_FLAGS) -M -MP -MT $@ -MF $(@:.ok=.d) $<
	@touch $@
-include $(shell find $(TIDY_DIR) -name '*.d' 2>/dev/null)

lint:
	@tools/check-deps.sh --install lint
	@shellcheck tools/*.sh bench/*.sh recipes/*.sh tests/e2e/*.sh tests/gpu/*.sh share/launch/*.sh .ci/run
	@$(SELF) -k $(TIDY)
	@mkdir -p build/lint/cppcheck
	@cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
	  --cppcheck-build-dir=build/lint/cppcheck \
	  $(CPPCHECK_SUPPRESS:%=--suppress=%) --error-exitcode=1 -j$(JOBS) -Isrc -I. src tests/support

sizes:
	@tools/sizes.sh

.PHONY: layers names forbidden symbols headers format fmt-check fmt docs docs-check lint sizes
