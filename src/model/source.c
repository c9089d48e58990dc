#include "model/source.h"

#include <stdio.h>
#include <string.h>

#include "io/quant.h"

#define NAME_CAP 512

ml_source ml_source_in(const ml_st_tensor *t, bool part, const ml_param *p, int32_t e) {
    ml_source s = { .t = t, .row = p->n_dim == 2 ? p->shape[1] : 0, .col = 1 };

    if (!part)
        return s;
    s.at = p->part->at + (e + (p->cut ? p->cut->first : 0)) * p->part->member;
    s.row = p->part->row;
    s.col = p->part->col;
    return s;
}

void ml_source_f32(const ml_st_tensor *t, int64_t at, int64_t step, int64_t n, float *out) {
    const unsigned char *p = (const unsigned char *)t->data;

    if (t->quant) {
        ml_quant_read(t->quant, at, step, n, out);
    } else if (t->dtype == ML_ST_I64 || t->dtype == ML_ST_I32) {
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)ml_source_integer(t, at + i * step);
    } else if (t->dtype == ML_ST_F32) {
        for (int64_t i = 0; i < n; i++)
            memcpy(&out[i], p + (at + i * step) * 4, sizeof *out);
    } else {
        for (int64_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + (at + i * step) * 2, sizeof h);
            out[i] = t->dtype == ML_ST_BF16 ? ml_bf16_to_f32(h) : ml_f16_to_f32(h);
        }
    }
}

/* Its own tensor, or else its place in the larger tensor. */
ml_source ml_source_of(const ml_checkpoint *c, const ml_param *p, int32_t e) {
    char buf[NAME_CAP];
    const ml_st_file *file = NULL;
    const ml_st_tensor *own =
        ml_checkpoint_find(c, ml_str_of(ml_param_name(p, e, buf, sizeof buf)), &file);
    bool part = !own && p->part;
    ml_source s = ml_source_in(
        part ? ml_checkpoint_find(c, ml_str_of(p->part->name), &file) : own, part, p, e);

    s.file = file;
    return s;
}

bool ml_param_in_part(const ml_param *p, const ml_checkpoint *c) {
    char buf[NAME_CAP];
    return p->part &&
           !ml_checkpoint_find(c, ml_str_of(ml_param_name(p, 0, buf, sizeof buf)), NULL);
}

bool ml_is_lm_head(ml_str name) {
    return ml_str_is(name, "lm_head.weight") || ml_str_is(name, "head.weight");
}

/* A critic's head is not in the checkpoint it starts from. */
bool ml_param_is_value_head(const ml_param *p) {
    return strncmp(p->name, ML_VALUE_HEAD ".", strlen(ML_VALUE_HEAD ".")) == 0 ||
           strcmp(p->name, ML_REWARD_HEAD ".weight") == 0;
}

static const char *shape_text(const int64_t *shape, int32_t n_dim, char *buf, size_t cap) {
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (int32_t i = 0; i < n_dim && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? ", " : "",
                              (long long)shape[i]);
    if (n < cap)
        snprintf(buf + n, cap - n, "]");
    return buf;
}

/* Multi-token prediction layers are numbered after the last decoder layer. */
static bool is_nextn(const ml_spec *s, ml_str name) {
    static const char layers[] = "model.layers.";
    size_t n = sizeof layers - 1;
    int64_t layer = 0;

    if (!s->n_nextn || name.len <= n || memcmp(name.ptr, layers, n) != 0)
        return false;
    for (; n < name.len && name.ptr[n] >= '0' && name.ptr[n] <= '9' && layer < INT32_MAX;
         n++)
        layer = 10 * layer + (name.ptr[n] - '0');
    return layer >= s->n_layer && layer < s->n_layer + s->n_nextn;
}

/* Vision and audio towers of multimodal models, and what connects them. */
static const char *const towers[] = {
    "visual.",
    "vision_tower.",
    "audio_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "mm_projector.",
    "embed_vision.",
    "embed_audio.",
    "model.visual.",
    "model.vision_tower.",
    "model.audio_tower.",
    "model.vision_model.",
    "model.multi_modal_projector.",
    "model.embed_vision.",
    "model.embed_audio.",
    "mtp.",
    NULL,
};

static bool has_prefix(ml_str name, const char *const *list) {
    for (; list && *list; list++) {
        size_t n = strlen(*list);
        if (name.len > n && memcmp(name.ptr, *list, n) == 0)
            return true;
    }
    return false;
}

static bool is_carried(const ml_spec *s, ml_str name) {
    return has_prefix(name, s->carried) || (s->inside && has_prefix(name, towers));
}

int64_t ml_weights_tower_count(const ml_spec *s, const ml_checkpoint *c) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_tensor && s->inside; i++)
        n += has_prefix(c->tensor[i].t.name, towers);
    return n;
}

bool ml_weights_may_ignore(const ml_spec *s, ml_str name) {
    static const char inv_freq[] = ".rotary_emb.inv_freq";
    size_t n = sizeof inv_freq - 1;
    if (name.len > n && memcmp(name.ptr + name.len - n, inv_freq, n) == 0)
        return true;
    if (s->mtp || is_nextn(s, name) || is_carried(s, name))
        return true;
    return (s->tied || s->critic) && ml_is_lm_head(name);
}

