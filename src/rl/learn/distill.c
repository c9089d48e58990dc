#include "rl/learn/distill.h"

#include <math.h>
#include <string.h>

#include "base/json.h"

enum { AT_ONCE = 64 }; /* samples whose top-k tokens are in memory together */

/* --- teachers ------------------------------------------------------------------ */

static const ml_teacher *named(const ml_distill *d, ml_str name) {
    for (int32_t i = 0; i < d->n_teacher; i++)
        if (ml_str_is(name, d->teacher[i].name))
            return &d->teacher[i];
    return NULL;
}

static ml_status no_teacher(const ml_distill *d, const ml_json *name, ml_err *err) {
    ml_text known = { 0 };
    ml_status st;

    for (int32_t i = 0; i < d->n_teacher; i++)
        ml_text_printf(&known, "%s%s", i ? ", " : "", d->teacher[i].name);
    if (name)
        st = ml_fail(err, ML_EUSAGE,
                     "metadata \"%s\" is %.*s, which is no teacher of --opd-teacher-urls "
                     "(%s); add it, or one with the name " ML_TEACHER_DEFAULT,
                     d->key, (int)name->text.len, name->text.ptr, known.ptr);
    else
        st = ml_fail(err, ML_EUSAGE,
                     "metadata has no \"%s\" that names a teacher of --opd-teacher-urls "
                     "(%s); add it, or a teacher with the name " ML_TEACHER_DEFAULT,
                     d->key, known.ptr);
    ml_text_release(&known);
    return st;
}

ml_status ml_teacher_of(const ml_teacher **out, const ml_distill *d, ml_str metadata,
                        ml_err *err) {
    const ml_json *doc = NULL, *name = NULL;
    ml_status st = ML_OK;
    ml_arena a;

    ml_arena_init(&a, "metadata");
    if (metadata.len)
        st = ml_json_parse(&doc, &a, metadata, "metadata", err);
    if (st == ML_OK)
        name = ml_json_get(doc, d->key);
    if (name && name->type == ML_JSON_NULL)
        name = NULL;
    *out = name ? named(d, name->text) : d->n_teacher == 1 ? d->teacher : NULL;
    if (!*out)
        *out = named(d, ml_str_of(ML_TEACHER_DEFAULT));
    if (st == ML_OK && !*out)
        st = no_teacher(d, name, err);
    ml_arena_release(&a);
    return st;
}

/* --- the teacher's log-probs of the answers ------------------------------------- */

/* A batch, whose samples are siblings. */
typedef struct batch {
    const ml_distill *d;
    ml_sample *const *all;
    int64_t n;
    ml_arena *a;
} batch;

/* An item without response tokens: the teacher sees what the student saw. */
static ml_status see(const batch *b, const ml_sample *s, ml_score_item *out, ml_arena *a,
                     ml_err *err) {
    ml_status st = ml_teacher_prompt_tokens(&b->d->prompt, s, b->all, b->n, &out->token,
                                            &out->n_token, a, err);
    if (st == ML_OK && !out->token)
        out->n_response = 0;
    return st;
}

static ml_status teacher_item(const batch *b, const ml_sample *s, ml_arena *a,
                              ml_score_item *out, ml_err *err) {
    const ml_teacher *t;
    ml_status st = ml_teacher_of(&t, b->d, s->metadata, err);

    if (st == ML_OK)
        *out = ml_score_item_of(&t->by, s, ML_NEW(a, float, s->n_response + 1));
    if (st == ML_OK && b->d->prompt.key)
        st = see(b, s, out, a, err);
    if (st != ML_OK)
        ml_err_prefix(err, "sample %lld", (long long)s->index);
    return st;
}

static ml_status score_answers(const batch *b, ml_sample *const *s, int32_t n,
                               ml_err *err) {
    ml_arena *a = b->a;
    ml_score_item *item = ML_NEW(a, ml_score_item, n + 1);
    ml_status st = ML_OK;

    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        st = teacher_item(b, s[i], a, &item[i], err);
        if (st == ML_OK && !item[i].n_response && s[i]->logprob)
            memcpy(item[i].logprob, s[i]->logprob,
                   (size_t)s[i]->n_response * sizeof(float));
    }
    if (st == ML_OK)
        st = ml_gen_score(item, n, err);
    for (int32_t i = 0; i < n && st == ML_OK; i++)
        s[i]->teacher_logprob = item[i].logprob;
    return st;
}

/* --- top-k tokens ---------------------------------------------------------------- */

/* What is known of a sample: both models' top-k tokens, and their log-probs of the
 * other's. */
typedef struct compared {
    ml_score_item student, teacher, student_again;
} compared;

static void ask_for_top(ml_score_item *x, int32_t k, ml_arena *a) {
    int64_t n = (int64_t)x->n_response * k;

    x->n_top = k;
    x->top_id = ML_NEW(a, int32_t, n + 1);
    x->top_logprob = ML_NEW(a, float, n + 1);
}

/* Has the item score the top-k tokens of another. */
static void ask_for_ids(ml_score_item *x, const ml_score_item *of, ml_arena *a) {
    x->also = of->top_id;
    x->n_also = of->n_top;
    x->also_logprob = ML_NEW(a, float, (int64_t)of->n_response * of->n_top + 1);
}

