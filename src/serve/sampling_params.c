#include "serve/sampling_params.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"

#define AT(field) offsetof(ml_sampling_params, field)

static const ml_field rows[] = {
    { "max_new_tokens", ML_FIELD_I32, AT(max_new), 0, INT32_MAX },
    { "min_new_tokens", ML_FIELD_I32, AT(min_new), 0, INT32_MAX },
    { "temperature", ML_FIELD_F32, AT(temperature), 0, 1e6 },
    { "top_p", ML_FIELD_F32, AT(top_p), 0, 1 },
    { "top_k", ML_FIELD_I32, AT(top_k), -1, INT32_MAX },
    { "min_p", ML_FIELD_F32, AT(min_p), 0, 1 },
    { "stop", ML_FIELD_JSON, AT(stop_json) },
    { "stop_token_ids", ML_FIELD_JSON, AT(stop_id_json) },
    { "ignore_eos", ML_FIELD_BOOL, AT(ignore_eos) },
    { "skip_special_tokens", ML_FIELD_BOOL, AT(skip_special) },
    { "spaces_between_special_tokens", ML_FIELD_IGNORE },
    { "no_stop_trim", ML_FIELD_BOOL, AT(no_stop_trim) },
    { "frequency_penalty", ML_FIELD_F32, AT(frequency), -2, 2 },
    { "presence_penalty", ML_FIELD_F32, AT(presence), -2, 2 },
    { "repetition_penalty", ML_FIELD_F32, AT(repetition), 0, 2 },
    { "logit_bias", ML_FIELD_JSON, AT(bias_json) },
    { "n", ML_FIELD_I32, AT(n), 1, ML_MAX_CHOICES },
    { "sampling_seed", ML_FIELD_JSON, AT(seed_json) },
    { "sample", ML_FIELD_JSON, AT(sample_json) },
    { "logprob_distribution", ML_FIELD_JSON, AT(dist_json) },
    { "stream_interval", ML_FIELD_IGNORE },
    { "json_schema", ML_FIELD_STR, AT(source[ML_GRAMMAR_JSON_SCHEMA]) },
    { "regex", ML_FIELD_STR, AT(source[ML_GRAMMAR_REGEX]) },
    { "ebnf", ML_FIELD_STR, AT(source[ML_GRAMMAR_EBNF]) },
    { "structural_tag", ML_FIELD_STR, AT(source[ML_GRAMMAR_STRUCTURAL_TAG]) },
    { "stop_regex", ML_FIELD_REFUSE, .why = "use stop or stop_token_ids" },
    { "custom_params", ML_FIELD_REFUSE,
      .why = "custom logit processors are not supported" },
    { 0 },
};

void ml_sampling_params_init(ml_sampling_params *p) {
    *p = (ml_sampling_params){ .temperature = 1,
                               .top_p = 1,
                               .repetition = 1,
                               .top_k = -1,
                               .max_new = 128,
                               .n = 1,
                               .skip_special = true };
}

static ml_status check_ranges(const ml_sampling_params *p, ml_err *err) {
    if (p->top_p <= 0)
        return ml_fail(err, ML_EUSAGE, "\"top_p\" is 0; expected > 0 and <= 1");
    if (p->repetition <= 0)
        return ml_fail(err, ML_EUSAGE,
                       "\"repetition_penalty\" is 0; expected > 0 and <= 2");
    if (p->top_k == 0)
        return ml_fail(err, ML_EUSAGE, "\"top_k\" is 0; expected -1 (all) or at least 1");
    if (p->max_new >= 0 && p->min_new > p->max_new)
        return ml_fail(err, ML_EUSAGE, "min_new_tokens is %d, but max_new_tokens is %d",
                       (int)p->min_new, (int)p->max_new);
    return ML_OK;
}

