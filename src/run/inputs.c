#include "run/inputs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/dir.h"
#include "base/file.h"
#include "base/log.h"
#include "io/table.h"

/* --- a directory for runs without --save ------------------------------------ */

/* Debugging runs do not need the weights. */
static bool is_for_looking(const ml_run_opts *c) {
    return c->rollout.load_debug || c->rollout.rollout_only || c->debug.exit_after ||
           c->debug.no_update || c->debug.skip_sync;
}

static bool is_plain(char x) {
    return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') ||
           (x && strchr("._-", x));
}

/* The last component of a path, with plain characters only, as a directory name. */
static const char *name_of(ml_arena *a, const char *path) {
    char *whole = realpath(path, NULL);
    const char *slash = strrchr(whole ? whole : path, '/');
    const char *last = slash ? slash + 1 : whole ? whole : path;
    char *name = ml_arena_str(a, last, strlen(last));

    free(whole);
    for (char *x = name; *x; x++)
        if (!is_plain(*x))
            *x = '-';
    return *name ? name : "run";
}

enum { N_NAME = 1000 }; /* tried before giving up */

ml_status ml_save_dir_choose(ml_train_run *r, const ml_run_opts *c,
                             void (*say)(const char *), ml_err *err) {
    const char *name = name_of(&r->arena, c->hf_checkpoint);
    time_t now = time(NULL);
    char date[40] = "";
    struct tm tm;
    ml_status st;

    if (c->save || is_for_looking(c))
        return ML_OK;
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    st = ml_dir_make("runs", err);
    for (int i = 1; i <= N_NAME && st == ML_OK; i++) {
        const char *path = i == 1
                               ? ml_arena_printf(&r->arena, "runs/%s-%s", name, date)
                               : ml_arena_printf(&r->arena, "runs/%s-%s-%d", name, date, i);
        if (mkdir(path, 0777) == 0) {
            r->opts.save = path;
            say(ml_arena_printf(&r->arena,
                                "Saving to %s: name another directory with --save", path));
            return ML_OK;
        }
        if (errno != EEXIST || i == N_NAME)
            st = ml_fail(err, ML_EIO,
                         "%s: cannot create the directory of the run: %s; choose another "
                         "one with --save",
                         path, strerror(errno));
    }
    return st;
}

void ml_save_dir_drop(const ml_train_run *r, const ml_run_opts *c) {
    ml_text lock = { 0 };

    if (c->save || !r->opts.save)
        return;
    ml_text_printf(&lock, "%s/run.lock", r->opts.save);
    unlink(lock.ptr);
    rmdir(r->opts.save); /* fails if the directory is not empty */
    ml_text_release(&lock);
}

/* --- model and prompts -------------------------------------------------------- */

enum { BLOCKS = 256, BLOCK_BYTES = 4096 };

/* Of large files, hashes blocks spread over the file: training changes every tensor. */
static uint64_t hash_of(uint64_t seed, ml_str bytes, bool all) {
    size_t step = bytes.len / BLOCKS;

    if (all || bytes.len <= (size_t)BLOCKS * BLOCK_BYTES)
        return seed * 31 + XXH3_128bits(bytes.ptr, bytes.len).low64;
    for (size_t i = 0; i < BLOCKS; i++)
        seed = seed * 31 + XXH3_128bits(bytes.ptr + i * step, BLOCK_BYTES).low64;
    return seed;
}

typedef struct input {
    const char *flag, *path;
    size_t bytes;
    int64_t rows; /* -1: it has none */
    uint64_t hash;
} input;

/* A missing file adds nothing. */
static void add_file(input *in, const char *path, bool all) {
    ml_file f = { 0 };

    if (ml_file_map(&f, path, NULL) == ML_OK) {
        in->bytes += f.bytes.len;
        in->hash = hash_of(in->hash, f.bytes, all);
    }
    ml_file_unmap(&f);
}

static input model_input(ml_train_run *r) {
    input in = { .flag = "--hf-checkpoint", .path = r->opts.hf_checkpoint, .rows = -1 };
    static const char *const small[] = { "config.json", "tokenizer.json" };

    for (int i = 0; i < 2; i++)
        add_file(&in, ml_arena_printf(&r->arena, "%s/%s", in.path, small[i]), true);
    for (int32_t i = 0; i < r->from->n_file; i++)
        add_file(&in, r->from->file[i]->path, false);
    return in;
}

/* Another model: all files of its directory. */
static input dir_input(ml_train_run *r, const char *flag, const char *dir) {
    input in = { .flag = flag, .path = dir, .rows = -1 };
    ml_names names = { 0 };

    if (ml_dir_list(&names, dir, &r->arena, NULL) != ML_OK)
        return in;
    for (int32_t i = 0; i < names.n; i++)
        add_file(&in, ml_arena_printf(&r->arena, "%s/%s", dir, names.name[i]), false);
    return in;
}

static input data_input(const char *flag, const char *path, const ml_table *t) {
    input in = { .flag = flag, .path = path, .rows = t->n };

    for (int32_t i = 0; i < t->n_file; i++)
        add_file(&in, ml_table_file_path(&t->file[i]), true);
    return in;
}

