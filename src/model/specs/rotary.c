/* Rotary frequencies as transformers computes them, in f32 where it uses f32, so that
 * angles at position 10^5 still agree. */
#include <math.h>
#include <string.h>

#include "model/specs/decoder.h"

typedef struct rope_source {
    const ml_json *params; /* object with rope_type and its numbers, or NULL */
    const char *where;     /* its name in messages, with a trailing dot */
    const char *type;      /* default rope_type */
    double theta, partial;
    double attention; /* default of attention_factor; 0: from the other numbers */
} rope_source;

static double param(ml_builder *b, const rope_source *r, const char *key, double def,
                    double min, double max) {
    return ml_hf_config_num_in(b->config, r->params, r->where, key, def, min, max);
}

/* The newer rope_parameters (one object, or one per layer type), else the older keys. */
static rope_source find_source(ml_builder *b, ml_rope_opts o) {
    ml_hf_config *c = b->config;
    const ml_json *all = ml_hf_config_get(c, "rope_parameters");
    const ml_json *scaling = ml_hf_config_get(c, "rope_scaling");
    rope_source r = { .where = "rope_parameters.",
                      .type = o.type ? o.type : "default",
                      .attention = o.attention };
    double theta =
        ml_hf_config_num(c, o.theta_key ? o.theta_key : "rope_theta", o.theta, 1, 1e15);
    double partial = ml_hf_config_num(c, "partial_rotary_factor", o.partial, 0, 1);

    if (all) {
        r.params = o.part && ml_json_get(all, o.part) ? ml_json_get(all, o.part) : all;
    } else if (scaling && o.scaled) {
        r.params = scaling;
        r.where = "rope_scaling.";
    }
    if (r.params && r.params->type != ML_JSON_OBJECT) {
        ml_hf_config_fail(c, ML_EFORMAT, "%s:%u: \"%.*s\" must be an object", c->path,
                          r.params->line, (int)strlen(r.where) - 1, r.where);
        r.params = NULL;
    }
    r.theta = param(b, &r, "rope_theta", theta, 1, 1e15);
    r.partial = param(b, &r, "partial_rotary_factor", partial, 0, 1);
    return r;
}

static void linear(ml_builder *b, const rope_source *r, ml_rope *rope, float *freq) {
    float factor = (float)param(b, r, "factor", (double)NAN, 1e-3, 1e6);
    for (int32_t i = 0; i < rope->dim / 2; i++)
        freq[i] /= factor;
}

/* Llama 3 scaling: long wavelengths are stretched by `factor`, short ones kept, those
 * between blended; in Llama 4 none are between. */
static void llama3(ml_builder *b, const rope_source *r, ml_rope *rope, float *freq) {
    double factor = param(b, r, "factor", (double)NAN, 1e-3, 1e6);
    double low = param(b, r, "low_freq_factor", (double)NAN, 1e-6, 1e6);
    double high = param(b, r, "high_freq_factor", (double)NAN, 1e-6, 1e6);
    double old = param(b, r, "original_max_position_embeddings", (double)NAN, 1, 1e12);

    if (low > high)
        ml_hf_config_fail(
            b->config, ML_EFORMAT,
            "%s: %slow_freq_factor (%g) must not be above high_freq_factor (%g)",
            b->config->path, r->where, low, high);
    for (int32_t i = 0; i < rope->dim / 2; i++) {
        float wave = (float)(2 * M_PI) / freq[i];
        float scaled = freq[i] / (float)factor;
        float blend = ((float)old / wave - (float)low) / (float)(high - low);
        if (wave > (float)(old / low))
            freq[i] = scaled;
        else if (low < high && wave >= (float)(old / high))
            freq[i] = (1.0f - blend) * freq[i] / (float)factor + blend * freq[i];
    }
}

static double yarn_mscale(double scale, double mscale) {
    return scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0;
}

/* YaRN: the dimension that rotates `rotations` times over the original context. */
static double yarn_dim(double rotations, const ml_rope *rope, double base, double old) {
    return rope->dim * log(old / (rotations * 2 * M_PI)) / (2 * log(base));
}

static bool yarn_truncates(ml_builder *b, const rope_source *r) {
    const ml_json *t = ml_json_get(r->params, "truncate");
    if (t && t->type != ML_JSON_TRUE && t->type != ML_JSON_FALSE && t->type != ML_JSON_NULL)
        ml_hf_config_fail(b->config, ML_EFORMAT,
                          "%s:%u: \"%struncate\" must be true or false", b->config->path,
                          t->line, r->where);
    return !t || t->type != ML_JSON_FALSE;
}