/* Reads numbers of generation_config.json with the requests' rows; ignores the rest. */
static ml_status read_defaults(ml_sampling_params *p, const ml_json *root, const char *path,
                               ml_err *err) {
    static const char *const names[] = { "temperature", "top_p", "top_k", "min_p",
                                         "repetition_penalty" };
    ml_status st = ML_OK;

    for (size_t i = 0; i < sizeof names / sizeof *names && !st; i++) {
        const ml_json *v = ml_json_get(root, names[i]);
        ml_json one = { .type = ML_JSON_OBJECT, .n = 1, .child = v }, member;
        if (!v)
            continue;
        member = *v;
        member.next = NULL;
        one.child = &member;
        st = ml_fields_read(p, rows, &one, path, err);
    }
    if (p->top_k == 0)
        p->top_k = -1; /* in transformers, 0 means no limit */
    return st;
}

ml_status ml_sampling_params_defaults(ml_sampling_params *p, const char *dir, ml_err *err) {
    ml_arena a;
    ml_file f = { 0 };
    const ml_json *root;
    char path[4096];
    ml_err why = { 0 };
    ml_status st;

    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    if (!ml_file_there(path))
        return ML_OK;
    ml_arena_init(&a, "generation_config.json");
    st = ml_file_map(&f, path, &why);
    if (!st)
        st = ml_json_parse_python(&root, &a, f.bytes, path, &why);
    if (!st)
        st = read_defaults(p, root, path, &why);
    if (!st)
        st = check_ranges(p, &why);
    ml_file_unmap(&f);
    ml_arena_release(&a);
    return st ? ml_fail(err, st, "%s (--sampling-defaults openai does not read that file)",
                        why.msg)
              : ML_OK;
}

ml_status ml_sampling_params_read(ml_sampling_params *p, const ml_json *object,
                                  int32_t n_vocab, ml_arena *a, ml_err *err) {
    ml_status st = ML_OK;

    if (object)
        st = ml_fields_read(p, rows, object, "sampling_params", err);
    return st ? st : ml_sampling_params_check(p, n_vocab, a, err);
}

/* Digits only; also accepts integers above INT64_MAX. */
static bool is_u64(const ml_json *v, uint64_t *out) {
    uint64_t n = 0;

    for (size_t i = 0; i < v->text.len; i++) {
        unsigned digit = (unsigned)v->text.ptr[i] - '0';
        if (digit > 9 || __builtin_mul_overflow(n, 10u, &n) ||
            __builtin_add_overflow(n, digit, &n))
            return false;
    }
    *out = n;
    return v->type == ML_JSON_NUMBER;
}

/* Accepts signed and unsigned numbers; both give the same 64 bits. */
static ml_status read_u64(uint64_t *out, bool *has, const ml_json *v, const char *name,
                          ml_err *err) {
    int64_t i;

    *has = v != NULL;
    if (!v || is_u64(v, out))
        return ML_OK;
    if (!ml_json_i64(v, &i))
        return ml_fail(err, ML_EUSAGE, "\"%s\" is not a 64-bit integer", name);
    *out = (uint64_t)i;
    return ML_OK;
}

/* {"token id": number} */
static ml_status read_bias(ml_sampling_params *p, int32_t n_vocab, ml_arena *a,
                           ml_err *err) {
    const ml_json *v = p->bias_json;
    ml_bias *bias;

    if (!v)
        return ML_OK;
    if (v->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EUSAGE, "\"logit_bias\" is %s; expected an object",
                       ml_json_what(v));
    if (ml_count_check(v, ML_MAX_BIASES, "\"logit_bias\"", err))
        return ML_EUSAGE;
    p->bias = bias = ML_NEW(a, ml_bias, v->n + 1);
    for (const ml_json *c = v->child; c; c = c->next, bias++) {
        const char *digits = ml_arena_str(a, c->key.ptr, c->key.len);
        char *end;
        double add;
        long id;

        errno = 0;
        id = strtol(digits, &end, 10);
        if (end == digits || *end || errno || id < 0 || id >= n_vocab)
            return ml_fail(err, ML_EUSAGE,
                           "\"logit_bias\": the key \"%.40s\" is not a token id; expected "
                           "a whole number from 0 to %d",
                           digits, (int)n_vocab - 1);
        if (!ml_json_f64(c, &add) || add < -1e30 || add > 1e30)
            return ml_fail(err, ML_EUSAGE,
                           "\"logit_bias\": the value of token %ld is not a number", id);
        *bias = (ml_bias){ (int32_t)id, (float)add };
        p->n_bias++;
    }
    return ML_OK;
}

