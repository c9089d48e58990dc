/* miles inspect: the samples of a run, from its store. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/shown.h"
#include "cli/cli.h"
#include "rl/record/run_store.h"
#include "text/tokenizer/tokenizer.h"

typedef struct viewer {
    const ml_config *config;
    ml_tokenizer *tokenizer; /* NULL: tokens are shown as ids */
    bool pages;              /* paging: standard input is a terminal */
    int64_t n;
} viewer;

/* JSON, escaped for a terminal. */
static void print_json(const char *before, ml_str json) {
    ml_text t = { 0 };

    ml_text_show(&t, json, ML_SHOWN_ONE_LINE);
    printf("%s%s", before, t.ptr ? t.ptr : "");
    ml_text_release(&t);
}

static void print_text(const char *what, ml_str s) {
    ml_text t = { 0 };

    ml_json_quote(&t, s);
    printf("  %-8s", what);
    print_json(" ", (ml_str){ t.ptr, t.len });
    printf("\n");
    ml_text_release(&t);
}

static void print_token(const viewer *v, int32_t id) {
    ml_text t = { 0 };

    printf("  %6d", id);
    if (v->tokenizer) {
        ml_text piece = { 0 };
        ml_decode(v->tokenizer, &piece, &id, 1, false);
        ml_json_quote(&t, (ml_str){ piece.ptr ? piece.ptr : "", piece.len });
        print_json("  ", (ml_str){ t.ptr, t.len });
        ml_text_release(&piece);
    }
    printf("\n");
    ml_text_release(&t);
}

/* Position, mask, log-prob and version of each token; a missing value is a dash. */
static void print_tokens(const viewer *v, const ml_sample *s) {
    int32_t n_prompt = s->n_token - s->n_response;

    printf("  index  mask   log-prob  version   token\n");
    for (int32_t i = 0; i < s->n_token; i++) {
        int32_t t = i - n_prompt;
        printf("  %5d", i);
        if (t < 0)
            printf("     -          -        -");
        else
            printf("     %d", s->mask ? s->mask[t] : 1);
        if (t >= 0 && s->logprob)
            printf("  %9.5f", (double)s->logprob[t]);
        else if (t >= 0)
            printf("          -");
        if (t >= 0 && s->version)
            printf("  %7llu", (unsigned long long)s->version[t]);
        else if (t >= 0)
            printf("        -");
        print_token(v, s->token[i]);
    }
}

/* False: the user has quit. */
static bool turn_page(void) {
    char line[100];

    printf("-- Enter: next; q: quit -- ");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) && line[0] != 'q';
}

static void print_head(int64_t rollout, const char *set, const ml_sample *s) {
    if (set && rollout < 0)
        printf("evaluation of %s before training", set);
    else if (set)
        printf("evaluation of %s after rollout %lld", set, (long long)rollout);
    else
        printf("rollout %lld", (long long)rollout);
    printf(", sample %lld of group %lld: ", (long long)s->index, (long long)s->group);
}

static bool show(void *ud, int64_t rollout, const char *set, const ml_sample *s) {
    viewer *v = ud;

    if (v->n++ && v->pages && !turn_page())
        return false;
    print_head(rollout, set, s);
    if (s->has_reward)
        printf("reward %g", s->reward);
    else
        printf("no reward");
    printf(", %s, %d tokens\n", ml_sample_status_name(s->status), s->n_response);
    print_text("prompt", s->prompt);
    print_text("answer", s->response);
    if (s->label.len) {
        printf("  %-8s", "label");
        print_json(" ", s->label);
        printf("\n");
    }
    if (v->config->inspect.tokens)
        print_tokens(v, s);
    return true;
}

static ml_status find(viewer *v, const char *path, ml_err *err) {
    const ml_config *c = v->config;
    ml_sample_query q = { .evals = c->inspect.evals || c->inspect.set,
                          .set = c->inspect.set,
                          .rollout =
                              c->inspect.rollout < 0 ? ML_ALL_ROLLOUTS : c->inspect.rollout,
                          .least = c->inspect.least,
                          .most = c->inspect.most,
                          .truncated = c->inspect.truncated,
                          .n_skip = c->inspect.n_skip,
                          .n_most = c->inspect.n_most };
    ml_status st = ML_OK;

    if (access(path, R_OK) != 0)
        return ml_fail(
            err, ML_EIO,
            "%s: no run.db found; runs with --save write one unless --no-store is given",
            path);
    if (c->hf_checkpoint)
        st = ml_tokenizer_open(&v->tokenizer, c->hf_checkpoint, err);
    if (st == ML_OK)
        st = ml_run_store_find(path, &q, show, v, err);
    if (st == ML_OK && v->n == 0)
        printf("no matching sample\n");
    return st;
}

ml_status ml_cmd_inspect(const ml_config *c, ml_err *err) {
    viewer v = { .config = c,
                 .pages = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 };
    ml_text path = { 0 };
    struct stat is;
    ml_status st;

    ml_text_printf(&path, "%s", c->inspect.run);
    if (stat(path.ptr, &is) == 0 && S_ISDIR(is.st_mode))
        ml_text_printf(&path, "/run.db");
    st = find(&v, path.ptr, err);
    if (v.tokenizer)
        ml_tokenizer_close(v.tokenizer);
    ml_text_release(&path);
    return st;
}
