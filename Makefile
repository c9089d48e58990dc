# miles.c: one make, no configure step.  CONTRIBUTING.md says how the targets are meant.
#
#   make             check the toolchain, build ./miles
#   make deps        install what building and testing need (Debian packages)
#   make quickstart  builds ./miles and trains a small model with it, in two minutes
#   make test        what every change must pass, within minutes
#   make test-long   everything else: second compiler, all sanitizers, longer fuzzing, arm64
#   make test-soak   servers under load for half an hour each
#   make install     PREFIX=/usr/local; make deb, make wheel: packages (mk/install.mk)
#
# Objects live under build/$(CONFIG)/, so that configurations stand side by side:
#   make CC=clang CONFIG=clang        make SAN=address,undefined CONFIG=asan
#   make CC=aarch64-linux-gnu-gcc CONFIG=arm

ifeq ($(origin CC),default)
CC := gcc
endif
CONFIG ?= release
B := build/$(CONFIG)
JOBS ?= $(shell nproc)
# What only builds has as many jobs as there are cores, unless -j says otherwise; other goals start
# makes of their own, with JOBS jobs.
BUILDS := all miles programs cuda headers symbols docs docs-check checkop bench build/%
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS))$(filter-out $(BUILDS),$(MAKECMDGOALS)),0)
MAKEFLAGS += -j$(JOBS)
endif

.DEFAULT_GOAL := all

include mk/flags.mk
include mk/build.mk
include mk/cuda.mk
include mk/mpi.mk
include mk/test.mk
include mk/gates.mk
include mk/install.mk

clean:
	rm -rf build miles
.PHONY: clean
