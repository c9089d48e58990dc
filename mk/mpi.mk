# mpi.mk - libmiles_mpi.so, the communicator over MPI: built where MPI is, left out where it is not.
#
#   make MPI=0          without it
#   make MPICC=...      with another MPI than the mpicc in the path

MPICC ?= mpicc
MPI_FLAGS := $(filter -I% -L% -l% -Wl%,$(shell $(MPICC) -show 2>/dev/null))
MPI ?= $(if $(and $(MPI_FLAGS),$(filter $(shell uname -m),$(ARCH))),1,0)

MPI_LIB := $(B)/libmiles_mpi.so
MPI_SHARED := $(addprefix src/base/,clock.c err.c oom.c shown.c str.c utf8.c)
MPI_OBJ := $(patsubst %.c,$(B)/pic/%.o,src/comm/mpi/mpi.c $(MPI_SHARED))

$(B)/pic/src/comm/mpi/mpi.o: private FILE_CFLAGS = $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_FLAGS)))

$(MPI_LIB): $(MPI_OBJ)
	@echo '  ld  $@'
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -o $@ $^ $(filter-out -I%,$(MPI_FLAGS))

libmiles_mpi.so: $(MPI_LIB)
	cp $< $@

ifeq ($(MPI),1)
all: libmiles_mpi.so
programs: $(MPI_LIB)
else
all: no-mpi
no-mpi:
	@echo 'without MPI, one rank only: for several, tools/check-deps.sh --install ranks, then make'
.PHONY: no-mpi
endif
