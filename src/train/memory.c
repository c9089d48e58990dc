#include "train/memory.h"

#include "train/host_memory.h"

size_t ml_memory_available(const ml_backend *be) {
    return be->dev->available ? be->dev->available(be->dev) : ml_host_memory_left("");
}

static size_t own_memory(const char *word) {
    size_t kib = ml_host_memory_number("/proc/self/status", word);
    return kib == SIZE_MAX ? 0 : kib * 1024;
}

size_t ml_memory_resident(void) {
    return own_memory("VmRSS:");
}

size_t ml_memory_base(const ml_backend *be) {
    const ml_device *dev = be->dev;
    return dev->used ? dev->used(dev) + dev->later : ml_memory_resident();
}

/* Peak of the process: getrusage would include the peak before exec. */
size_t ml_memory_peak(const ml_backend *be) {
    return be->dev->peak ? be->dev->peak(be->dev) : own_memory("VmHWM:");
}