static void yarn(ml_builder *b, const rope_source *r, ml_rope *rope, float *freq) {
    double old =
        param(b, r, "original_max_position_embeddings",
              b->spec->max_position ? (double)b->spec->max_position : (double)NAN, 1, 1e12);
    double factor = param(b, r, "factor", (double)b->spec->max_position / old, 1e-3, 1e6);
    double fast = param(b, r, "beta_fast", 32, 1e-6, 1e6);
    double slow = param(b, r, "beta_slow", 1, 1e-6, 1e6);
    double mscale = param(b, r, "mscale", 0, 0, 1e3);
    double all_dim = param(b, r, "mscale_all_dim", 0, 0, 1e3);
    double attn = r->attention > 0 ? r->attention
                  : mscale > 0 && all_dim > 0
                      ? yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
                      : yarn_mscale(factor, 1);
    double low = yarn_dim(fast, rope, r->theta, old),
           high = yarn_dim(slow, rope, r->theta, old);

    if (yarn_truncates(b, r)) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, rope->dim - 1);
    if (low == high)
        high += 0.001;
    rope->scale = (float)param(b, r, "attention_factor", attn, 1e-6, 1e6);
    for (int32_t i = 0; i < rope->dim / 2; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float keep = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
        float wave = 1.0f / freq[i];
        freq[i] = 1.0f / ((float)factor * wave) * (1.0f - keep) + freq[i] * keep;
    }
}

/* The whole head is rotated, but only the fastest part has nonzero frequencies. */
static void proportional(ml_builder *b, const rope_source *r, ml_rope *rope, float *freq) {
    float factor = (float)param(b, r, "factor", 1, 1e-3, 1e6);
    int32_t turning = (int32_t)(r->partial * rope->dim / 2);

    for (int32_t i = 0; i < rope->dim / 2; i++)
        freq[i] = i < turning ? freq[i] / factor : 0.0f;
}

static const struct {
    const char *type;
    void (*apply)(ml_builder *b, const rope_source *r, ml_rope *rope, float *freq);
} scalings[] = { { "linear", linear },
                 { "llama3", llama3 },
                 { "yarn", yarn },
                 { "proportional", proportional } };

static const char *rope_type(ml_builder *b, const rope_source *r) {
    const char *type = r->type;

    if (r->params) {
        type = ml_hf_config_str_in(b->config, r->params, r->where, "type", type);
        type = ml_hf_config_str_in(b->config, r->params, r->where, "rope_type", type);
    }
    return type;
}

static void apply_scaling(ml_builder *b, const rope_source *r, ml_rope *rope, float *freq) {
    const char *type = rope_type(b, r);

    if (!strcmp(type, "default"))
        return;
    for (size_t i = 0; i < sizeof scalings / sizeof *scalings; i++)
        if (!strcmp(type, scalings[i].type)) {
            scalings[i].apply(b, r, rope, freq);
            return;
        }
    ml_hf_config_fail(
        b->config, ML_EUNSUP,
        "%s: %srope_type is \"%s\"; supported are default, linear, llama3, yarn and "
        "proportional",
        b->config->path, r->where, type);
}

double ml_rope_score_scale(ml_builder *b, ml_rope_opts o) {
    rope_source r = find_source(b, o);
    double all_dim, factor, m;

    if (!r.params || !strcmp(rope_type(b, &r), "default"))
        return 1;
    all_dim = param(b, &r, "mscale_all_dim", 0, 0, 1e3);
    factor = param(b, &r, "factor", 1, 1e-3, 1e6);
    m = all_dim > 0 ? yarn_mscale(factor, all_dim) : 1;
    return m * m;
}

const ml_rope *ml_rope_read(ml_builder *b, int32_t head_dim, ml_rope_opts o) {
    rope_source r = find_source(b, o);
    ml_rope *rope = ML_NEW(&b->spec->arena, ml_rope, 1);
    bool whole = !strcmp(rope_type(b, &r), "proportional");
    float *freq;

    rope->dim = whole ? head_dim : (int32_t)(head_dim * r.partial);
    if (rope->dim < 2 || rope->dim % 2 != 0) {
        ml_hf_config_fail(b->config, ML_EFORMAT,
                          "%s: head_dim %d with partial_rotary_factor %g leaves %d rotated "
                          "dimensions; expected an even number of at least 2",
                          b->config->path, head_dim, r.partial, rope->dim);
        rope->dim = 2;
    }
    rope->scale = 1;
    rope->freq = freq = ML_NEW(&b->spec->arena, float, rope->dim / 2);
    for (int32_t i = 0; i < rope->dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)rope->dim;
        freq[i] = 1.0f / (float)pow(r.theta, (double)exponent);
    }
    apply_scaling(b, &r, rope, freq);
    return rope;
}