static ml_status score_students(const ml_distill *d, compared *c, ml_sample *const *s,
                                int32_t n, bool again, ml_arena *a, ml_err *err) {
    ml_score_item *item = ML_NEW(a, ml_score_item, n + 1);
    ml_status st;

    if (!d->student.gen)
        return ml_fail(err, ML_EUSAGE,
                       "--opd-log-prob-top-k needs the engine of the run, or recorded "
                       "samples with \"opd_reverse_kl\"");
    for (int32_t i = 0; i < n; i++) {
        item[i] =
            ml_score_item_of(&d->student, s[i], ML_NEW(a, float, s[i]->n_response + 1));
        if (again && !c[i].teacher.n_response)
            item[i].n_response = 0;
        else if (again)
            ask_for_ids(&item[i], &c[i].teacher, a);
        else
            ask_for_top(&item[i], d->top_k, a);
    }
    st = ml_gen_score(item, n, err);
    for (int32_t i = 0; i < n; i++)
        *(again ? &c[i].student_again : &c[i].student) = item[i];
    return st;
}

static ml_status score_teachers(const batch *b, compared *c, ml_sample *const *s, int32_t n,
                                ml_arena *a, ml_err *err) {
    const ml_distill *d = b->d;
    ml_opd_needs needs = ml_opd_needs_of(d->set);
    ml_score_item *item = ML_NEW(a, ml_score_item, n + 1);
    ml_status st = ML_OK;

    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        st = teacher_item(b, s[i], a, &item[i], err);
        if (st == ML_OK && needs.teacher_top)
            ask_for_top(&item[i], d->top_k, a);
        if (st == ML_OK && needs.teacher_on_student)
            ask_for_ids(&item[i], &c[i].student, a);
    }
    if (st == ML_OK)
        st = ml_gen_score(item, n, err);
    for (int32_t i = 0; i < n; i++)
        c[i].teacher = item[i];
    return st;
}

static ml_opd_tokens top_at(const ml_score_item *x, int32_t t) {
    int64_t at = (int64_t)t * x->n_top;
    return x->n_top ? (ml_opd_tokens){ x->top_id + at, x->top_logprob + at, x->n_top }
                    : (ml_opd_tokens){ 0 };
}

static ml_opd_tokens also_at(const ml_score_item *x, int32_t t) {
    int64_t at = (int64_t)t * x->n_also;
    return x->n_also ? (ml_opd_tokens){ x->also + at, x->also_logprob + at, x->n_also }
                     : (ml_opd_tokens){ 0 };
}

static ml_status compare(const ml_distill *d, const compared *c, ml_sample *s, ml_arena *a,
                         ml_arena *scratch, ml_err *err) {
    ml_status st = ML_OK;

    s->opd_reverse_kl = ML_NEW(a, float, s->n_response + 1);
    for (int32_t t = 0; t < c->teacher.n_response && st == ML_OK; t++) {
        ml_opd_position p = { top_at(&c->student, t), top_at(&c->teacher, t),
                              also_at(&c->teacher, t), also_at(&c->student_again, t) };
        double kl = 0;
        st = ml_opd_reverse_kl(&kl, d->set, d->weight, &p, scratch, err);
        if (st == ML_OK && !isfinite((float)kl))
            st = ml_fail(err, ML_EFORMAT, "the reverse KL is %g", kl);
        if (st != ML_OK)
            ml_err_prefix(err, "sample %lld: response token %d", (long long)s->index, t);
        s->opd_reverse_kl[t] = (float)kl;
    }
    return st;
}

static ml_status score_top_k(const batch *b, ml_sample *const *s, int32_t n, ml_err *err) {
    const ml_distill *d = b->d;
    ml_opd_needs needs = ml_opd_needs_of(d->set);
    ml_status st = ML_OK;
    ml_arena scratch;
    compared *c;

    ml_arena_init(&scratch, "top-k tokens");
    c = ML_NEW(&scratch, compared, n + 1);
    if (needs.student_top)
        st = score_students(d, c, s, n, false, &scratch, err);
    if (st == ML_OK)
        st = score_teachers(b, c, s, n, &scratch, err);
    if (st == ML_OK && needs.student_on_teacher)
        st = score_students(d, c, s, n, true, &scratch, err);
    for (int32_t i = 0; i < n && st == ML_OK; i++)
        st = compare(d, &c[i], s[i], b->a, &scratch, err);
    ml_arena_release(&scratch);
    return st;
}

/* --- a rollout batch -------------------------------------------------------------- */

static bool is_scored(const ml_distill *d, const ml_sample *s) {
    return d->top_k ? s->opd_reverse_kl != NULL : s->teacher_logprob != NULL;
}

ml_status ml_distill_run(const ml_distill *d, ml_sample *const *s, int64_t n, ml_arena *a,
                         ml_err *err) {
    const batch b = { d, s, n, a };
    ml_sample **open = ML_NEW(a, ml_sample *, n + 1);
    int64_t n_open = 0, most = d->top_k ? AT_ONCE : n;
    ml_status st = ML_OK;

    for (int64_t i = 0; i < n; i++)
        if (!is_scored(d, s[i]))
            open[n_open++] = s[i];
    for (int64_t i = 0; i < n_open && st == ML_OK; i += most) {
        int32_t some = (int32_t)(n_open - i < most ? n_open - i : most);
        st = d->top_k ? score_top_k(&b, open + i, some, err)
                      : score_answers(&b, open + i, some, err);
    }
    return st;
}
