/* miles dpo against the loss curves of TRL's trainers on the same model and data, step by step
 * (tools/gen_preference_golden.py); derivatives of every loss against finite differences; a
 * resumed run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "rl/learn/preference.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"

#define GOLDEN "tests/golden/preference"
#define BOUND 1e-4 /* of a loss, after up to six steps of AdamW */

/* --- derivatives --------------------------------------------------------------------- */

enum { PAIRS = 3, MOST = 6 };

typedef struct batch {
    miles_sample sample[2 * PAIRS];
    ml_preference_row row[2 * PAIRS];
    double policy[2 * PAIRS][MOST], ref[2 * PAIRS][MOST];
    uint8_t mask[2 * PAIRS][MOST];
} batch;

static void fill(batch *b, ml_preference_kind kind) {
    bool whole = kind == ML_PREFERENCE_ORPO;

    for (int i = 0; i < 2 * PAIRS; i++) {
        int64_t n = 3 + i % 3 + whole;
        for (int t = 0; t < MOST; t++) {
            b->policy[i][t] = -0.3 - 0.1 * ((i * 7 + t * 5) % 11);
            b->ref[i][t] = -0.4 - 0.1 * ((i * 3 + t * 2) % 7);
            b->mask[i][t] = 1;
        }
        b->sample[i] = (miles_sample){ .size = sizeof b->sample[i],
                                       .n = n,
                                       .mask = b->mask[i],
                                       .old_log_prob = b->policy[i],
                                       .ref_log_prob = b->ref[i] };
        b->row[i] = (ml_preference_row){ &b->sample[i], n - whole, i % 4 == 0 };
    }
}

static double loss_of(batch *b, const ml_preference_opts *o, ml_arena *a) {
    double sum = 0;

    MUST(ml_preferences_compute(a, o, b->row, 2 * PAIRS, &err));
    for (int i = 0; i < 2 * PAIRS; i++)
        sum += b->sample[i].preference[ML_PREFERENCE_LOSS];
    return sum;
}

static void derivatives_are_differences(void) {
    static batch b;
    ml_arena a;

    ml_arena_init(&a, "test");
    for (int kind = ML_PREFERENCE_DPO; kind <= ML_PREFERENCE_KTO; kind++) {
        ml_preference_opts o = { .on = true,
                                 .kind = (ml_preference_kind)kind,
                                 .beta = 0.7,
                                 .label_smoothing = 0.1,
                                 .gamma = 0.3,
                                 .desirable = 1.3,
                                 .undesirable = 0.8 };
        fill(&b, o.kind);
        for (int i = 0; i < 2 * PAIRS; i++)
            for (int64_t t = 0; t < b.sample[i].n; t++) {
                double x = b.policy[i][t], h = 1e-5, up, down, d;
                if (kind == ML_PREFERENCE_KTO && i % 2)
                    continue; /* the answers of the KL have no gradient */
                b.policy[i][t] = x + h;
                up = loss_of(&b, &o, &a);
                b.policy[i][t] = x - h;
                down = loss_of(&b, &o, &a);
                b.policy[i][t] = x;
                loss_of(&b, &o, &a);
                d = -b.sample[i].advantage[t];
                if (!(fabs((up - down) / (2 * h) - d) < 1e-8))
                    ml_test_fail(__FILE__, __LINE__, "loss %d, sample %d, token %d: %g, %g",
                                 kind, i, (int)t, (up - down) / (2 * h), d);
            }
    }
    ml_arena_release(&a);
}

/* --- curves --------------------------------------------------------------------------- */

static void run_dpo(const char *save, const char *data, int steps, const char *more) {
    char args[2000];
    static char out[20000];

    snprintf(args, sizeof args,
             "dpo --hf-checkpoint " GOLDEN "/model --prompt-data " GOLDEN "/%s "
             "--rollout-batch-size 4 --num-rollout %d --lr-decay-style constant "
             "--weight-decay 0 --clip-grad 1 --save %s --load %s %s %s",
             data, steps, save, save, strstr(more, "--lr ") ? "" : "--lr 2e-3", more);
    if (ml_test_miles(out, sizeof out, args) != 0) {
        ml_test_fail(__FILE__, __LINE__, "miles dpo %s: %s", more, out);
        exit(1);
    }
}

