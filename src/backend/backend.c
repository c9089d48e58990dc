/* backend.c - selects and opens the backend of a run. */
#include "backend/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda_door.h"

#define LIBRARY "libmiles_cuda.so"

/* Searches the program's directory, then the system's library path.  The library is never
 * unloaded: the CUDA runtime does not survive dlclose. */
static void *load_library(void) {
    char path[PATH_MAX + sizeof LIBRARY];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    void *so = NULL;

    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n > 0) {
        memcpy(path + n, LIBRARY, sizeof LIBRARY);
        so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return so ? so : dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static ml_status open_cuda(ml_backend *out, const ml_backend_opts *o, ml_err *err) {
    ml_cuda_host host = { .stamp = ML_CUDA_STAMP,
                          .sealed = ml_mem_sealed,
                          .mem_name = ml_mem_name };
    void *so = load_library();
    ml_cuda_open_fn *open;
    ml_status st;

    if (!so)
        return ml_fail(err, ML_EUNSUP,
                       "--device cuda needs " LIBRARY
                       " beside the program, which `make` builds if nvcc is installed: %s",
                       dlerror());
    *(void **)&open = dlsym(so, ML_CUDA_DOOR);
    if (!open)
        return ml_fail(err, ML_EUNSUP, LIBRARY " has no " ML_CUDA_DOOR ": rebuild it");
    st = ml_backend_cpu_open(&host.cpu, o->n_thread, o->cpu_level, err);
    if (st == ML_OK) {
        st = open(out, &host, o->f32, err);
        if (st != ML_OK)
            ml_backend_close(&host.cpu);
    }
    return st;
}

ml_status ml_backend_open(ml_backend *out, const ml_backend_opts *o, ml_err *err) {
    if (o->device && strcmp(o->device, "cuda") == 0)
        return open_cuda(out, o, err);
    if (!o->device && open_cuda(out, o, NULL) == ML_OK)
        return ML_OK;
    return ml_backend_cpu_open(out, o->n_thread, o->cpu_level, err);
}

void ml_backend_close(ml_backend *b) {
    if (b->close)
        b->close(b);
    *b = (ml_backend){ 0 };
}
