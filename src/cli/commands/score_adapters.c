#include "cli/commands/score_adapters.h"

#include <stdio.h>
#include <string.h>

/* The directories, and with --lora-paths the names, of the adapters. */
static ml_status list_adapters(ml_score_adapters *x, ml_arena *a, const ml_config *c,
                               const char **dir, ml_err *err) {
    for (int i = 0; i < c->score.lora_paths.n; i++) {
        const char *word = c->score.lora_paths.word[i], *sep = strchr(word, '=');
        if (!sep || sep == word || !sep[1])
            return ml_fail(err, ML_EUSAGE, "--lora-paths: \"%s\" must be NAME=DIR", word);
        x->name[i] = ml_arena_str(a, word, (size_t)(sep - word));
        dir[i] = sep + 1;
        for (int k = 0; k < i; k++)
            if (strcmp(x->name[k], x->name[i]) == 0)
                return ml_fail(err, ML_EUSAGE, "--lora-paths: two adapters are called %s",
                               x->name[i]);
    }
    if (c->score.lora_adapter_path)
        dir[0] = c->score.lora_adapter_path;
    return ML_OK;
}

static ml_status load_all(ml_score_adapters *x, ml_arena *a, const char *const *dir,
                          const ml_spec *s, ml_backend *be, ml_err *err) {
    const ml_lora_site **site = ML_NEW(a, const ml_lora_site *, x->n);
    ml_status st = ML_OK;

    for (int32_t i = 0; i < x->n && st == ML_OK; i++) {
        st = ml_lora_load(&x->lora[i], s, dir[i], be, err);
        site[i] = x->lora[i].site;
    }
    x->table = (ml_lora_table){ .adapter = site, .n_adapter = x->n };
    return st;
}

static void insert_ops(const ml_score_adapters *x, ml_arena *a, ml_spec *s) {
    bool *wanted = ML_NEW(a, bool, x->lora[0].n_site);
    int32_t rank = 0;

    for (int32_t i = 0; i < x->n; i++) {
        ml_lora_mark(&x->lora[i], wanted);
        rank = x->lora[i].max_rank > rank ? x->lora[i].max_rank : rank;
    }
    ml_spec_lora_insert(s, wanted, rank);
}

static ml_status read_adapter(ml_score_adapters *x, const ml_st_file *f, int32_t i,
                              ml_err *err) {
    char name[32];
    const ml_st_tensor *t;

    snprintf(name, sizeof name, "adapter.%d", i);
    t = ml_st_find(f, ml_str_of(name));
    if (!t || t->dtype != ML_ST_I32 || t->bytes != sizeof *x->of)
        return ml_fail(err, ML_EFORMAT,
                       "%s: --lora-paths needs the I32 scalar %s: the index of an adapter, "
                       "or -1",
                       f->path, name);
    memcpy(&x->of[i], t->data, sizeof *x->of);
    if (x->of[i] < -1 || x->of[i] >= x->n)
        return ml_fail(err, ML_EFORMAT,
                       "%s: %s is %d; --lora-paths has %d adapters, from 0 on; -1 is the "
                       "base model",
                       f->path, name, x->of[i], x->n);
    return ML_OK;
}

static ml_status read_sequences(ml_score_adapters *x, const ml_config *c,
                                const ml_sequences *seq, ml_err *err) {
    ml_st_file *f = NULL;
    ml_status st = c->score.lora_paths.n ? ml_st_open(&f, c->score.input, err) : ML_OK;

    for (int32_t i = 0; i < seq->n && st == ML_OK; i++) {
        if (f)
            st = read_adapter(x, f, i, err);
        if (st == ML_OK && x->of[i] >= 0)
            x->n_next[x->of[i]] += seq->len[i] - 1;
    }
    ml_st_close(f);
    return st;
}

ml_status ml_score_adapters_open(ml_score_adapters *out, ml_arena *a, const ml_config *c,
                                 ml_spec *s, const ml_sequences *seq, ml_backend *be,
                                 ml_err *err) {
    int32_t n = c->score.lora_adapter_path ? 1 : c->score.lora_paths.n;
    const char **dir = ML_NEW(a, const char *, n + 1);
    ml_status st;

    *out = (ml_score_adapters){ 0 };
    if (n == 0)
        return ML_OK;
    if (!be->ops->forward[ML_OP_LORA])
        return ml_fail(
            err, ML_EUNSUP,
            "adapters: the backend %s does not compute them yet; use --device cpu",
            be->name);
    *out = (ml_score_adapters){ .n = n,
                                .lora = ML_NEW(a, ml_lora, n),
                                .name = ML_NEW(a, const char *, n),
                                .of = ML_NEW(a, int32_t, seq->n),
                                .n_next = ML_NEW(a, int64_t, n),
                                .named = ML_NEW(a, const ml_named *, n),
                                .n_named = ML_NEW(a, int32_t, n) };
    st = list_adapters(out, a, c, dir, err);
    if (st == ML_OK)
        st = load_all(out, a, dir, s, be, err);
    if (st == ML_OK)
        st = read_sequences(out, c, seq, err);
    if (st == ML_OK)
        insert_ops(out, a, s);
    return st;
}

void ml_score_adapters_close(ml_score_adapters *x) {
    for (int32_t i = 0; i < x->n; i++)
        ml_lora_close(&x->lora[i]);
}

ml_status ml_score_adapters_take(ml_score_adapters *x, bool memory, ml_arena *a,
                                 ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < x->n && st == ML_OK; i++) {
        if (memory)
            st = ml_lora_take_grads(&x->lora[i], err);
        x->named[i] = ml_lora_named(&x->lora[i], a, &x->n_named[i]);
    }
    return st;
}

size_t ml_score_adapters_bytes(const ml_score_adapters *x, bool grads) {
    size_t bytes = 0;
    for (int32_t i = 0; i < x->n; i++)
        bytes += grads ? ml_lora_grad_bytes(&x->lora[i]) : x->lora[i].weights.buf.bytes;
    return bytes;
}

const char *ml_score_adapters_grad(const ml_score_adapters *x, ml_arena *a, int32_t i,
                                   int32_t k) {
    return ml_arena_printf(a, "grad.%s%s%s", x->name[i] ? x->name[i] : "",
                           x->name[i] ? "." : "", x->named[i][k].name);
}
