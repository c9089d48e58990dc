# install.mk - installation, packages.
#
#   make install [PREFIX=/usr/local] [DESTDIR=]      make uninstall
#   make deb      build/miles-c_VERSION_ARCH.deb
#   make wheel    build/miles_c-VERSION-py3-none-PLATFORM.whl, for pip
#
# Deb and wheel carry a program that is linked statically with everything but the C library, and no
# CUDA backend (which needs a build for the GPU at hand: make install).

PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/.*define ML_VERSION "\(.*\)"/\1/p' src/cli/cli.h)

install: all
	@tools/install.sh $(B) '$(PREFIX)' '$(DESTDIR)'
	@echo 'installed in $(DESTDIR)$(PREFIX); make uninstall removes it'
uninstall:
	@tools/install.sh --uninstall '$(PREFIX)' '$(DESTDIR)'

# The objects are those of $(B): other libraries are linked.
build/static/miles: $(B)/src/cli/main.o $(B)/src/cli/version.o $(B)/libmiles.a
	@mkdir -p $(@D)
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)
build/static/libmiles_mpi.so: $(MPI_OBJ)
	@mkdir -p $(@D)
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -o $@ $^ $(filter-out -I%,$(MPI_FLAGS))
static:
	@$(MAKE) --no-print-directory -j$(JOBS) STATIC=1 CUDA=0 build/static/miles \
	  $(if $(filter 1,$(MPI)),build/static/libmiles_mpi.so)
deb: static
	@tools/make-deb.sh build/static $(VERSION) build
wheel: static
	@python3 tools/make_wheel.py build/static $(VERSION) build
.PHONY: install uninstall static deb wheel
