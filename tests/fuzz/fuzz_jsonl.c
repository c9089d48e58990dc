/* Any bytes as a file of prompts: refused with a sentence that names a line, or, when bad rows
 * may be skipped, every row is either kept or named.  A kept row can be read again.  The
 * first byte chooses the options, and a slice comes from what follows. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bug.h"
#include "rl/data/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The file lives in memory; a link gives it a name that ends as it must. */
static struct {
    int fd;
    char dir[64], file[96];
} at;

static void remove_all(void) {
    unlink(at.file);
    rmdir(at.dir);
}

static void prepare(void) {
    char target[64];

    at.fd = memfd_create("prompts", MFD_CLOEXEC);
    ML_BUG_IF(at.fd < 0);
    snprintf(target, sizeof target, "/proc/self/fd/%d", at.fd);
    snprintf(at.dir, sizeof at.dir, "%s/miles-fuzz-XXXXXX", P_tmpdir);
    ML_BUG_IF(!mkdtemp(at.dir));
    snprintf(at.file, sizeof at.file, "%s/prompts.jsonl", at.dir);
    ML_BUG_IF(symlink(target, at.file));
    atexit(remove_all);
}

static void put(const void *bytes, size_t n) {
    ML_BUG_IF(ftruncate(at.fd, 0) || pwrite(at.fd, bytes, n, 0) != (ssize_t)n);
}

static int64_t walk(const ml_json *v) {
    int64_t n = 1, children = 0;

    for (const ml_json *c = v->child; c; c = c->next, children++)
        n += walk(c);
    ML_BUG_IF(children != v->n);
    return n;
}

/* Looks at everything, and refuses now and then, with and without tools. */
static ml_status render(void *ud, ml_text *out, const ml_json *messages,
                        const ml_json *tools, const ml_json *kwargs, ml_err *err) {
    int64_t n = walk(messages) + walk(kwargs) + (tools ? walk(tools) : 0);

    (void)ud;
    ML_BUG_IF(messages->type != ML_JSON_ARRAY || !messages->child);
    ML_BUG_IF(tools && (tools->type != ML_JSON_ARRAY || !tools->child));
    if (n % 7 == 0)
        return ml_fail(err, ML_EFORMAT, "%lld values are not to the template's taste",
                       (long long)n);
    ml_text_printf(out, "%lld", (long long)n);
    return ML_OK;
}

static ml_status count(void *ud, int worker, int64_t *out, ml_str text, ml_err *err) {
    (void)ud;
    (void)worker;
    (void)err;
    *out = (int64_t)text.len;
    return ML_OK;
}

static void check_kept(const ml_dataset *ds) {
    for (int64_t i = 0; i < ds->rows.n; i++) {
        ml_prompt p;
        ml_arena a;
        ml_err err;
        ml_arena_init(&a, "fuzz");
        ML_BUG_IF(ml_dataset_prompt(&p, ds, i, &a, &err));
        ML_BUG_IF(ds->opts.apply_chat_template && p.messages);
        ML_BUG_IF(ds->opts.max_prompt_len && !p.messages &&
                  (int64_t)p.text.len > ds->opts.max_prompt_len);
        ml_arena_release(&a);
    }
    for (int64_t i = 1; i < ds->n_bad; i++)
        ML_BUG_IF(ds->bad_line[i] <= ds->bad_line[i - 1]);
}

static void check_rows(const char *path, const ml_dataset *ds) {
    ml_table all;
    ml_err err;

    ML_BUG_IF(ml_table_open(&all, path, &err));
    ML_BUG_IF(all.n != ds->rows.n + ds->n_bad + ds->n_long);
    ml_table_close(&all);
}

static void try_file(const char *path, const ml_dataset_opts *opts) {
    ml_dataset ds;
    ml_err err = { 0 };

    if (ml_dataset_open(&ds, opts, &err)) {
        ML_BUG_IF(!strstr(err.msg, "prompts.jsonl"));
        return;
    }
    ML_BUG_IF(!opts->skip_bad_rows && ds.n_bad);
    check_kept(&ds);
    check_rows(path, &ds);
    ml_dataset_close(&ds);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_dataset_opts opts = { .text = { .render = render, .count = count } };
    char path[160];

    if (!at.dir[0])
        prepare();
    if (size < 1)
        return 0;
    opts.apply_chat_template = data[0] & 1;
    opts.skip_bad_rows = data[0] & 2;
    opts.label_key = data[0] & 4 ? "label" : NULL;
    opts.max_prompt_len = data[0] & 8 ? 20 : 0;
    snprintf(path, sizeof path, data[0] & 16 ? "%s@[%d:%d]" : "%s", at.file, data[0] >> 5,
             -(data[0] >> 6));
    opts.path = path;
    put(data + 1, size - 1);
    try_file(path, &opts);
    return 0;
}
