/* miles tokenize: encodes lines of text to lines of ids, or decodes them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "text/tokenizer/tokenizer.h"

#define READ_BYTES ((size_t)1 << 20)

/* Lines are processed as soon as they arrive: all lines of one read are encoded together,
 * so that a file keeps every thread busy and interactive input is not delayed. */
typedef struct tokenize_job {
    const ml_config *config;
    ml_tokenizer *tok;
    ml_pool *pool;
    ml_text in, out;
    int64_t n_line; /* lines read so far */
    ml_str *text;   /* [n_text] of the current lines */
    ml_tokens *tokens;
    int64_t n_text;
} tokenize_job;

/* --- lines ------------------------------------------------------------------ */

static ml_status bad_line(const tokenize_job *j, const char *what, ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "standard input, line %lld: %s", (long long)j->n_line,
                   what);
}

static ml_status parse_line(const tokenize_job *j, ml_str line, ml_arena *a,
                            const ml_json **out, ml_err *err) {
    char name[64];

    snprintf(name, sizeof name, "standard input, line %lld", (long long)j->n_line);
    return ml_json_parse(out, a, line, name, err);
}

static ml_status take_text(tokenize_job *j, ml_str line, ml_arena *a, ml_err *err) {
    const ml_json *v;
    ml_status st = parse_line(j, line, a, &v, err);

    if (st != ML_OK)
        return st;
    v = ml_json_get(v, "text");
    if (!v || v->type != ML_JSON_STRING)
        return bad_line(j, "expected {\"text\": \"...\"}; use --decode for ids", err);
    j->text[j->n_text++] = v->text;
    return ML_OK;
}

static ml_status decode_line(tokenize_job *j, ml_str line, ml_arena *a, ml_err *err) {
    const ml_json *v;
    int32_t *id;
    int64_t n = 0;
    ml_text text = { 0 };
    ml_status st = parse_line(j, line, a, &v, err);

    if (st != ML_OK)
        return st;
    v = ml_json_get(v, "ids");
    if (!v || v->type != ML_JSON_ARRAY)
        return bad_line(j, "expected {\"ids\": [...]}; remove --decode for text", err);
    id = ML_NEW(a, int32_t, v->n + 1);
    for (const ml_json *c = v->child; c; c = c->next) {
        int64_t x;
        if (!ml_json_i64(c, &x) || x < 0 || x > INT32_MAX)
            return bad_line(j, "an id must be a whole number >= 0", err);
        id[n++] = (int32_t)x;
    }
    ml_decode(j->tok, &text, id, n, j->config->text.skip_special);
    ml_text_printf(&j->out, "{\"text\": ");
    ml_json_quote(&j->out, (ml_str){ text.ptr ? text.ptr : "", text.len });
    ml_text_printf(&j->out, "}\n");
    ml_text_release(&text);
    return ML_OK;
}

static void print_ids(tokenize_job *j, const ml_tokens *t) {
    char digits[16];

    ml_text_printf(&j->out, "{\"ids\": [");
    for (int64_t i = 0; i < t->n; i++) {
        int n = snprintf(digits, sizeof digits, i ? ", %d" : "%d", t->id[i]);
        ml_text_add(&j->out, digits, (size_t)n);
    }
    ml_text_printf(&j->out, "]}\n");
}

static ml_status encode_texts(tokenize_job *j, ml_err *err) {
    ml_encode_opts opts = { .add_special = j->config->text.add_special };
    ml_status st = ml_encode_all(j->tok, j->pool, j->tokens, j->text, j->n_text, opts, err);

    for (int64_t i = 0; i < j->n_text; i++) {
        if (st == ML_OK)
            print_ids(j, &j->tokens[i]);
        ml_tokens_release(&j->tokens[i]);
    }
    if (st != ML_OK)
        ml_err_prefix(err, "standard input, in the texts before line %lld",
                      (long long)j->n_line + 1);
    j->n_text = 0;
    return st;
}

/* --- the stream ------------------------------------------------------------- */

static bool is_blank(ml_str line) {
    for (size_t i = 0; i < line.len; i++)
        if (!strchr(" \t\r", line.ptr[i]))
            return false;
    return true;
}

static ml_status flush_out(tokenize_job *j, ml_err *err) {
    bool ok = j->out.len == 0 || (fwrite(j->out.ptr, 1, j->out.len, stdout) == j->out.len &&
                                  fflush(stdout) == 0);

    j->out.len = 0;
    return ok ? ML_OK
              : ml_fail(err, ML_EIO, "cannot write standard output: %s", strerror(errno));
}

/* Processes the lines in bytes [0, n) of the input.  The output of lines before an
 * invalid one is still written. */
static ml_status answer(tokenize_job *j, size_t n, ml_err *err) {
    const char *p = j->in.ptr, *end = p + n;
    ml_arena a;
    ml_status st = ML_OK, other = ML_OK;
    ml_err later;
    int64_t n_line = 1;

    ml_arena_init(&a, "tokenize");
    for (size_t i = 0; i < n; i++)
        n_line += p[i] == '\n';
    j->text = ML_NEW(&a, ml_str, n_line);
    j->tokens = ML_NEW(&a, ml_tokens, n_line);
    while (p < end && st == ML_OK) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        ml_str line = { p, (size_t)((stop ? stop : end) - p) };
        j->n_line++;
        p = stop ? stop + 1 : end;
        if (is_blank(line))
            continue;
        st = j->config->text.decode ? decode_line(j, line, &a, err)
                                    : take_text(j, line, &a, err);
    }
    if (j->n_text)
        other = encode_texts(j, &later);
    if (other == ML_OK)
        other = flush_out(j, &later);
    if (st == ML_OK && other != ML_OK) {
        st = other;
        *err = later;
    }
    ml_arena_release(&a);
    return st;
}

/* The number of bytes up to and including the last line break. */
static size_t whole_lines(const ml_text *t) {
    const char *last = t->len ? memrchr(t->ptr, '\n', t->len) : NULL;
    return last ? (size_t)(last - t->ptr) + 1 : 0;
}

static ml_status run_job(tokenize_job *j, ml_err *err) {
    static char chunk[READ_BYTES];
    ml_status st = ML_OK;

    while (st == ML_OK) {
        ssize_t got = read(STDIN_FILENO, chunk, sizeof chunk);
        size_t n;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ml_fail(err, ML_EIO, "cannot read standard input: %s", strerror(errno));
        if (got == 0)
            return j->in.len ? answer(j, j->in.len, err) : ML_OK;
        ml_text_add(&j->in, chunk, (size_t)got);
        n = whole_lines(&j->in);
        if (!n)
            continue;
        st = answer(j, n, err);
        memmove(j->in.ptr, j->in.ptr + n, j->in.len - n);
        j->in.len -= n;
    }
    return st;
}

ml_status ml_cmd_tokenize(const ml_config *c, ml_err *err) {
    tokenize_job j = { .config = c };
    ml_status st = ml_tokenizer_open(&j.tok, c->hf_checkpoint, err);

    if (st == ML_OK)
        st = ml_pool_new(&j.pool, (int)c->run.n_thread, err);
    if (st == ML_OK)
        st = run_job(&j, err);
    if (j.pool)
        ml_pool_free(j.pool);
    ml_tokenizer_close(j.tok);
    ml_text_release(&j.in);
    ml_text_release(&j.out);
    return st;
}
