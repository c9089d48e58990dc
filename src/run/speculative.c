/* speculative.c - which drafts SGLang's flags of speculative decoding mean. */
#include <string.h>

#include "base/log.h"
#include "run/opts.h"

enum { NGRAM_TOKENS = 12, NET_STEPS = 3, MOST_DRAFTS = 31 };

static bool is(const char *a, const char *b) {
    return a && !strcmp(a, b);
}

/* Draft tokens of a chain.  SGLang's number of draft tokens counts the verified one, too. */
static int32_t drafts_of(const ml_speculative_opts *o, bool ngram) {
    int64_t n = ngram        ? (o->n_token ? o->n_token : NGRAM_TOKENS) - 1
                : o->n_step  ? o->n_step
                : o->n_token ? o->n_token - 1
                             : NET_STEPS;

    return (int32_t)(n < 1 ? 1 : n > MOST_DRAFTS ? MOST_DRAFTS : n);
}

static int32_t least(int64_t a, int64_t b) {
    return (int32_t)(a < b ? a : b);
}

/* A tree of topk chains.  Its rows are those besides the request's own; each further chain has
 * the request's last token again. */
static void make_tree(ml_draft_opts *d, const ml_speculative_opts *o, bool ngram) {
    int32_t usual = ngram ? NGRAM_TOKENS - 1 : NET_STEPS;
    int64_t n = o->n_step ? o->n_step : usual;

    d->topk = (int32_t)o->topk;
    d->rows =
        o->n_token ? (int32_t)o->n_token - 1 : least(MOST_DRAFTS, o->topk * (n + 1) - 1);
    if (!o->n_step)
        n = least(n, (d->rows + 1) / d->topk - 1);
    d->n = least(n < 1 ? 1 : n, d->rows);
}

static ml_status check(const ml_speculative_opts *o, const char *dir, ml_err *err) {
    static const char *const known[] = { "NGRAM", "EAGLE", "NEXTN", "EAGLE3",
                                         "STANDALONE" };
    bool found = false, alone = is(o->algorithm, "STANDALONE"),
         head = is(o->algorithm, "EAGLE3");

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        found = found || is(o->algorithm, known[i]);
    if (!found)
        return ml_fail(
            err, ML_EUSAGE,
            "--speculative-algorithm %s is not supported; use NGRAM (prompt "
            "lookup), EAGLE or NEXTN (the model's multi-token prediction layer), "
            "EAGLE3 (an EAGLE-3 head) or STANDALONE (a draft model)",
            o->algorithm);
    if ((alone || head) && !o->draft_path)
        return ml_fail(err, ML_EUSAGE,
                       "--speculative-algorithm %s needs %s: add "
                       "--speculative-draft-model-path",
                       o->algorithm, alone ? "a draft model" : "an EAGLE-3 head");
    if (!alone && !head && o->draft_path && !is(o->draft_path, dir))
        return ml_fail(
            err, ML_EUSAGE,
            "--speculative-draft-model-path %s: %s does not draft with another model; "
            "remove "
            "it to use the model's own multi-token prediction layer, or use "
            "--speculative-algorithm EAGLE3 with an EAGLE-3 head, STANDALONE with a small "
            "model",
            o->draft_path, o->algorithm);
    return ML_OK;
}

ml_status ml_speculative_resolve(ml_draft_opts *out, const ml_speculative_opts *o,
                                 const char *dir, ml_weight_dtype dtype, bool several,
                                 ml_err *err) {
    bool ngram = is(o->algorithm, "NGRAM");
    ml_status st;

    *out = (ml_draft_opts){ 0 };
    if (!o->algorithm)
        return ML_OK;
    st = check(o, dir, err);
    if (st != ML_OK)
        return st;
    *out = (ml_draft_opts){ .n = drafts_of(o, ngram), .dtype = dtype };
    if (o->topk > 1)
        make_tree(out, o, ngram || several);
    if (several && !ngram)
        ml_log(ML_LOG_WARN,
               "--speculative-algorithm %s: an engine of several ranks drafts by prompt "
               "lookup (NGRAM); the tokens are the same",
               o->algorithm);
    if (ngram || several)
        out->ngram = true;
    else if (is(o->algorithm, "STANDALONE"))
        out->model = o->draft_path;
    else if (is(o->algorithm, "EAGLE3"))
        out->eagle3 = o->draft_path;
    else
        out->mtp = dir;
    return ML_OK;
}
