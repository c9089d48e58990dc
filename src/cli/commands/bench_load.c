#include "cli/commands/bench_load.h"

#include <stdio.h>
#include <string.h>

#include "base/philox.h"
#include "io/table.h"

/* The use of a random number: the sample part of its Philox counter. */
enum { FOR_INPUT_LEN, FOR_OUTPUT_LEN, FOR_PROMPT /* and so on, one per prompt */ };

static int64_t draw(const ml_config *c, uint64_t what, uint64_t i, int64_t lo, int64_t hi) {
    double u = ml_philox_uniform((uint64_t)c->bench.seed, what, i);
    return lo + (int64_t)(u * (double)(hi - lo + 1));
}

static int32_t draw_len(const ml_config *c, uint64_t what, uint64_t i, int64_t len) {
    int64_t least = (int64_t)((double)len * c->bench.range_ratio);
    return (int32_t)draw(c, what, i, least < 1 ? 1 : least, len);
}

static const int32_t *draw_ids(ml_arena *a, const ml_config *c, uint64_t what, int32_t n,
                               int64_t n_vocab) {
    int32_t *id = ML_NEW(a, int32_t, n);
    for (int32_t i = 0; i < n; i++)
        id[i] = (int32_t)draw(c, what, (uint64_t)i, 0, n_vocab - 1);
    return id;
}

const int32_t *ml_bench_warmup(ml_arena *a, const ml_config *c, int64_t n_vocab, int32_t n,
                               int64_t i) {
    /* Counts down from the maximum, because prompts count up from FOR_PROMPT. */
    return draw_ids(a, c, UINT64_MAX - (uint64_t)i, n, n_vocab);
}

static ml_status make_up(ml_bench_load *out, ml_arena *a, const ml_config *c,
                         int64_t n_vocab) {
    for (int32_t i = 0; i < out->n; i++) {
        uint64_t k = (uint64_t)i;
        ml_bench_item *it = &out->item[i];
        it->n = draw_len(c, FOR_INPUT_LEN, k, c->bench.input_len);
        it->n_out = draw_len(c, FOR_OUTPUT_LEN, k, c->bench.output_len);
        it->id = draw_ids(a, c, FOR_PROMPT + k, it->n, n_vocab);
    }
    return ML_OK;
}

/* --- from a file ------------------------------------------------------------ */

static ml_status read_ids(ml_bench_item *it, ml_arena *a, const ml_json *ids,
                          int64_t n_vocab, const char *where, ml_err *err) {
    int32_t *id = ML_NEW(a, int32_t, ids->n + 1);

    it->id = id;
    it->n = ids->n;
    for (const ml_json *v = ids->child; v; v = v->next, id++) {
        int64_t value;
        if (!ml_json_i64(v, &value) || value < 0 || value >= n_vocab)
            return ml_fail(err, ML_EFORMAT,
                           "%s: \"input_ids\" must be whole numbers from 0 to %lld", where,
                           (long long)n_vocab - 1);
        *id = (int32_t)value;
    }
    return ML_OK;
}

static ml_status encode(ml_bench_item *it, ml_arena *a, ml_encoder *e, ml_err *err) {
    ml_tokens tokens = { 0 };
    ml_status st =
        ml_encode(e, &tokens, it->text, (ml_encode_opts){ .add_special = true }, err);

    if (st == ML_OK) {
        it->n = (int32_t)tokens.n;
        it->id = memcpy(ML_NEW(a, int32_t, tokens.n + 1), tokens.id,
                        (size_t)tokens.n * sizeof *tokens.id);
    }
    ml_tokens_release(&tokens);
    return st;
}

static ml_status read_row(ml_bench_item *it, ml_arena *a, const ml_table *f, int64_t row,
                          const ml_config *c, int64_t n_vocab, ml_encoder *e, ml_err *err) {
    const ml_json *root, *ids, *text, *out_len;
    char where[400];
    ml_str json;
    int64_t n_out = c->bench.output_len;
    ml_status st = ml_table_parse(&root, &json, f, row, a, err);

    if (st != ML_OK)
        return st;
    snprintf(where, sizeof where, "%s:%lld", ml_table_path(f, row),
             (long long)ml_table_line(f, row));
    ids = ml_json_get(root, "input_ids");
    text = ml_json_get(root, "prompt");
    out_len = ml_json_get(root, "output_len");
    if (out_len && (!ml_json_i64(out_len, &n_out) || n_out < 1 || n_out > 1 << 24))
        return ml_fail(err, ML_EFORMAT, "%s: \"output_len\" must be a whole number above 0",
                       where);
    it->n_out = (int32_t)n_out;
    if (ids && ids->type == ML_JSON_ARRAY && ids->n > 0)
        return read_ids(it, a, ids, n_vocab, where, err);
    if (!text || text->type != ML_JSON_STRING || text->text.len == 0)
        return ml_fail(err, ML_EFORMAT,
                       "%s: expected \"input_ids\", a list of ids, or \"prompt\", a string",
                       where);
    it->text = (ml_str){ ml_arena_str(a, text->text.ptr, text->text.len), text->text.len };
    return e ? encode(it, a, e, err) : ML_OK;
}

static ml_status read_file(ml_bench_load *out, ml_arena *a, const ml_config *c,
                           int64_t n_vocab, const ml_tokenizer *t, ml_err *err) {
    ml_encoder *e = NULL;
    ml_table f = { 0 };
    ml_status st = ml_table_open(&f, c->bench.dataset, err);

    if (st == ML_OK && f.n == 0)
        st = ml_fail(err, ML_EFORMAT, "%s has no rows", c->bench.dataset);
    if (t)
        e = ml_encoder_new(t);
    for (int32_t i = 0; i < out->n && st == ML_OK; i++)
        st = i < f.n ? read_row(&out->item[i], a, &f, i, c, n_vocab, e, err) : ML_OK;
    for (int64_t i = f.n; i < out->n && st == ML_OK; i++)
        out->item[i] = out->item[i % f.n];
    ml_encoder_free(e);
    ml_table_close(&f);
    return st;
}

ml_status ml_bench_load_make(ml_bench_load *out, ml_arena *a, const ml_config *c,
                             int64_t n_vocab, const ml_tokenizer *t, ml_err *err) {
    ml_status st;

    *out = (ml_bench_load){ .n = (int32_t)c->bench.n_prompt };
    out->item = ML_NEW(a, ml_bench_item, out->n);
    st = c->bench.dataset ? read_file(out, a, c, n_vocab, t, err)
                          : make_up(out, a, c, n_vocab);
    for (int32_t i = 0; i < out->n && st == ML_OK; i++) {
        int32_t len = out->item[i].n + out->item[i].n_out;
        out->longest = len > out->longest ? len : out->longest;
        out->n_out += out->item[i].n_out;
    }
    return st;
}
