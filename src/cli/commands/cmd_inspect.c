/* miles inspect: the samples of a run, from its store. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/commands/sample_browser.h"
#include "cli/commands/sample_text.h"
#include "rl/record/run_store.h"

typedef struct printer {
    ml_tokenizer *tokenizer; /* NULL: tokens are shown as ids */
    bool tokens;
    int64_t n;
} printer;

static bool print(void *ud, int64_t rollout, const char *set, const ml_sample *s) {
    printer *p = ud;
    ml_text t = { 0 };

    p->n++;
    ml_sample_text_head(&t, rollout, set, s);
    ml_text_printf(&t, "\n");
    ml_sample_text_fields(&t, s);
    if (p->tokens)
        ml_sample_text_tokens(&t, p->tokenizer, s);
    fputs(t.ptr, stdout);
    ml_text_release(&t);
    return true;
}

static ml_status print_all(printer *p, const char *path, const ml_sample_query *q,
                           ml_err *err) {
    ml_status st = ml_run_store_find(path, q, print, p, err);

    if (st == ML_OK && p->n == 0)
        printf("no matching sample\n");
    return st;
}

static ml_sample_query query_of(const ml_config *c) {
    return (ml_sample_query){ .evals = c->inspect.evals || c->inspect.set,
                              .set = c->inspect.set,
                              .rollout = c->inspect.rollout < 0 ? ML_ALL_ROLLOUTS
                                                                : c->inspect.rollout,
                              .least = c->inspect.least,
                              .most = c->inspect.most,
                              .truncated = c->inspect.truncated,
                              .n_skip = c->inspect.n_skip,
                              .n_most = c->inspect.n_most };
}

/* On a terminal a browser, unless the number of samples is limited; else lines. */
static ml_status show(const ml_config *c, const char *path, ml_err *err) {
    printer p = { .tokens = c->inspect.tokens };
    ml_sample_query q = query_of(c);
    ml_status st = ML_OK;

    if (access(path, R_OK) != 0)
        return ml_fail(
            err, ML_EIO,
            "%s: no run.db found; runs with --save write one unless --no-store is given",
            path);
    if (c->run.hf_checkpoint)
        st = ml_tokenizer_open(&p.tokenizer, c->run.hf_checkpoint, err);
    if (st == ML_OK && !q.n_most && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1)
        st = ml_sample_browser(path, &q, p.tokenizer, err);
    else if (st == ML_OK)
        st = print_all(&p, path, &q, err);
    if (p.tokenizer)
        ml_tokenizer_close(p.tokenizer);
    return st;
}

ml_status ml_cmd_inspect(const ml_config *c, ml_err *err) {
    ml_text path = { 0 };
    struct stat is;
    ml_status st;

    ml_text_printf(&path, "%s", c->inspect.run);
    if (stat(path.ptr, &is) == 0 && S_ISDIR(is.st_mode))
        ml_text_printf(&path, "/run.db");
    st = show(c, path.ptr, err);
    ml_text_release(&path);
    return st;
}