/* A data set of an evaluation. */
static input eval_input(ml_train_run *r, const char *name, const char *path) {
    const char *flag = ml_arena_printf(&r->arena, "--eval-prompt-data %s", name);
    ml_table rows = { 0 };
    input in = { .flag = flag, .path = path, .rows = 0 };

    if (ml_table_open(&rows, path, NULL) == ML_OK)
        in = data_input(flag, path, &rows);
    ml_table_close(&rows);
    return in;
}

/* All inputs of the run, in the arena. */
typedef struct inputs {
    input *in;
    int n;
} inputs;

static inputs inputs_of(ml_train_run *r, const ml_run_opts *c) {
    const ml_string_list *evals = &c->rollout.eval_data;
    inputs all = { ML_NEW(&r->arena, input, 4 + evals->n), 0 };

    all.in[all.n++] = model_input(r);
    if (r->opts.ref_load)
        all.in[all.n++] = dir_input(r, "--ref-load", r->opts.ref_load);
    if (r->opts.teacher_load)
        all.in[all.n++] = dir_input(r, "--opd-teacher-load", r->opts.teacher_load);
    if (r->opts.data.path)
        all.in[all.n++] = data_input("--prompt-data", r->opts.data.path,
                                     r->rows.opts.path ? &r->rows.rows : &r->dataset.rows);
    for (int i = 0; i + 1 < evals->n; i += 2)
        all.in[all.n++] = eval_input(r, evals->word[i], evals->word[i + 1]);
    return all;
}

static void write_input(ml_text *out, const input *in, const char *end) {
    ml_text_printf(out, " ");
    ml_json_quote(out, ml_str_of(in->flag + 2));
    ml_text_printf(out, ": {\"path\": ");
    ml_json_quote(out, ml_str_of(in->path ? in->path : ""));
    ml_text_printf(out, ", \"bytes\": %zu, \"rows\": %lld, \"hash\": \"%016llx\"}%s\n",
                   in->bytes, (long long)in->rows, (unsigned long long)in->hash, end);
}

static void compare_input(const ml_json *old, const input *in) {
    const ml_json *was = ml_json_get(old, in->flag + 2), *hash;
    int64_t bytes = 0, rows = 0;
    char now[20];

    snprintf(now, sizeof now, "%016llx", (unsigned long long)in->hash);
    hash = was && was->type == ML_JSON_OBJECT ? ml_json_get(was, "hash") : NULL;
    if (!hash || hash->type != ML_JSON_STRING || ml_str_is(hash->text, now) ||
        !ml_json_i64(ml_json_get(was, "bytes"), &bytes) ||
        !ml_json_i64(ml_json_get(was, "rows"), &rows))
        return;
    if (in->rows < 0)
        ml_log(ML_LOG_WARN,
               "%s %s: its configuration, tokenizer or weights differ from those that the "
               "run was started with",
               in->flag, in->path);
    else
        ml_log(ML_LOG_WARN,
               "%s %s differs from the data that the run was started with: it had %lld "
               "rows in %lld bytes and has %lld in %zu",
               in->flag, in->path ? in->path : "", (long long)rows, (long long)bytes,
               (long long)in->rows, in->bytes);
}

/* --- the file ------------------------------------------------------------------ */

const ml_json *ml_run_previous(ml_arena *a, const char *dir, const char *name,
                               ml_str *text) {
    const char *path = ml_arena_printf(a, "%s/%s", dir, name);
    const ml_json *v = NULL;
    ml_file f = { 0 };

    if (ml_file_map(&f, path, NULL) == ML_OK) {
        *text = (ml_str){ ml_arena_str(a, f.bytes.ptr, f.bytes.len), f.bytes.len };
        if (ml_json_parse(&v, a, *text, path, NULL) != ML_OK || v->type != ML_JSON_OBJECT)
            v = NULL;
    }
    ml_file_unmap(&f);
    if (!v)
        ml_log(ML_LOG_WARN, "cannot read %s: changes since the last start are not known",
               path);
    return v;
}

ml_status ml_run_inputs_record(ml_train_run *r, const ml_run_opts *c, ml_err *err) {
    const ml_json *old = NULL;
    ml_text read = { 0 };
    ml_status st = ML_OK;
    ml_str text;
    inputs all;

    if (!r->saver && !r->snapshot)
        return ML_OK;
    all = inputs_of(r, c);
    if (r->snapshot)
        old = ml_run_previous(&r->arena, r->opts.load, "inputs.json", &text);
    ml_text_printf(&read, "{\n");
    for (int i = 0; i < all.n; i++) {
        if (old)
            compare_input(old, &all.in[i]);
        write_input(&read, &all.in[i], i + 1 < all.n ? "," : "");
    }
    ml_text_printf(&read, "}\n");
    if (r->saver)
        st = ml_file_replace(ml_arena_printf(&r->arena, "%s/inputs.json", r->opts.save),
                             (ml_str){ read.ptr, read.len }, err);
    ml_text_release(&read);
    return st;
}
