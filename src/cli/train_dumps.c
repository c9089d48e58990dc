#include "cli/train_dumps.h"

#include <string.h>

typedef struct dump_opts {
    bool enable;
    const char *filter;
} dump_opts;

static ml_status take_option(dump_opts *o, const char *flag, const char *word,
                             ml_err *err) {
    const char *value = strchr(word, '=');
    size_t n = value ? (size_t)(value - word) : 0;

    value = value ? value + 1 : "";
    if (n == 6 && strncmp(word, "filter", n) == 0 && *value) {
        o->filter = value;
    } else if (n == 6 && strncmp(word, "enable", n) == 0 && strchr("01tf", value[0])) {
        o->enable = value[0] == '1' || value[0] == 't';
    } else {
        return ml_fail(err, ML_EUSAGE,
                       "--%s: \"%s\" is neither enable=1, enable=0 nor filter=PART, a part "
                       "of the names that are written",
                       flag, word);
    }
    return ML_OK;
}

static ml_status open_dump(ml_plan_dump **out, const ml_config *c, const char *flag,
                           const ml_string_list *words, ml_err *err) {
    dump_opts o = { .enable = c->dump.enable };
    ml_text dir = { 0 };
    ml_status st = ML_OK;

    for (int i = 0; i < words->n && st == ML_OK; i++)
        st = take_option(&o, flag, words->word[i], err);
    ml_text_printf(&dir, "%s/%s", c->dump.dir, flag + strlen("dumper-"));
    if (st == ML_OK && o.enable && !c->train.dry_run)
        st = ml_plan_dump_open(out, dir.ptr, o.filter, err);
    ml_text_release(&dir);
    return st;
}

ml_status ml_train_dumps_open(ml_train_dumps *d, const ml_config *c, ml_err *err) {
    ml_status st;

    *d = (ml_train_dumps){ 0 };
    st = open_dump(&d->inference, c, "dumper-inference", &c->dump.inference, err);
    if (st == ML_OK)
        st = open_dump(&d->score, c, "dumper-fwd-only", &c->dump.score, err);
    if (st == ML_OK)
        st = open_dump(&d->train, c, "dumper-fwd-bwd", &c->dump.train, err);
    if (st == ML_OK && d->inference && ml_config_elsewhere(c))
        st = ml_fail(err, ML_EUSAGE,
                     "--dumper-inference: engines of other processes write no tensors: add "
                     "--dumper-inference enable=0");
    return st;
}

void ml_train_dumps_close(ml_train_dumps *d) {
    ml_plan_dump_close(d->inference);
    ml_plan_dump_close(d->score);
    ml_plan_dump_close(d->train);
    *d = (ml_train_dumps){ 0 };
}

ml_status ml_train_dumps_on(void *dumps, const ml_loop_event *e, ml_err *err) {
    ml_train_dumps *d = dumps;
    ml_plan_dump *all[] = { d->inference, d->score, d->train };
    ml_status st = ML_OK;

    for (int i = 0; i < 3 && st == ML_OK; i++) {
        if (all[i] && e->kind == ML_ON_ROLLOUT_BEGIN)
            ml_plan_dump_round(all[i], e->rollout);
        if (all[i] && e->kind == ML_ON_ROLLOUT_END)
            st = ml_plan_dump_check(all[i], err);
    }
    return st;
}
