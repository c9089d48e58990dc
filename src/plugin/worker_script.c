/* share/miles_worker.py as it was when the program was built. */
#include "plugin/worker_script.h"

__asm__(".pushsection .rodata\n"
        ".global ml_worker_script_begin\n"
        ".hidden ml_worker_script_begin\n"
        "ml_worker_script_begin:\n"
        ".incbin \"share/miles_worker.py\"\n"
        ".global ml_worker_script_end\n"
        ".hidden ml_worker_script_end\n"
        "ml_worker_script_end:\n"
        ".byte 0\n"
        ".popsection\n");

extern const char ml_worker_script_begin[], ml_worker_script_end[];

ml_str ml_worker_script(void) {
    return (ml_str){ ml_worker_script_begin,
                     (size_t)(ml_worker_script_end - ml_worker_script_begin) };
}
