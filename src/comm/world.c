#include "comm/world.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/file.h"
#include "base/library.h"
#include "base/oom.h"
#include "comm/mpi_door.h"
#include "comm/self/self.h"

/* Set by Open MPI; by PMIx (srun --mpi=pmix, prun); by MPICH and Slurm's PMI-2. */
static const char *const rank_variables[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                              "PMI_RANK" };
enum { N_VARIABLE = sizeof rank_variables / sizeof *rank_variables };

#define START_S 600 /* a rank that is silent for so long at the start is lost */

static bool launched(void) {
    for (int i = 0; i < N_VARIABLE; i++)
        if (getenv(rank_variables[i]))
            return true;
    return false;
}

/* Children inherit the environment, but are not ranks. */
static void hide_launcher(void) {
    for (int i = 0; i < N_VARIABLE; i++)
        unsetenv(rank_variables[i]);
    unsetenv("SLURM_STEP_NUM_TASKS");
}

/* srun without an MPI plugin starts processes that do not know of each other. */
static ml_status check_srun(ml_err *err) {
    const char *n = getenv("SLURM_STEP_NUM_TASKS");

    if (!n || atoi(n) < 2)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "srun started %s tasks that cannot find each other: add --mpi=pmix, or "
                   "start a single task",
                   n);
}

static ml_status open_mpi(ml_comm **out, ml_err *err) {
    void *so = ml_library_open(ML_MPI_LIBRARY, true);
    ml_mpi_open_fn *open;
    ml_link *link;
    ml_status st;

    if (!so)
        return ml_fail(err, ML_EUNSUP,
                       "several ranks need " ML_MPI_LIBRARY
                       " beside the program, which `make` builds if MPI is installed "
                       "(tools/check-deps.sh --install ranks): %s",
                       dlerror());
    *(void **)&open = dlsym(so, ML_MPI_DOOR);
    if (!open)
        return ml_fail(err, ML_EUNSUP,
                       ML_MPI_LIBRARY " has no " ML_MPI_DOOR ": rebuild it");
    st = open(&link, ML_MPI_STAMP, err);
    if (st == ML_OK)
        *out = ml_comm_of_link(link);
    return st;
}

/* The checksum of the program file stands for the build. */
static ml_status check_build(ml_comm *c, ml_err *err) {
    char id[ML_CHECKSUM_TEXT] = { 0 };
    ml_file f = { 0 };
    ml_status st = ml_file_map(&f, "/proc/self/exe", err);

    if (st == ML_OK)
        ml_checksum_write(id, ML_CHECKSUM_XXH3, f.bytes.ptr, f.bytes.len);
    ml_file_unmap(&f);
    c->deadline_s = START_S;
    ml_comm_doing(c, "comparing the builds", -1);
    st = c->agree(c, st, err);
    if (st == ML_OK)
        st = ml_comm_same(c, "build", id, err);
    ml_comm_doing(c, NULL, -1);
    c->deadline_s = 0;
    return st;
}

ml_status ml_comm_world(ml_comm **out, ml_err *err) {
    ml_status st;

    *out = ml_comm_self();
    if (!launched())
        return check_srun(err);
    st = open_mpi(out, err);
    hide_launcher();
    if (st == ML_OK && (*out)->size > 1)
        st = check_build(*out, err);
    if (st != ML_OK) {
        (*out)->close(*out);
        *out = NULL;
    }
    return st;
}

typedef struct told { /* by each rank to all */
    char host[64], value[192];
} told;

static ml_status compare(ml_comm *c, const told *all, const char *what, ml_err *err) {
    for (int32_t r = 1; r < c->size; r++)
        if (strcmp(all[r].value, all[0].value) != 0)
            return ml_fail(
                err, ML_EUSAGE,
                "rank %d on host %s has %s %s, but rank 0 on host %s has %s: all "
                "ranks of a job need the same %s",
                (int)r, all[r].host, what, all[r].value, all[0].host, all[0].value, what);
    return ML_OK;
}

ml_status ml_comm_same(ml_comm *c, const char *what, const char *mine, ml_err *err) {
    size_t n = (size_t)c->size * sizeof(told);
    told me = { { 0 }, { 0 } }, *all = ml_memory_grow(NULL, n, "what ranks agree on");
    ml_tensor in = ml_comm_bytes(&me, sizeof me), out = ml_comm_bytes(all, n);
    ml_status st;

    (void)gethostname(me.host, sizeof me.host - 1);
    (void)snprintf(me.value, sizeof me.value, "%s", mine);
    st = c->allgather(c, NULL, &out, &in, err);
    if (st == ML_OK)
        st = c->agree(c, c->rank == 0 ? compare(c, all, what, err) : ML_OK, err);
    free(all);
    return st;
}
