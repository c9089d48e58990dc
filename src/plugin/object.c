#include "plugin/object.h"

#include <dlfcn.h>
#include <string.h>

ml_status ml_object_open(ml_object_fn **entry, const char *path, const char *name,
                         const char *header, ml_err *err) {
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;

    if (!object)
        return ml_fail(err, ML_EIO, "cannot load %s: %s", path, dlerror());
    symbol = dlsym(object, name);
    if (!symbol)
        return ml_fail(err, ML_EFORMAT, "%s has no function %s: see %s", path, name,
                       header);
    memcpy(entry, &symbol, sizeof *entry); /* ISO C has no cast from object to function
                                              pointer */
    return ML_OK;
}
