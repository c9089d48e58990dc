/* The BPE model of tokenizer.json: vocabulary, merges, options. */
#include <string.h>

#include "base/bug.h"
#include "text/tokenizer/tok_load.h"

static ml_status check_vocab(ml_tok_loader *l, const ml_json *vocab, int32_t *n_id,
                             size_t *bytes) {
    if (!vocab || vocab->type != ML_JSON_OBJECT)
        return ml_tok_bad(l, ML_EFORMAT, vocab,
                          "model: \"vocab\" must be an object of tokens and ids");
    for (const ml_json *c = vocab->child; c; c = c->next) {
        int64_t id;
        if (!ml_json_i64(c, &id) || id < 0 || id >= ML_TOK_MAX_ID)
            return ml_tok_bad(
                l, ML_EFORMAT, c, "model: the id of \"%.*s\" must be a number from 0 to %d",
                c->key.len > 100 ? 100 : (int)c->key.len, c->key.ptr, ML_TOK_MAX_ID - 1);
        *n_id = id >= *n_id ? (int32_t)id + 1 : *n_id;
        *bytes += c->key.len;
    }
    return ML_OK;
}

static ml_status read_vocab(ml_tok_loader *l, const ml_json *vocab) {
    ml_tokenizer *t = l->t;
    int32_t n_id = 0;
    size_t bytes = 0;
    char *text;
    ml_status st = check_vocab(l, vocab, &n_id, &bytes);

    if (st != ML_OK)
        return st;
    ml_bpe_init(&t->bpe, &t->arena, vocab->n, n_id);
    text = ML_NEW(&t->arena, char, bytes + 1);
    for (const ml_json *c = vocab->child; c; c = c->next) {
        int64_t id = 0;
        ml_json_i64(c, &id);
        memcpy(text, c->key.ptr, c->key.len);
        if (!ml_bpe_add(&t->bpe, (ml_str){ text, c->key.len }, (int32_t)id))
            return ml_tok_bad(
                l, ML_EFORMAT, c, "model: duplicate token \"%.*s\" or id %lld",
                c->key.len > 100 ? 100 : (int)c->key.len, c->key.ptr, (long long)id);
        text += c->key.len;
    }
    return ML_OK;
}

/* "left right", or ["left", "right"]. */
static bool split_merge(const ml_json *m, ml_str *left, ml_str *right) {
    const char *space, *end;

    if (m->type == ML_JSON_ARRAY && m->n == 2 && m->child->type == ML_JSON_STRING &&
        m->child->next->type == ML_JSON_STRING) {
        *left = m->child->text;
        *right = m->child->next->text;
        return true;
    }
    if (m->type != ML_JSON_STRING)
        return false;
    end = m->text.ptr + m->text.len;
    space = memchr(m->text.ptr, ' ', m->text.len);
    if (!space || memchr(space + 1, ' ', (size_t)(end - space) - 1))
        return false;
    *left = (ml_str){ m->text.ptr, (size_t)(space - m->text.ptr) };
    *right = (ml_str){ space + 1, (size_t)(end - space) - 1 };
    return true;
}

static ml_status read_merge(ml_tok_loader *l, const ml_json *m, int32_t rank,
                            ml_text *joined) {
    ml_bpe *b = &l->t->bpe;
    ml_str left, right;
    int32_t i_left, i_right, id;

    if (!split_merge(m, &left, &right))
        return ml_tok_bad(l, ML_EFORMAT, m,
                          "model: merge %d must be \"left right\" or "
                          "[\"left\", \"right\"]",
                          rank);
    i_left = ml_bpe_find(b, left);
    i_right = ml_bpe_find(b, right);
    joined->len = 0;
    ml_text_add(joined, left.ptr, left.len);
    if (right.len >= b->prefix.len)
        ml_text_add(joined, right.ptr + b->prefix.len, right.len - b->prefix.len);
    id = ml_bpe_find(b, (ml_str){ joined->ptr, joined->len });
    if (i_left < 0 || i_right < 0 || id < 0)
        return ml_tok_bad(l, ML_EFORMAT, m,
                          "model: merge %d joins \"%.*s\" and \"%.*s\"; both and their "
                          "concatenation must be in the vocabulary",
                          rank, (int)(left.len > 100 ? 100 : left.len), left.ptr,
                          (int)(right.len > 100 ? 100 : right.len), right.ptr);
    ml_bpe_add_merge(b, i_left, i_right, rank, id);
    return ML_OK;
}

static ml_status read_merges(ml_tok_loader *l, const ml_json *merges) {
    ml_text joined = { 0 };
    ml_status st = ML_OK;
    int32_t rank = 0;

    ml_bpe_init_merges(&l->t->bpe, &l->t->arena, merges->n);
    for (const ml_json *m = merges->child; m && st == ML_OK; m = m->next)
        st = read_merge(l, m, rank++, &joined);
    ml_text_release(&joined);
    return st;
}

static ml_status read_model_options(ml_tok_loader *l, const ml_json *model) {
    ml_bpe *b = &l->t->bpe;
    const ml_json *dropout = ml_json_get(model, "dropout");
    double rate = 0;
    ml_str unk;
    ml_status st = ml_tok_get_str(l, model, "unk_token", &unk);

    if (!ml_tok_is_null(dropout) && (!ml_json_f64(dropout, &rate) || rate > 0))
        return ml_tok_bad(l, ML_EUNSUP, dropout,
                          "model: dropout is not supported; it must be null");
    if (st == ML_OK)
        st = ml_tok_get_bool(l, model, "fuse_unk", false, &b->fuse_unk);
    if (st == ML_OK)
        st = ml_tok_get_bool(l, model, "byte_fallback", false, &b->byte_fallback);
    if (st == ML_OK)
        st = ml_tok_get_bool(l, model, "ignore_merges", false, &b->ignore_merges);
    if (st == ML_OK)
        st = ml_tok_get_str(l, model, "continuing_subword_prefix", &b->prefix);
    if (st == ML_OK)
        st = ml_tok_get_str(l, model, "end_of_word_suffix", &b->suffix);
    if (st != ML_OK || !unk.ptr)
        return st;
    b->unk = ml_bpe_find(b, unk);
    if (b->unk < 0)
        return ml_tok_bad(l, ML_EFORMAT, model,
                          "model: unk_token \"%.*s\" is not in the vocabulary",
                          (int)unk.len, unk.ptr);
    return ML_OK;
}

ml_status ml_tok_read_model(ml_tok_loader *l, const ml_json *model) {
    const ml_json *type = ml_json_get(model, "type"),
                  *merges = ml_json_get(model, "merges");
    ml_status st;

    if (!model || model->type != ML_JSON_OBJECT)
        return ml_tok_bad(l, ML_EFORMAT, model, "\"model\" must be an object");
    if (type && (type->type != ML_JSON_STRING || !ml_str_is(type->text, "BPE")))
        return ml_tok_bad(l, ML_EUNSUP, type,
                          "model type \"%.*s\" is not supported; supported is BPE",
                          (int)type->text.len, type->text.ptr);
    if (!merges || merges->type != ML_JSON_ARRAY)
        return ml_tok_bad(l, ML_EFORMAT, model, "model: \"merges\" must be a list");
    st = read_vocab(l, ml_json_get(model, "vocab"));
    if (st == ML_OK)
        st = read_model_options(l, model);
    return st == ML_OK ? read_merges(l, merges) : st;
}
