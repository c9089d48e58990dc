#include "run/dumps.h"

#include <string.h>

bool ml_dump_option(bool *enable, const char **filter, const char *word) {
    const char *value = strchr(word, '=');
    size_t n = value ? (size_t)(value - word) : 0;

    value = value ? value + 1 : "";
    if (n == 6 && strncmp(word, "filter", n) == 0 && *value)
        *filter = value;
    else if (n == 6 && strncmp(word, "enable", n) == 0 && strchr("01tf", value[0]))
        *enable = value[0] == '1' || value[0] == 't';
    else
        return false;
    return true;
}

static ml_status open_dump(ml_plan_dump **out, const ml_run_opts *c, const char *name,
                           const ml_string_list *words, ml_err *err) {
    bool enable = c->dump.enable;
    const char *filter = NULL;
    ml_text dir = { 0 };
    ml_status st = ML_OK;

    for (int i = 0; i < words->n; i++)
        ml_dump_option(&enable, &filter, words->word[i]);
    ml_text_printf(&dir, "%s/%s", c->dump.dir, name);
    if (enable && !c->dry_run)
        st = ml_plan_dump_open(out, dir.ptr, filter, err);
    ml_text_release(&dir);
    return st;
}

ml_status ml_train_dumps_open(ml_train_dumps *d, const ml_run_opts *c, ml_err *err) {
    ml_status st;

    *d = (ml_train_dumps){ 0 };
    st = open_dump(&d->inference, c, "inference", &c->dump.inference, err);
    if (st == ML_OK)
        st = open_dump(&d->score, c, "fwd-only", &c->dump.score, err);
    if (st == ML_OK)
        st = open_dump(&d->train, c, "fwd-bwd", &c->dump.train, err);
    return st;
}

void ml_train_dumps_close(ml_train_dumps *d) {
    ml_plan_dump_close(d->inference);
    ml_plan_dump_close(d->score);
    ml_plan_dump_close(d->train);
    *d = (ml_train_dumps){ 0 };
}
