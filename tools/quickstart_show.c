/* quickstart_show METRICS ROLLOUT - prints a run as text: the mean reward of its rollouts as a
 * curve, answers of a recorded rollout, and the accuracy before and after. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/jsonl.h"
#include "rl/sample.h"

enum { WIDTH = 64, HEIGHT = 10, EXAMPLES = 6 };

typedef struct history {
    double *reward; /* [n] of each rollout */
    int64_t n;
    double first, last; /* accuracy; negative: not measured */
} history;

static void must(ml_status st, const ml_err *err) {
    if (st != ML_OK) {
        fprintf(stderr, "quickstart_show: %s\n", err->msg);
        exit(1);
    }
}

static void read_history(history *h, ml_arena *a, const char *path) {
    ml_jsonl f;
    ml_err err = { 0 };

    must(ml_jsonl_open(&f, path, &err), &err);
    *h = (history){ .reward = ML_NEW(a, double, f.n + 1), .first = -1, .last = -1 };
    for (int64_t i = 0; i < f.n; i++) {
        const ml_json *row;
        double x;
        must(ml_jsonl_parse(&row, &f, i, a, &err), &err);
        if (ml_json_f64(ml_json_get(row, "rollout/raw_reward"), &x))
            h->reward[h->n++] = x;
        if (ml_json_f64(ml_json_get(row, "eval/unseen"), &x)) {
            h->first = h->first < 0 ? x : h->first;
            h->last = x;
        }
    }
    ml_jsonl_close(&f);
}

/* The mean over the rollouts that share a column. */
static double column(const history *h, int at, int n_column) {
    int64_t begin = at * h->n / n_column, end = (at + 1) * h->n / n_column;
    double sum = 0;

    for (int64_t i = begin; i < end; i++)
        sum += h->reward[i];
    return sum / (double)(end - begin);
}

static void draw_curve(const history *h) {
    int n_column = h->n < WIDTH ? (int)h->n : WIDTH;

    printf("\nmean reward of each of the %lld rollouts\n", (long long)h->n);
    for (int y = HEIGHT; y >= 0; y--) {
        printf(" %4.1f |", (double)y / HEIGHT);
        for (int x = 0; x < n_column; x++)
            putchar((int)(column(h, x, n_column) * HEIGHT + 0.5) == y ? '*' : ' ');
        putchar('\n');
    }
    printf("      +");
    for (int x = 0; x < n_column; x++)
        putchar('-');
    printf("\n\n");
}

/* The problem without the chat template's text around it. */
static void print_problem(ml_str prompt) {
    static const char before[] = "user\n";
    const char *p = strstr(prompt.ptr, before), *end;

    p = p ? p + sizeof before - 1 : prompt.ptr;
    end = strstr(p, "<|im_end|>");
    printf("  %.*s\n", end ? (int)(end - p) : (int)strlen(p), p);
}

/* Without the token that ends it. */
static int visible(ml_str response) {
    const char *end = strstr(response.ptr, "<|im_end|>");
    return end ? (int)(end - response.ptr) : (int)response.len;
}

static void show_examples(ml_arena *a, const char *path) {
    ml_sample *s;
    int64_t n;
    ml_err err = { 0 };

    must(ml_samples_load(&s, &n, a, path, &err), &err);
    printf("answers of the last rollout:\n");
    for (int64_t i = 0, shown = 0; i < n && shown < EXAMPLES; i++) {
        if (i > 0 && s[i].group == s[i - 1].group)
            continue;
        print_problem(s[i].prompt);
        printf("    %.*s  %s\n", visible(s[i].response), s[i].response.ptr,
               s[i].reward == 1 ? "right" : "wrong");
        shown++;
    }
}

int main(int argc, char **argv) {
    history h;
    ml_arena a;

    if (argc != 3) {
        fprintf(stderr, "usage: quickstart_show METRICS ROLLOUT\n");
        return 2;
    }
    ml_arena_init(&a, "a run");
    read_history(&h, &a, argv[1]);
    draw_curve(&h);
    show_examples(&a, argv[2]);
    printf("\naccuracy on unseen problems: %.1f%% after miles sft, %.1f%% after miles "
           "train\n",
           100 * h.first, 100 * h.last);
    ml_arena_release(&a);
    return 0;
}
