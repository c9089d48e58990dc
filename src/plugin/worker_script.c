/* share/miles_worker.py at build time. */
#include "plugin/worker_script.h"

__asm__(".pushsection .rodata\n"
        ".global ml_worker_script_text\n"
        ".hidden ml_worker_script_text\n"
        "ml_worker_script_text:\n"
        ".incbin \"share/miles_worker.py\"\n"
        ".byte 0\n"
        ".popsection\n");

extern const char ml_worker_script_text[];

ml_str ml_worker_script(void) {
    return ml_str_of(ml_worker_script_text);
}