/* The losses of the steps in metrics.jsonl; returns their number. */
static int read_losses(double *out, int cap, const char *save, ml_arena *a) {
    ml_file f = { 0 };
    int n = 0;

    MUST(ml_file_map(&f, ml_arena_printf(a, "%s/metrics.jsonl", save), &err));
    for (size_t at = 0; at < f.bytes.len;) {
        const char *end = memchr(f.bytes.ptr + at, '\n', f.bytes.len - at);
        size_t len = (size_t)(end - (f.bytes.ptr + at));
        ml_str line = { ml_arena_str(a, f.bytes.ptr + at, len), len };
        const ml_json *row;
        MUST(ml_json_parse(&row, a, line, "metrics.jsonl", &err));
        if (ml_json_get(row, "train/loss") && n < cap)
            CHECK(ml_json_f64(ml_json_get(row, "train/loss"), &out[n++]));
        at += len + 1;
    }
    ml_file_unmap(&f);
    return n;
}

static void follows(const char *name, const char *data, const char *flags) {
    const char *save = ml_test_path(name);
    const ml_json *root, *v;
    double loss[16];
    ml_file f = { 0 };
    ml_arena a;
    int n, k = 0;

    ml_arena_init(&a, "golden");
    MUST(ml_file_map(&f, GOLDEN "/golden.json", &err));
    MUST(ml_json_parse(&root, &a, f.bytes, "golden.json", &err));
    v = ml_json_get(root, name);
    CHECK(v != NULL && v->n >= 6);
    run_dpo(save, data, v->n, flags);
    n = read_losses(loss, 16, save, &a);
    CHECK(n == v->n);
    for (v = v->child; v && k < n; v = v->next, k++) {
        double want = 0;
        CHECK(ml_json_f64(v, &want));
        if (!(fabs(loss[k] - want) <= BOUND))
            ml_test_fail(__FILE__, __LINE__, "%s, step %d: loss %.9g, TRL %.9g", name, k,
                         loss[k], want);
    }
    ml_file_unmap(&f);
    ml_arena_release(&a);
}

static void dpo_is_that_of_trl(void) {
    follows("dpo", "chats.jsonl", "--beta 0.5");
    follows("dpo_implicit", "implicit.jsonl", "--beta 0.5");
    follows("dpo_text", "texts.jsonl", "--beta 0.5");
}

static void other_losses_are_those_of_trl(void) {
    follows("hinge", "chats.jsonl", "--preference-loss hinge --beta 0.5");
    follows("ipo", "chats.jsonl", "--preference-loss ipo --beta 0.5");
    follows("kto", "single.jsonl",
            "--preference-loss kto --beta 0.5 --desirable-weight 1.5");
    follows("simpo", "texts.jsonl", "--preference-loss simpo --beta 0.5 --simpo-gamma 0.3");
    follows("orpo", "texts.jsonl", "--preference-loss orpo --beta 0.5");
}

static void a_resumed_run_has_the_same_bytes(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    const char *lora = "--lora-rank 4 --lora-alpha 8 --target-modules all-linear "
                       "--save-interval 1 --lr 1e-2";
    char command[1200];

    run_dpo(whole, "chats.jsonl", 3, lora);
    run_dpo(parts, "chats.jsonl", 2, lora);
    run_dpo(parts, "chats.jsonl", 3, lora);
    snprintf(command, sizeof command,
             "diff -r %s/iter_0000002 %s/iter_0000002 >&2 && cmp %s/metrics.jsonl "
             "%s/metrics.jsonl >&2",
             whole, parts, whole, parts);
    CHECK(system(command) == 0);
}

static const ml_test tests[] = {
    { "derivatives of preference losses are finite differences",
      derivatives_are_differences },
    { "DPO has the loss curves of TRL", dpo_is_that_of_trl, 300 },
    { "hinge, IPO, KTO, SimPO and ORPO have the loss curves of TRL",
      other_losses_are_those_of_trl, 300 },
    { "a resumed run of miles dpo with LoRA has the same bytes",
      a_resumed_run_has_the_same_bytes, 300 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
