/* sandbox_priv.h - what the files of sandbox.h share. */
#ifndef ML_BASE_SANDBOX_PRIV_H
#define ML_BASE_SANDBOX_PRIV_H

#include "base/sandbox.h"

#define ML_SANDBOX_MAIN "/tmp/main"

/* What a program sees of this machine's files. */
typedef struct ml_sandbox_view {
    char python[1024];  /* the interpreter, a path that is the same inside */
    char root[2][1024]; /* its directories outside of /usr; "": none */
} ml_sandbox_view;

/* false: there is no Python. */
bool ml_sandbox_look(ml_sandbox_view *out, const ml_sandbox_opts *o);
/* Mounts the view and changes the root, in namespaces of this process's own; the code is in
 * ML_SANDBOX_MAIN.  false: errno says why. */
bool ml_sandbox_enter(const ml_sandbox_view *v, ml_str code, int64_t file_bytes);
/* Installs the seccomp filter. */
bool ml_sandbox_filter(void);

#endif
