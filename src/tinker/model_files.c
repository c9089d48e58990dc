/* model_files.c - requests of training clients that write and read files. */
#include <unistd.h>

#include "base/dir.h"
#include "tinker/tinker_priv.h"

/* Adapters without a name of one training client that stay on disk. */
#define KEEP_EPHEMERAL 16

static void reply_path(ml_tinker_work *w, const char *uri, const char *type) {
    ml_json_out o = { .to = &w->reply };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "path", uri);
    ml_json_put_word(&o, "type", type);
    ml_json_end(&o, '}');
}

static ml_status new_path(ml_tinker_work *w, ml_store_kind kind, ml_store_path *p) {
    return ml_store_path_of(p, &w->arena, w->t->opts.dir, w->model->id, kind,
                            ml_tinker_text(w->body, "path"), &w->err);
}

void ml_tinker_run_save(ml_tinker_work *w) {
    ml_store_path p = { 0 };

    w->st = new_path(w, ML_STORE_STATE, &p);
    if (w->st == ML_OK && ml_store_exists(&p) &&
        !ml_tinker_true(w->body, "overwrite", false))
        w->st = ml_fail(&w->err, ML_EUSAGE,
                        "%s exists: choose another name, or set overwrite", p.uri);
    if (w->st == ML_OK)
        w->st = ml_lora_slot_save(w->model->slot, p.dir, ml_str_of("{}"), &w->err);
    if (w->st == ML_OK)
        w->st = ml_store_add(&p, ml_json_get(w->body, "user_metadata"), &w->err);
    if (w->st == ML_OK)
        reply_path(w, p.uri, "save_weights");
}

/* Writes the adapter's files under a temporary name first. */
static ml_status write_adapter(ml_tinker_work *w, const char *dir) {
    const ml_lora *l = ml_lora_slot_adapter(w->model->slot);
    const char *temp = ml_arena_printf(&w->arena, "%s.tmp-%ld", dir, (long)getpid());
    ml_status st = ml_dir_make(temp, &w->err);

    if (st == ML_OK)
        st = ml_lora_save(l, &l->weights, temp, &w->err);
    if (st == ML_OK)
        st = ml_dir_sync(temp, &w->err);
    if (st == ML_OK)
        st = ml_dir_replace(temp, dir, &w->err);
    if (st != ML_OK)
        ml_dir_remove(temp, NULL);
    return st;
}

static void run_save_named(ml_tinker_work *w, ml_store_kind kind, const char *type) {
    ml_store_path p = { 0 };

    w->st = new_path(w, kind, &p);
    if (w->st == ML_OK)
        w->st = write_adapter(w, p.dir);
    if (w->st == ML_OK)
        w->st = ml_store_add(&p, ml_json_get(w->body, "user_metadata"), &w->err);
    if (w->st == ML_OK)
        reply_path(w, p.uri, type);
    w->path = p.dir;
}

void ml_tinker_run_save_external(ml_tinker_work *w) {
    const ml_json *keys = ml_json_get(w->body, "age_encryption_recipients");

    if (keys && keys->n)
        w->st = ml_fail(&w->err, ML_EUNSUP,
                        "this server does not encrypt files: remove "
                        "age_encryption_recipients");
    else
        run_save_named(w, ML_STORE_EXTERNAL, "save_weights_external");
}

static const char *ephemeral_dir(ml_tinker_work *w, int64_t number) {
    return ml_arena_printf(&w->arena, "%s/%s/ephemeral/%lld", w->t->opts.dir, w->model->id,
                           (long long)number);
}

/* Without a name, the adapter belongs to the sampling client that is made for it. */
void ml_tinker_run_save_sampler(ml_tinker_work *w) {
    ml_model_client *m = w->model;

    if (ml_tinker_text(w->body, "path").len) {
        run_save_named(w, ML_STORE_SAMPLER, "save_weights_for_sampler");
        return;
    }
    if (m->n_ephemeral >= KEEP_EPHEMERAL)
        ml_dir_remove(ephemeral_dir(w, m->n_ephemeral - KEEP_EPHEMERAL), NULL);
    w->path = ephemeral_dir(w, m->n_ephemeral++);
    w->st = write_adapter(w, w->path);
}

static bool is_open(const ml_tinker *t, const ml_session_client *s) {
    const ml_session_client *x = t->sessions;

    while (x && x != s)
        x = x->next;
    return x != NULL;
}

void ml_tinker_sampler_saved(ml_tinker_work *w) {
    ml_tinker *t = w->t;
    int64_t number = ml_tinker_number(w->body, "sampling_session_seq_id", 0);
    ml_json_out o = { .to = &w->reply };

    if (w->st == ML_OK && w->reply.len) {
        ml_tinker_forget_adapter(t, w->path);
    } else if (w->st == ML_OK && !is_open(t, w->model->session)) {
        w->st = ml_fail(&w->err, ML_EUSAGE, "the session has ended");
    } else if (w->st == ML_OK) {
        ml_json_begin(&o, '{');
        ml_json_put_word(
            &o, "sampling_session_id",
            ml_tinker_add_sampler(t, w->model->session, number, NULL, w->path)->id);
        ml_json_put_word(&o, "type", "save_weights_for_sampler");
        ml_json_end(&o, '}');
    }
    ml_tinker_work_answer(w);
}

void ml_tinker_run_load(ml_tinker_work *w) {
    bool optim = ml_tinker_true(w->body, "optimizer", false);
    ml_json_out o = { .to = &w->reply };
    ml_store_path p = { 0 };

    w->st = ml_store_parse(&p, &w->arena, w->t->opts.dir, ml_tinker_text(w->body, "path"),
                           &w->err);
    if (w->st == ML_OK && !ml_store_exists(&p))
        w->st = ml_fail(&w->err, ML_EUSAGE, "%s does not exist", p.uri);
    if (w->st == ML_OK && p.kind != ML_STORE_STATE && optim)
        w->st = ml_fail(&w->err, ML_EUSAGE,
                        "%s has no optimizer state: load the weights alone, or a path of "
                        "save_state",
                        p.uri);
    if (w->st == ML_OK)
        w->st = p.kind == ML_STORE_STATE
                    ? ml_lora_slot_load(w->model->slot, p.dir, optim, &w->err)
                    : ml_lora_slot_load_adapter(w->model->slot, p.dir, &w->err);
    if (w->st != ML_OK)
        return;
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "path", p.uri);
    ml_json_put_word(&o, "model_id", w->model->id);
    ml_json_put_word(&o, "type", "load_weights");
    ml_json_end(&o, '}');
}
