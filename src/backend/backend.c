/* backend.c - selects and opens the backend of a run. */
#include "backend/backend.h"

#include <dlfcn.h>
#include <string.h>

#include "backend/cuda_door.h"
#include "base/library.h"

static ml_status open_cuda(ml_backend *out, const ml_backend_opts *o, ml_err *err) {
    ml_cuda_host host = { .stamp = ML_CUDA_STAMP,
                          .sealed = ml_mem_sealed,
                          .mem_name = ml_mem_name };
    void *so = ml_library_open(ML_CUDA_LIBRARY, false);
    ml_cuda_open_fn *open;
    ml_status st;

    if (!so)
        return ml_fail(err, ML_EUNSUP,
                       "--device cuda needs " ML_CUDA_LIBRARY
                       " beside the program, which `make` builds if nvcc is installed: %s",
                       dlerror());
    *(void **)&open = dlsym(so, ML_CUDA_DOOR);
    if (!open)
        return ml_fail(err, ML_EUNSUP,
                       ML_CUDA_LIBRARY " has no " ML_CUDA_DOOR ": rebuild it");
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
