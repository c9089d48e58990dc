#include "rl/learn/advantage/opd.h"

#include "base/exp.h"

/* The first of the last n entries, which belong to the response.  The placeholder is not
 * counted. */
static const ml_json *response_part(const ml_json *field, int64_t n) {
    const ml_json *v;

    if (!field || field->type != ML_JSON_ARRAY || field->n < n + 1)
        return NULL;
    v = field->child;
    for (int64_t skip = field->n - n; skip > 0; skip--)
        v = v->next;
    return v;
}

static bool read_entry(const ml_json *entry, double *log_prob, int64_t *id) {
    const ml_json *first = entry->type == ML_JSON_ARRAY ? entry->child : NULL;

    return first && ml_json_f64(first, log_prob) && first->next &&
           ml_json_i64(first->next, id);
}

ml_status ml_opd_teacher(double *out, int64_t n, const ml_json *logprobs, ml_err *err) {
    const ml_json *v = response_part(logprobs, n);
    int64_t id;

    for (int64_t t = 0; t < n; t++, v = v->next)
        if (!v || !read_entry(v, &out[t], &id))
            return ml_fail(
                err, ML_EFORMAT,
                "the teacher's reply has no log-prob for response token %lld of %lld",
                (long long)t, (long long)n);
    return ML_OK;
}

/* --- top-k tokens ------------------------------------------------------------- */

typedef struct token {
    int64_t id;
    double log_prob;
} token;

typedef struct tokens {
    token *of;
    int64_t n;
} tokens;

static bool find(const tokens *list, int64_t id, double *log_prob) {
    for (int64_t i = list->n - 1; i >= 0; i--)
        if (list->of[i].id == id) {
            *log_prob = list->of[i].log_prob;
            return true;
        }
    return false;
}

static tokens read_tokens(ml_arena *a, const ml_json *position) {
    tokens list = { ML_NEW(a, token, position ? position->n + 1 : 1), 0 };

    for (const ml_json *e = position ? position->child : NULL; e; e = e->next)
        if (read_entry(e, &list.of[list.n].log_prob, &list.of[list.n].id))
            list.n++;
    return list;
}

/* One position: the top-k tokens of both models, and each model's log-probs of the
 * other's. */
typedef struct position {
    tokens student, teacher, teacher_on_student, student_on_teacher;
} position;

static bool has(const tokens *list, int64_t id) {
    double unused;
    return find(list, id, &unused);
}

static bool chosen(ml_opd_set set, const position *p, int64_t id) {
    bool student = has(&p->student, id), teacher = has(&p->teacher, id);

    switch (set) {
    case ML_OPD_ONLY_STUDENT: return student;
    case ML_OPD_ONLY_TEACHER: return teacher;
    case ML_OPD_INTERSECTION: return student && teacher;
    case ML_OPD_UNION: return true;
    case ML_OPD_XOR: break;
    }
    return student != teacher;
}

/* A token of the set, with the log-probs of both models. */
typedef struct pair {
    int64_t id;
    double student, teacher;
} pair;

static bool among(const pair *set, int64_t n, int64_t id) {
    for (int64_t i = 0; i < n; i++)
        if (set[i].id == id)
            return true;
    return false;
}

static ml_status add_pair(pair *out, const position *p, int64_t id, ml_err *err) {
    out->id = id;
    if (!find(&p->student, id, &out->student) &&
        !find(&p->student_on_teacher, id, &out->student))
        return ml_fail(err, ML_EFORMAT, "the student has no log-prob for token %lld",
                       (long long)id);
    if (!find(&p->teacher, id, &out->teacher) &&
        !find(&p->teacher_on_student, id, &out->teacher))
        return ml_fail(err, ML_EFORMAT, "the teacher has no log-prob for token %lld",
                       (long long)id);
    return ML_OK;
}

static ml_status choose(pair *out, int64_t *n, ml_opd_set set, const position *p,
                        const tokens *from, ml_err *err) {
    ml_status st = ML_OK;

    for (int64_t i = 0; i < from->n && st == ML_OK; i++) {
        int64_t id = from->of[i].id;
        if (!chosen(set, p, id) || among(out, *n, id))
            continue;
        st = add_pair(&out[*n], p, id, err);
        ++*n;
    }
    return st;
}

static double log_weight(ml_opd_weight w, const pair *p) {
    return w == ML_OPD_STUDENT_P ? p->student : w == ML_OPD_TEACHER_P ? p->teacher : 0.0;
}

static double weighted_difference(const ml_opd_topk *in, const pair *set, int64_t n) {
    bool as_is = in->set == ML_OPD_XOR;
    double most = as_is || n == 0 ? 0.0 : log_weight(in->weight, &set[0]);
    double total = 0.0, sum = 0.0;

    for (int64_t i = 1; i < n && !as_is; i++)
        if (log_weight(in->weight, &set[i]) > most)
            most = log_weight(in->weight, &set[i]);
    for (int64_t i = 0; i < n; i++) {
        double w = ml_exp(log_weight(in->weight, &set[i]) - most);
        total += w;
        sum += w * (set[i].student - set[i].teacher);
    }
    return as_is || n == 0 ? sum : sum / total;
}

static ml_status compare(double *out, const ml_opd_topk *in, ml_arena *a, const position *p,
                         ml_err *err) {
    pair *set = ML_NEW(a, pair, p->student.n + p->teacher.n + 1);
    int64_t n = 0;
    ml_status st = choose(set, &n, in->set, p, &p->student, err);

    if (st == ML_OK)
        st = choose(set, &n, in->set, p, &p->teacher, err);
    if (st == ML_OK)
        *out = weighted_difference(in, set, n);
    return st;
}

static const ml_json *after(const ml_json *v) {
    return v ? v->next : NULL;
}

ml_status ml_opd_topk_reverse_kl(double *out, int64_t n, const ml_opd_topk *in,
                                 ml_err *err) {
    const ml_json *student = in->student_top ? in->student_top->child : NULL;
    const ml_json *teacher = response_part(in->teacher_top, n);
    const ml_json *cross_teacher = response_part(in->teacher_on_student, n);
    const ml_json *cross_student = response_part(in->student_on_teacher, n);
    ml_status st = ML_OK;

    for (int64_t t = 0; t < n && st == ML_OK; t++) {
        ml_arena a;
        position p;
        ml_arena_init(&a, "distillation");
        p = (position){ read_tokens(&a, student), read_tokens(&a, teacher),
                        read_tokens(&a, cross_teacher), read_tokens(&a, cross_student) };
        st = compare(&out[t], in, &a, &p, err);
        if (st != ML_OK)
            ml_err_prefix(err, "response token %lld", (long long)t);
        ml_arena_release(&a);
        student = after(student);
        teacher = after(teacher);
        cross_teacher = after(cross_teacher);
        cross_student = after(cross_student);
    }
    return st;
}