static ml_status read_dist(ml_sampling_params *p, ml_err *err) {
    static const char *const names[] = {
        [ML_DIST_RAW] = "raw", [ML_DIST_MODEL] = "model", [ML_DIST_DRAWN] = "drawn"
    };

    if (!p->dist_json)
        return ML_OK;
    for (int i = 0; i < 3; i++)
        if (p->dist_json->type == ML_JSON_STRING &&
            ml_str_is(p->dist_json->text, names[i])) {
            p->dist = (ml_dist)i;
            return ML_OK;
        }
    return ml_fail(err, ML_EUSAGE,
                   "\"logprob_distribution\": expected \"raw\", \"model\" or \"drawn\"");
}

/* At most one grammar. */
static ml_status read_grammar(ml_sampling_params *p, ml_arena *a, ml_err *err) {
    for (int k = ML_GRAMMAR_NONE + 1; k < ML_N_GRAMMAR; k++) {
        if (!p->source[k].len)
            continue;
        if (p->grammar.kind)
            return ml_fail(err, ML_EUSAGE,
                           "\"%s\" and \"%s\" are both set; expected one grammar",
                           ml_grammar_kind_name(p->grammar.kind),
                           ml_grammar_kind_name((ml_grammar_kind)k));
        p->grammar =
            (ml_grammar_source){ (ml_grammar_kind)k, ml_str_keep(a, p->source[k]) };
    }
    return ML_OK;
}

ml_status ml_sampling_params_check(ml_sampling_params *p, int32_t n_vocab, ml_arena *a,
                                   ml_err *err) {
    ml_status st = ml_strings_read(&p->stop, &p->n_stop, p->stop_json, ML_MAX_STOPS,
                                   "\"stop\"", a, err);

    if (!st)
        st = ml_ids_read(&p->stop_id, &p->n_stop_id, p->stop_id_json, n_vocab,
                         ML_MAX_STOP_IDS, "\"stop_token_ids\"", a, err);
    if (!st)
        st = read_bias(p, n_vocab, a, err);
    if (!st)
        st = read_u64(&p->seed, &p->has_seed, p->seed_json, "seed", err);
    if (!st)
        st = read_u64(&p->sample, &p->has_sample, p->sample_json, "sample", err);
    if (!st)
        st = read_dist(p, err);
    if (!st)
        st = read_grammar(p, a, err);
    return st ? st : check_ranges(p, err);
}

void ml_sampling_params_apply(const ml_sampling_params *p, ml_gen_request *r) {
    r->draw = (ml_draw_opts){ .temperature = p->temperature < 1e-6f ? 0 : p->temperature,
                              .top_k = p->top_k < 0 ? 0 : p->top_k,
                              .top_p = p->top_p,
                              .min_p = p->min_p,
                              .repetition = p->repetition,
                              .frequency = p->frequency,
                              .presence = p->presence,
                              .bias = p->bias,
                              .n_bias = p->n_bias,
                              .dist = p->dist };
    r->min_new = p->min_new;
    r->max_new = p->max_new;
    r->stop = p->stop;
    r->n_stop = p->n_stop;
    r->stop_id = p->stop_id;
    r->n_stop_id = p->n_stop_id;
    r->ignore_eos = p->ignore_eos;
    r->grammar = p->grammar;
}
