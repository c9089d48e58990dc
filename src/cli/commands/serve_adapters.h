/* serve_adapters.h - the LoRA adapters of miles serve, from its flags.
 *
 * thread: one. */
#ifndef ML_CLI_COMMANDS_SERVE_ADAPTERS_H
#define ML_CLI_COMMANDS_SERVE_ADAPTERS_H

#include "cli/config.h"
#include "model/lora.h"
#include "serve/server.h"

typedef struct ml_serve_adapters {
    bool on;
    ml_server_adapter *list; /* [n] --lora-paths */
    int n;
    ml_lora_limits limits;
} ml_serve_adapters;

/* Reads the flags and inserts LORA ops into the spec; the arena owns the result. */
ml_status ml_serve_adapters_open(ml_serve_adapters *out, ml_arena *a, const ml_config *c,
                                 ml_spec *s, ml_backend *be, ml_err *err);

#endif
