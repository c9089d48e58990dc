/* f1: word overlap with the label. */
#include <string.h>

#include "rl/builtins.h"
#include "rl/reward/answer.h"
#include "rl/reward/label.h"
#include "rl/reward/graders/words.h"

static bool is_verdict(const ml_words *w) {
    return w->n == 1 && (ml_str_is(w->word[0], "yes") || ml_str_is(w->word[0], "no") ||
                         ml_str_is(w->word[0], "noanswer"));
}

static bool same_words(const ml_words *x, const ml_words *y) {
    if (x->n != y->n)
        return false;
    for (int64_t i = 0; i < x->n; i++)
        if (!ml_str_eq(x->word[i], y->word[i]))
            return false;
    return true;
}

/* Size of the multiset intersection of the words. */
static int64_t overlap(const ml_words *x, const ml_words *y, ml_arena *a) {
    ml_map where; /* a word of y: its index in `left` */
    int64_t *left = ML_NEW(a, int64_t, y->n + 1), n = 0;

    ml_map_init(&where, a, y->n);
    for (int64_t i = 0; i < y->n; i++) {
        ml_map_add(&where, y->word[i], i);
        left[ml_map_get(&where, y->word[i], i)]++;
    }
    for (int64_t i = 0; i < x->n; i++) {
        int64_t row = ml_map_get(&where, x->word[i], -1);
        if (row >= 0 && left[row] > 0) {
            left[row]--;
            n++;
        }
    }
    return n;
}

static double score(const ml_words *x, const ml_words *y, ml_arena *a) {
    double both, precision, recall;

    if ((is_verdict(x) || is_verdict(y)) && !same_words(x, y))
        return 0.0;
    both = (double)overlap(x, y, a);
    if (both == 0.0)
        return 0.0;
    precision = both / (double)x->n;
    recall = both / (double)y->n;
    return 2.0 * precision * recall / (precision + recall);
}

static int run(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    ml_str label = { "", 0 };
    ml_words x, y;
    ml_label l;
    int status = 0;

    out->reward = 0.0;
    if (!ml_label_init(&l, in, err))
        status = 1;
    else if (in->response && !ml_label_text(l.label, &label))
        status = ml_reward_fail(err, "f1 needs a text label; the label is %s",
                                l.label ? ml_json_what(l.label) : "missing");
    else if (in->response) {
        ml_words_init(&x, &l.arena, ml_response(in));
        ml_words_init(&y, &l.arena, label);
        out->reward = score(&x, &y, &l.arena);
    }
    ml_label_release(&l);
    return status;
}

const miles_reward ml_reward_f1 = {
    { sizeof ml_reward_f1, MILES_REWARD, "f1", NULL,
      "F1 score of the words of response and label, 0 to 1" },
    run,
};
