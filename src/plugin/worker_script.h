/* worker_script.h - the Python program that serves a user's function, embedded so that
 * the program needs no extra file.
 *
 * thread: any; immutable. */
#ifndef ML_PLUGIN_WORKER_SCRIPT_H
#define ML_PLUGIN_WORKER_SCRIPT_H

#include "base/str.h"

ml_str ml_worker_script(void);

#endif
