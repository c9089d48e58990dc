#include "model/eagle3.h"

#include "model/source.h"

static ml_status has_embedding(bool *out, const char *dir, ml_err *err) {
    ml_checkpoint *c;
    ml_status st = ml_checkpoint_open(&c, dir, err);

    if (st != ML_OK)
        return st;
    *out = ml_checkpoint_find(c, ml_str_of("embed_tokens.weight"), NULL);
    ml_checkpoint_close(c);
    return ML_OK;
}

/* --- the trunk --------------------------------------------------------------------- */

/* The layers whose inputs the head reads: low, middle, high, as in SGLang. */
static void set_default_layers(ml_module_io *m, int32_t n_layer) {
    const int32_t usual[ML_MODULE_LAYERS] = { 2, n_layer / 2, n_layer - 3 };

    for (int32_t i = 0; i < ML_MODULE_LAYERS; i++)
        if (m->layer[i] == ML_NONE)
            m->layer[i] = usual[i];
}

static ml_status check_trunk(const ml_module_io *m, const char *dir, const ml_spec *trunk,
                             ml_err *err) {
    if (m->n_vocab != trunk->n_vocab || m->n_hidden != trunk->n_hidden)
        return ml_fail(
            err, ML_EUNSUP,
            "--speculative-draft-model-path %s: the head is for a model with %lld "
            "tokens and %lld hidden elements, this one has %lld and %lld; use a "
            "head that was trained for the model",
            dir, (long long)m->n_vocab, (long long)m->n_hidden, (long long)trunk->n_vocab,
            (long long)trunk->n_hidden);
    for (int32_t i = 0; i < m->n_layer; i++)
        if (ml_spec_layer_input(trunk, m->layer[i]) == ML_NONE)
            return ml_fail(
                err, ML_EUNSUP,
                "--speculative-draft-model-path %s: the head reads the input of "
                "layer %d, which a %s model of %d layers does not have as one "
                "stream; set eagle_config.eagle_aux_hidden_state_layer_ids in its "
                "config.json, or use another algorithm",
                dir, m->layer[i], trunk->family, trunk->n_layer);
    return ML_OK;
}

ml_status ml_eagle3_open(ml_spec *out, const char *dir, const ml_spec *trunk, ml_err *err) {
    ml_spec_opts o = { .eagle3 = true };
    ml_status st = has_embedding(&o.own_embedding, dir, err);

    *out = (ml_spec){ 0 };
    if (st == ML_OK)
        st = ml_spec_open_with(out, dir, &o, err);
    if (st != ML_OK)
        return st;
    set_default_layers(&out->module, trunk->n_layer);
    st = check_trunk(&out->module, dir, trunk, err);
    if (st != ML_OK)
        ml_spec_close(out);
    return st;
}

/* --- the draft vocabulary ---------------------------------------------------------- */

static ml_status check_offsets(const ml_st_tensor *t, const ml_spec *head,
                               const ml_checkpoint *c, ml_err *err) {
    if (!t && head->n_vocab != head->module.n_vocab)
        return ml_fail(
            err, ML_EFORMAT,
            "%s: the tensor d2t is missing; a head with %lld of %lld tokens needs "
            "it",
            c->dir, (long long)head->n_vocab, (long long)head->module.n_vocab);
    if (t && ((t->dtype != ML_ST_I64 && t->dtype != ML_ST_I32) || t->n_dim != 1 ||
              t->shape[0] != head->n_vocab))
        return ml_fail(err, ML_EFORMAT,
                       "%s: d2t must be a vector of %lld whole numbers, the "
                       "\"draft_vocab_size\" of config.json",
                       c->dir, (long long)head->n_vocab);
    return ML_OK;
}

ml_status ml_eagle3_vocab(ml_draft_vocab *out, const ml_spec *head, const ml_checkpoint *c,
                          ml_arena *a, ml_err *err) {
    const ml_st_tensor *t = ml_checkpoint_find(c, ml_str_of("d2t"), NULL);
    int64_t n_vocab = head->module.n_vocab;
    ml_status st = check_offsets(t, head, c, err);

    if (st != ML_OK)
        return st;
    *out = (ml_draft_vocab){ .target = ML_NEW(a, int32_t, head->n_vocab),
                             .draft = ML_NEW(a, int32_t, n_vocab),
                             .n = head->n_vocab };
    for (int64_t i = 0; i < n_vocab; i++)
        out->draft[i] = ML_NONE;
    for (int64_t i = 0; i < out->n; i++) {
        int64_t id = i + (t ? ml_source_integer(t, i) : 0);
        if (id < 0 || id >= n_vocab || out->draft[id] != ML_NONE)
            return ml_fail(err, ML_EFORMAT,
                           "%s: d2t maps draft token %lld to token %lld, which another one "
                           "has or the model lacks; the head does not fit its config.json",
                           c->dir, (long long)i, (long long)id);
        out->target[i] = (int32_t)id;
        out->draft[id] = (int32_t)i;
    }
    return ML_OK;
}
