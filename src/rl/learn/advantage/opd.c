#include "rl/learn/advantage/opd.h"

#include <math.h>

#include "base/exp.h"

ml_opd_needs ml_opd_needs_of(ml_opd_set set) {
    bool cross = set == ML_OPD_UNION || set == ML_OPD_XOR;

    return (ml_opd_needs){ .student_top = set != ML_OPD_ONLY_TEACHER,
                           .teacher_top = set != ML_OPD_ONLY_STUDENT,
                           .teacher_on_student = cross || set == ML_OPD_ONLY_STUDENT,
                           .student_on_teacher = cross || set == ML_OPD_ONLY_TEACHER };
}

/* The last entry with this id counts, as in a dictionary. */
static bool find(const ml_opd_tokens *list, int64_t id, double *log_prob) {
    for (int32_t i = list->n - 1; i >= 0; i--)
        if (list->id[i] == id && !isnan(list->logprob[i])) {
            *log_prob = (double)list->logprob[i];
            return true;
        }
    return false;
}

static bool has(const ml_opd_tokens *list, int64_t id) {
    double unused;
    return find(list, id, &unused);
}

static bool chosen(ml_opd_set set, const ml_opd_position *p, int64_t id) {
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

static ml_status add_pair(pair *out, const ml_opd_position *p, int64_t id, ml_err *err) {
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

static ml_status choose(pair *out, int64_t *n, ml_opd_set set, const ml_opd_position *p,
                        const ml_opd_tokens *from, ml_err *err) {
    ml_status st = ML_OK;

    for (int64_t i = 0; i < from->n && st == ML_OK; i++) {
        int64_t id = from->id[i];
        if (id < 0 || !chosen(set, p, id) || among(out, *n, id))
            continue;
        st = add_pair(&out[*n], p, id, err);
        ++*n;
    }
    return st;
}

static double log_weight(ml_opd_weight w, const pair *p) {
    return w == ML_OPD_STUDENT_P ? p->student : w == ML_OPD_TEACHER_P ? p->teacher : 0.0;
}

static double weighted_difference(ml_opd_set kind, ml_opd_weight weight, const pair *set,
                                  int64_t n) {
    bool as_is = kind == ML_OPD_XOR;
    double most = as_is || n == 0 ? 0.0 : log_weight(weight, &set[0]);
    double total = 0.0, sum = 0.0;

    for (int64_t i = 1; i < n && !as_is; i++)
        if (log_weight(weight, &set[i]) > most)
            most = log_weight(weight, &set[i]);
    for (int64_t i = 0; i < n; i++) {
        double w = ml_exp(log_weight(weight, &set[i]) - most);
        total += w;
        sum += w * (set[i].student - set[i].teacher);
    }
    return as_is || n == 0 ? sum : sum / total;
}

ml_status ml_opd_reverse_kl(double *out, ml_opd_set set, ml_opd_weight weight,
                            const ml_opd_position *p, ml_arena *a, ml_err *err) {
    pair *of = ML_NEW(a, pair, p->student.n + p->teacher.n + 1);
    int64_t n = 0;
    ml_status st = choose(of, &n, set, p, &p->student, err);

    if (st == ML_OK)
        st = choose(of, &n, set, p, &p->teacher, err);
    if (st == ML_OK)
        *out = weighted_difference(set, weight, of, n);
    return st;
}