/* `padded`: rows of a vocabulary may follow those of the model. */
static bool has_shape(const ml_st_tensor *t, const int64_t *shape, int32_t n_dim,
                      bool padded) {
    if (t->n_dim != n_dim)
        return false;
    for (int32_t i = 0; i < n_dim; i++)
        if (t->shape[i] != shape[i] && !(i == 0 && padded && t->shape[0] > shape[0]))
            return false;
    return true;
}

int64_t ml_source_integer(const ml_st_tensor *t, int64_t at) {
    int64_t wide;
    int32_t narrow;

    if (t->dtype == ML_ST_I64) {
        memcpy(&wide, (const unsigned char *)t->data + at * 8, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const unsigned char *)t->data + at * 4, sizeof narrow);
    return narrow;
}

/* A table of whole numbers; one that is still to be received has no values yet. */
static ml_status check_numbers(const ml_param *p, const ml_st_tensor *t, const char *where,
                               ml_err *err) {
    if (t->dtype != ML_ST_I64 && t->dtype != ML_ST_I32)
        return ml_fail(err, ML_EUNSUP,
                       "%s: tensor %s has dtype %s; supported are I64 and I32", where,
                       t->name.ptr, ml_st_dtype_name(t->dtype));
    for (int64_t i = 0; t->data && i < p->shape[0] * p->shape[1]; i++) {
        int64_t v = ml_source_integer(t, i);
        if (v < 0 || v >= p->below)
            return ml_fail(err, ML_EFORMAT,
                           "%s: tensor %s has the number %lld in row %lld; expected are "
                           "0 to %lld",
                           where, t->name.ptr, (long long)v, (long long)(i / p->shape[1]),
                           (long long)p->below - 1);
    }
    return ML_OK;
}

ml_status ml_source_check(const ml_param *p, bool part, const ml_st_tensor *t, bool padded,
                          const char *where, ml_err *err) {
    char want[96], found[96];
    int64_t own[ML_ST_DIMS] = { p->cut ? p->cut->n_row : p->shape[0], p->shape[1] };
    const int64_t *shape = part ? p->part->shape : own;
    int32_t n_dim = part ? p->part->n_dim : p->n_dim;

    if (!has_shape(t, shape, n_dim, padded && p->shard == ML_SHARD_VOCAB))
        return ml_fail(err, ML_EFORMAT,
                       "%s: tensor %s has shape %s; config.json requires %s", where,
                       t->name.ptr, shape_text(t->shape, t->n_dim, found, sizeof found),
                       shape_text(shape, n_dim, want, sizeof want));
    if (p->below)
        return check_numbers(p, t, where, err);
    if (t->dtype != ML_ST_F32 && t->dtype != ML_ST_BF16 && t->dtype != ML_ST_F16)
        return ml_fail(err, ML_EUNSUP,
                       "%s: tensor %s has dtype %s; supported are F32, BF16, F16", where,
                       t->name.ptr, ml_st_dtype_name(t->dtype));
    return ML_OK;
}

static ml_status check_member(const ml_param *p, int32_t e, const ml_checkpoint *c,
                              ml_err *err) {
    char name[NAME_CAP], want[96];
    ml_source s = ml_source_of(c, p, e);
    bool part = ml_param_in_part(p, c);
    int64_t own[2] = { p->cut ? p->cut->n_row : p->shape[0], p->shape[1] };

    if (s.t)
        return ml_source_check(p, part, s.t, c->distributed, s.file->path, err);
    if (ml_param_is_value_head(p) || p->of_trunk)
        return ML_OK;
    return ml_fail(err, ML_EFORMAT, "%s: tensor %s is missing; expected shape %s", c->dir,
                   part ? p->part->name : ml_param_name(p, e, name, sizeof name),
                   shape_text(part ? p->part->shape : own, part ? p->part->n_dim : p->n_dim,
                              want, sizeof want));
}

/* Whether this is a parameter, a tensor that contains parameters, or a known unused one. */
static bool is_expected(const ml_spec *s, const ml_checkpoint *c, ml_str name) {
    int32_t member, first = ml_spec_find_part(s, name);

    if (first != ML_NONE && ml_param_in_part(&s->param[first], c))
        return true;
    return ml_spec_find(s, name, &member) != ML_NONE || ml_weights_may_ignore(s, name);
}

ml_status ml_weights_check(const ml_spec *s, const ml_checkpoint *c, ml_err *err) {
    ml_status st;

    for (int32_t i = 0; i < s->n_param; i++)
        for (int32_t e = 0; e < s->param[i].n_stack; e++)
            if ((st = check_member(&s->param[i], e, c, err)) != ML_OK)
                return st;
    for (int64_t i = 0; i < c->n_tensor; i++) {
        ml_str name = c->tensor[i].t.name;
        if (!is_expected(s, c, name))
            return ml_fail(err, ML_EFORMAT,
                           "%s: tensor %.*s is not part of a %s model as config.json "
                           "describes it",
                           c->file[c->tensor[i].file]->path, (int)name.len, name.ptr,
                           s->family);
    }
    return ML_OK;
}
