/* miles data show: the rows of data files as JSON lines. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "io/table.h"

#define WRITE_BYTES ((size_t)1 << 20)

static ml_status flush(ml_text *out, ml_err *err) {
    bool ok = fwrite(out->ptr, 1, out->len, stdout) == out->len && fflush(stdout) == 0;

    out->len = 0;
    return ok ? ML_OK
              : ml_fail(err, ML_EIO, "cannot write standard output: %s", strerror(errno));
}

/* Rows before an invalid one are still written. */
static ml_status show_rows(const ml_table *t, ml_err *err) {
    ml_table_reader r = { .table = t };
    ml_text out = { 0 };
    ml_status st = ML_OK, written = ML_OK;
    ml_err later;

    for (int64_t i = 0; i < t->n && st == ML_OK && written == ML_OK; i++) {
        st = ml_table_read(&r, i, &out, err);
        if (st == ML_OK)
            ml_text_add(&out, "\n", 1);
        if (out.len >= WRITE_BYTES)
            written = flush(&out, &later);
    }
    if (written == ML_OK && out.len)
        written = flush(&out, &later);
    if (st == ML_OK && written != ML_OK)
        st = ml_fail(err, written, "%s", later.msg);
    ml_text_release(&out);
    ml_table_reader_release(&r);
    return st;
}

ml_status ml_cmd_data_show(const ml_config *c, ml_err *err) {
    ml_table t = { 0 };
    ml_status st = ml_table_open(&t, c->data.path, err);

    if (st == ML_OK && c->data.columns.n)
        st = ml_table_select(&t, c->data.columns.word, c->data.columns.n, err);
    if (st == ML_OK)
        st = show_rows(&t, err);
    ml_table_close(&t);
    return st;
}
