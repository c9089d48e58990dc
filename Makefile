# miles.c: make, make test, make checkop, make bench ...   (see CONTRIBUTING.md)
CC ?= gcc
CONFIG ?= release
B := build/$(CONFIG)
ARCH := $(shell $(CC) -dumpmachine | sed 's/-.*//')

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes \
  -Wwrite-strings -Wdouble-promotion -Wconversion -Wcast-qual -Wpointer-arith \
  -Wno-missing-field-initializers -Werror
CFLAGS ?= -O2 -g
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -ffp-contract=off -fno-strict-aliasing \
  -fvisibility=hidden -pthread $(WARN) $(CFLAGS)
ALL_LDFLAGS = -pthread $(LDFLAGS)
LIBS := -lm

SRC := $(filter-out src/cli/% src/backend/cpu/x86/% src/backend/cpu/arm/%,$(shell find src -name '*.c' | sort))
ifneq ($(filter x86_64,$(ARCH)),)
SRC += $(sort $(wildcard src/backend/cpu/x86/*.c))
else ifneq ($(filter aarch64,$(ARCH)),)
SRC += $(sort $(wildcard src/backend/cpu/arm/*.c))
endif
OBJ := $(SRC:%.c=$(B)/%.o)
CLI_OBJ := $(patsubst %.c,$(B)/%.o,$(sort $(wildcard src/cli/*.c)))

all: miles
miles: $(B)/miles
	cp $< $@
$(B)/miles: $(CLI_OBJ) $(B)/libmiles.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)
$(B)/libmiles.a: $(OBJ)
	@rm -f $@
	ar rcs $@ $^

$(B)/src/backend/cpu/%.o: CFLAGS += -O3
$(B)/src/backend/cpu/x86/%_avx2.o: CFLAGS += -mavx2 -mfma
$(B)/src/backend/cpu/x86/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

clean:
	rm -rf build miles
.PHONY: all clean
-include $(shell find build -name '*.d' 2>/dev/null)
