/* miles sandbox: runs a program of standard input where it can do no harm. */
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"

/* The rest of standard input stays unread for the program. */
static ml_status read_code(ml_text *out, int64_t most, ml_err *err) {
    char part[65536];

    ml_text_add(out, "", 0);
    for (int64_t left = most; !most || left > 0;) {
        size_t want = most && left < (int64_t)sizeof part ? (size_t)left : sizeof part;
        ssize_t n = read(0, part, want);
        if (n == 0 && !most)
            return ML_OK;
        if (n <= 0)
            return ml_fail(err, ML_EIO,
                           "standard input ended before the --code-bytes of the program");
        ml_text_add(out, part, (size_t)n);
        left -= n;
    }
    return ML_OK;
}

ml_status ml_cmd_sandbox(const ml_config *c, ml_err *err) {
    ml_text code = { 0 };
    ml_status st = read_code(&code, c->sandbox.code_bytes, err);
    int status = 0;

    if (st == ML_OK)
        status = ml_sandbox_main(&c->sandbox.opts, (ml_str){ code.ptr, code.len });
    ml_text_release(&code);
    if (st == ML_OK)
        exit(status); /* of the program, not of miles */
    return st;
}
