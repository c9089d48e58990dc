#include "tests/support/recording.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

double ml_record_number(const ml_json *v) {
    double x = (double)NAN;

    if (v && v->type == ML_JSON_STRING)
        return ml_str_is(v->text, "inf")    ? (double)INFINITY
               : ml_str_is(v->text, "-inf") ? -(double)INFINITY
                                            : (double)NAN;
    if (v && (v->type == ML_JSON_TRUE || v->type == ML_JSON_FALSE))
        return v->type == ML_JSON_TRUE ? 1.0 : 0.0;
    if (v && v->type == ML_JSON_NUMBER)
        ml_json_f64(v, &x);
    return x;
}

const char *ml_record_text(ml_case *c, const ml_json *v) {
    return v && v->type == ML_JSON_STRING
               ? ml_arena_str(&c->arena, v->text.ptr, v->text.len)
               : "";
}

double ml_record_member(const ml_json *from, const char *key) {
    return ml_record_number(ml_json_get(from, key));
}

int32_t ml_record_word(ml_case *c, const ml_json *from, const char *key,
                       const char *const *words) {
    const char *text = ml_record_text(c, ml_json_get(from, key));
    int32_t i = 0;

    while (words[i] && strcmp(words[i], text) != 0)
        i++;
    return words[i] ? i : 0;
}

double *ml_record_row(ml_case *c, const ml_json *v) {
    double *row;
    int64_t t = 0;

    if (!v || v->type != ML_JSON_ARRAY)
        return NULL;
    row = ML_NEW(&c->arena, double, v->n + 1);
    for (const ml_json *e = v->child; e; e = e->next)
        row[t++] = ml_record_number(e);
    return row;
}

void ml_record_batch_init(ml_record_batch *b, ml_case *c, const ml_json *lengths_of,
                          const char *mask_key) {
    const ml_json *masks = mask_key ? ml_json_get(c->args, mask_key) : NULL;
    const ml_json *mask = masks ? masks->child : NULL;
    const miles_sample **view = ML_NEW(&c->arena, const miles_sample *, lengths_of->n + 1);
    int64_t i = 0;

    b->sample = ML_NEW(&c->arena, miles_sample, lengths_of->n + 1);
    for (const ml_json *v = lengths_of->child; v; v = v->next, i++) {
        uint8_t *m = ML_NEW(&c->arena, uint8_t, v->n + 1);
        int64_t t = 0;
        memset(m, 1, (size_t)v->n);
        for (const ml_json *e = mask ? mask->child : NULL; e; e = e->next)
            m[t++] = ml_record_number(e) != 0.0;
        b->sample[i] = (miles_sample){
            .size = sizeof *b->sample, .n = v->n, .rollout = i, .mask = m, .kept = m
        };
        view[i] = &b->sample[i];
        mask = mask ? mask->next : NULL;
    }
    b->of = (miles_batch){ sizeof b->of, lengths_of->n, view };
}

void ml_record_column(ml_record_batch *b, ml_case *c, const char *key, size_t at) {
    const ml_json *rows = ml_json_get(c->args, key);
    const ml_json *v = rows && rows->type == ML_JSON_ARRAY ? rows->child : NULL;

    for (int64_t i = 0; i < b->of.n && v; i++, v = v->next) {
        const double *row = ml_record_row(c, v);
        ml_record_expect(c, v->n == b->sample[i].n, "a column of another length");
        memcpy((char *)&b->sample[i] + at, &row, sizeof row);
    }
}

bool ml_record_near(double got, double want, ml_tolerance t) {
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= t.absolute + t.relative * fabs(want);
}

void ml_record_expect(ml_case *c, bool ok, const char *what) {
    if (!ok)
        ml_case_fail(c, what);
}

void ml_record_equal(ml_case *c, double got, const ml_json *want, ml_tolerance t,
                     const char *what) {
    double w = ml_record_number(want);

    if (!ml_record_near(got, w, t))
        ml_test_fail(__FILE__, __LINE__, "%s:%lld: %s is %.17g, not %.17g", c->path,
                     (long long)c->line, what, got, w);
}

void ml_record_equal_row(ml_case *c, const double *got, int64_t n, const ml_json *want,
                         ml_tolerance t, const char *what) {
    const ml_json *w = want ? want->child : NULL;
    char name[100];

    ml_record_expect(c, want && want->n == n, "a row of another length");
    for (int64_t i = 0; i < n && w; i++, w = w->next) {
        snprintf(name, sizeof name, "%.60s[%lld]", what, (long long)i);
        ml_record_equal(c, got[i], w, t, name);
    }
}

miles_algo ml_record_algo(void) {
    double none = (double)NAN;

    return (miles_algo){ .size = sizeof(miles_algo),
                         .gamma = 1.0,
                         .lambd = 1.0,
                         .eps_clip = 0.2,
                         .eps_clip_high = 0.2,
                         .eps_clip_c = none,
                         .value_clip = 0.2,
                         .opsm_delta = 1e-4,
                         .tis_clip = 2.0,
                         .tis_upper_bound = 2.0,
                         .tis_lower_bound = none,
                         .rs_lower_bound = none,
                         .rs_upper_bound = none,
                         .rs_veto_threshold = none,
                         .drgrpo_divisor = 1000.0 };
}
