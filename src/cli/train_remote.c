#include "cli/train_remote.h"

#include <string.h>

#include "base/dir.h"
#include "engine/remote.h"
#include "rl/weight_dir.h"

/* "host:port", or a whole address. */
static const char *url_of(ml_arena *a, const char *addr) {
    return strstr(addr, "://") ? addr : ml_arena_printf(a, "http://%s", addr);
}

ml_status ml_train_remote_dir(ml_train_gen *t, const ml_config *c, ml_err *err) {
    const char *dir = c->mode.weight_dir
                          ? c->mode.weight_dir
                          : ml_arena_printf(&t->arena, "%s/rollout_weights", c->train.save);

    return ml_dir_make_whole(&t->weight_dir, &t->arena, dir, err);
}

ml_status ml_train_remote_open(ml_train_gen *t, const ml_config *c, ml_err *err) {
    const char **url = ML_NEW(&t->arena, const char *, c->mode.addrs.n);
    ml_remote_opts o = { .url = url,
                         .n_url = c->mode.addrs.n,
                         .retry_s = ML_TRAIN_RETRY_S,
                         .connect_s = ML_TRAIN_CONNECT_S };
    ml_status st;

    for (int i = 0; i < c->mode.addrs.n; i++)
        url[i] = url_of(&t->arena, c->mode.addrs.word[i]);
    st = ml_remote_open(&t->gen, &o, err);
    if (st == ML_OK)
        st = ml_remote_check(t->gen, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--rollout-external-engine-addrs");
    return st;
}

ml_status ml_train_remote_publish(ml_train_gen *t, const ml_weights *w, ml_err *err) {
    ml_text path = { 0 };
    ml_status st = ml_weight_dir_write(&path, t->weight_dir, w, &t->run->spec, t->run->from,
                                       t->shard_bytes, err);

    if (st == ML_OK)
        st = ml_hooks_tell(t->run->opts.hooks, MILES_WEIGHTS_WRITTEN, t->run->rollout, -1,
                           path.ptr, err);
    if (st == ML_OK) {
        t->gen->pause(t->gen); /* requests under way are computed anew, not waited for */
        st = t->gen->load(t->gen, path.ptr, w->version, ML_SWITCH_RETRACT, err);
        t->gen->resume(t->gen);
    }
    ml_text_release(&path);
    return st;
}
