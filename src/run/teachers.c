#include "run/teachers.h"

#include <string.h>
#include <sys/stat.h>

#include "gen/local.h"
#include "gen/remote.h"

/* --- which model -------------------------------------------------------------------- */

static bool has_file(ml_arena *a, const char *dir, const char *name) {
    struct stat sb;
    return stat(ml_arena_printf(a, "%s/%s", dir, name), &sb) == 0;
}

static bool same_param(const ml_param *a, const ml_param *b) {
    return strcmp(a->name, b->name) == 0 && a->n_stack == b->n_stack &&
           a->n_dim == b->n_dim && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1];
}

static bool same_params(const ml_spec *a, const ml_spec *b) {
    if (strcmp(a->family, b->family) != 0 || a->n_param != b->n_param)
        return false;
    for (int32_t i = 0; i < a->n_param; i++)
        if (!same_param(&a->param[i], &b->param[i]))
            return false;
    return true;
}

/* Weights without a configuration are those of the actor's model. */
static ml_status is_another(ml_train_run *r, bool *out, ml_err *err) {
    ml_spec spec;
    ml_status st;

    *out = false;
    if (!has_file(&r->arena, r->teacher_dir, "config.json"))
        return ML_OK;
    st = ml_spec_open(&spec, r->teacher_dir, err);
    if (st != ML_OK)
        return st;
    *out = !same_params(&r->spec, &spec);
    ml_spec_close(&spec);
    return ML_OK;
}

ml_status ml_run_teachers_choose(ml_train_run *r, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    bool another = false;
    ml_status st =
        ml_train_run_find(r, o->teacher_load, o->teacher_step, &r->teacher_dir, err);

    if (st == ML_OK)
        st = is_another(r, &another, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--opd-teacher-load");
    r->teacher_engine = another || o->opd.top_k > 0 || o->opd.context_key;
    return st;
}

/* --- the engine --------------------------------------------------------------------- */

/* Both models must mean the same by a token id. */
static ml_status check_tokens(const ml_run_teachers *t, ml_err *err) {
    ml_train_run *r = t->run;
    ml_tokenizer *own = NULL;
    ml_status st;

    if (t->spec.n_vocab < ml_tokenizer_size(r->tokenizer))
        return ml_fail(
            err, ML_EUSAGE,
            "the teacher has %lld tokens, but the actor's tokenizer %d; expected "
            "a teacher with the same tokenizer",
            (long long)t->spec.n_vocab, ml_tokenizer_size(r->tokenizer));
    if (!has_file(&r->arena, r->teacher_dir, "tokenizer.json"))
        return ML_OK;
    st = ml_tokenizer_open(&own, r->teacher_dir, err);
    for (int32_t id = 0; st == ML_OK && id < ml_tokenizer_size(r->tokenizer); id++) {
        ml_str a = ml_tokenizer_token(r->tokenizer, id), b = ml_tokenizer_token(own, id);
        if (a.len && b.len && !ml_str_eq(a, b))
            st = ml_fail(err, ML_EUSAGE,
                         "token %d is \"%.*s\" for the teacher and \"%.*s\" for the actor; "
                         "expected a teacher with the same tokenizer",
                         id, (int)b.len, b.ptr, (int)a.len, a.ptr);
    }
    ml_tokenizer_close(own);
    return st;
}

static ml_engine_opts engine_opts(const ml_run_teachers *t, int32_t context) {
    enum { CONTEXTS = 2, RUNNING = 16, WAITING = 1 << 24 };
    const ml_run_opts *o = &t->run->opts;
    int64_t longest = context ? context : o->rollout.max_context;
    ml_engine_opts e = { .context = (int32_t)(longest && longest < t->spec.max_position
                                                  ? longest
                                                  : t->spec.max_position),
                         .max_running = RUNNING,
                         .max_waiting = WAITING,
                         .chunk = o->engine.chunk,
                         .max_top = (int32_t)(2 * o->opd.top_k) };

    e.kv_bytes =
        CONTEXTS * (size_t)ml_kv_pages_for(e.context) * ml_kv_bytes(&t->spec, &t->be, 1);
    return e;
}

static ml_status measure(ml_run_teachers *t, ml_err *err) {
    ml_run_opts *o = &t->run->opts;
    ml_checkpoint *from = NULL;
    ml_engine_memory m;
    ml_status st = ml_engine_measure(&m, &t->spec, &t->be, &t->engine, err);

    if (st == ML_OK)
        st = ml_checkpoint_open(&from, t->run->teacher_dir, err);
    if (st == ML_OK)
        st = ml_weights_check(&t->spec, from, err);
    if (st == ML_OK)
        o->engine_bytes +=
            ml_weights_bytes(&t->spec, from, ml_weights_dtype(&t->be, o->dtype)) + m.kv +
            m.act + m.scratch;
    ml_checkpoint_close(from);
    return st;
}

static ml_status open_engine(ml_run_teachers *t, int32_t context, ml_err *err) {
    ml_train_run *r = t->run;
    bool own = has_file(&r->arena, r->teacher_dir, "config.json");
    ml_status st =
        ml_spec_open(&t->spec, own ? r->teacher_dir : r->opts.hf_checkpoint, err);

    if (st == ML_OK)
        st = check_tokens(t, err);
    if (st == ML_OK)
        st = ml_backend_open(&t->be, &r->opts.backend, err);
    if (st == ML_OK) {
        t->engine = engine_opts(t, context);
        st = measure(t, err);
    }
    if (st != ML_OK)
        ml_err_prefix(err, "--opd-teacher-load");
    return st;
}

static ml_status start_engine(ml_run_teachers *t, ml_err *err) {
    const ml_run_opts *o = &t->run->opts;
    ml_local_opts local = { .engine = t->engine,
                            .spec = &t->spec,
                            .be = &t->be,
                            .dir = t->run->teacher_dir,
                            .dtype = o->dtype,
                            .version = 1 };
    ml_gen *gen;
    ml_status st = ml_local_open(&gen, &local, err);

    if (st != ML_OK) {
        ml_err_prefix(err, "--opd-teacher-load");
        return st;
    }
    t->teacher = ML_NEW(&t->arena, ml_teacher, 1);
    t->teacher[0] = (ml_teacher){ ML_TEACHER_DEFAULT,
                                  { gen, "the teacher", (float)o->rollout.temperature } };
    t->n = 1;
    return ML_OK;
}

/* --- servers ------------------------------------------------------------------------ */

/* The name of the teacher in a word of --opd-teacher-urls. */
static const char *name_of(ml_arena *a, const char *word) {
    const char *url = ml_teacher_url(word);
    return url > word ? ml_arena_str(a, word, (size_t)(url - word) - 1)
                      : ML_TEACHER_DEFAULT;
}

/* Miles' addresses end with the path of the request. */
static const char *address_of(ml_arena *a, const char *word) {
    static const char path[] = "/generate";
    const char *url = ml_teacher_url(word);
    size_t n = strlen(url), end = sizeof path - 1;

    return n > end && strcmp(url + n - end, path) == 0 ? ml_arena_str(a, url, n - end)
                                                       : url;
}

static ml_teacher *find(ml_run_teachers *t, const char *name) {
    for (int32_t i = 0; i < t->n; i++)
        if (strcmp(t->teacher[i].name, name) == 0)
            return &t->teacher[i];
    return NULL;
}

/* The names in --opd-teacher-urls. */
static void list_names(ml_run_teachers *t) {
    const ml_string_list *words = &t->run->opts.teacher_urls;

    t->teacher = ML_NEW(&t->arena, ml_teacher, words->n + 1);
    for (int i = 0; i < words->n; i++) {
        const char *name = name_of(&t->arena, words->word[i]);
        if (!find(t, name))
            t->teacher[t->n++] = (ml_teacher){
                name, { NULL, ml_arena_printf(&t->arena, "the teacher %s", name), 1 }
            };
    }
}

static ml_status connect_one(ml_run_teachers *t, ml_teacher *to, ml_err *err) {
    const ml_run_opts *o = &t->run->opts;
    const ml_string_list *words = &o->teacher_urls;
    const char **url = ML_NEW(&t->arena, const char *, words->n);
    ml_remote_opts remote = { .url = url,
                              .api_key = ml_secret_text(&t->run->teacher_key),
                              .spec = &t->run->spec,
                              .sglang = true,
                              .id_positions = o->opd.per_position,
                              .n_attempt = 60,
                              .retry_s = 1,
                              .connect_s = 10,
                              .request_s = o->mode.request_s,
                              .check_s = 30,
                              .check_timeout_s = 30,
                              .warn_s = 30 };

    for (int i = 0; i < words->n; i++)
        if (strcmp(name_of(&t->arena, words->word[i]), to->name) == 0)
            url[remote.n_url++] = address_of(&t->arena, words->word[i]);
    return ml_remote_open(&to->by.gen, &remote, err);
}

static ml_status connect_all(ml_run_teachers *t, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < t->n && st == ML_OK; i++)
        st = connect_one(t, &t->teacher[i], err);
    return st;
}

/* --- what rows say ------------------------------------------------------------------ */

/* Whether the metadata of a row has what its teacher needs. */
static ml_status check_row(const ml_run_teachers *t, const ml_distill *d, int64_t row,
                           ml_arena *a, ml_err *err) {
    const ml_dataset *ds = &t->run->dataset;
    const ml_teacher *found;
    ml_prompt p;
    ml_str metadata = { 0 };
    ml_status st = ml_dataset_prompt(&p, ds, row, a, err);

    if (st != ML_OK)
        return st;
    if (p.metadata)
        metadata = (ml_str){ p.source.ptr + p.metadata->begin,
                             p.metadata->end - p.metadata->begin };
    if (d->n_teacher)
        st = ml_teacher_of(&found, d, metadata, err);
    if (st == ML_OK && d->prompt.key && !ml_json_get(p.metadata, d->prompt.key))
        st = ml_fail(err, ML_EFORMAT,
                     "metadata has no \"%s\", the teacher's prompt (--opd-context-key)",
                     d->prompt.key);
    if (st != ML_OK)
        ml_dataset_blame(ds, row, err);
    return st;
}

static ml_status check_rows(const ml_run_teachers *t, ml_err *err) {
    const ml_dataset *ds = &t->run->dataset;
    const ml_run_opts *o = &t->run->opts;
    ml_distill d = { .teacher = t->teacher,
                     .n_teacher = t->n,
                     .key = o->opd.key,
                     .prompt = { .key = o->opd.context_key } };
    ml_status st = ML_OK;

    if (ds->opts.make || (t->n < 2 && !o->opd.context_key) || o->rollout.load_debug)
        return ML_OK;
    for (int64_t i = 0; i < ds->rows.n && st == ML_OK; i++) {
        ml_arena a;
        ml_arena_init(&a, "a row");
        st = check_row(t, &d, i, &a, err);
        ml_arena_release(&a);
    }
    return st;
}

/* --- open, start, close -------------------------------------------------------------- */

ml_status ml_run_teachers_open(ml_run_teachers *t, ml_train_run *r, int32_t context,
                               ml_err *err) {
    ml_status st;

    *t = (ml_run_teachers){ .run = r };
    ml_arena_init(&t->arena, "teachers");
    if (!r->opts.algo.use_opd)
        return ML_OK;
    list_names(t);
    st = check_rows(t, err);
    return st == ML_OK && r->teacher_engine ? open_engine(t, context, err) : st;
}

ml_status ml_run_teachers_start(ml_run_teachers *t, ml_err *err) {
    if (t->run->opts.opd.context_key)
        t->encoder = ml_encoder_new(t->run->tokenizer);
    return t->run->teacher_engine ? start_engine(t, err) : connect_all(t, err);
}

ml_distill ml_run_teachers_distill(ml_run_teachers *t, ml_gen *student) {
    const ml_run_opts *o = &t->run->opts;
    ml_scorer engine = { student, "the engine", (float)o->rollout.temperature };
    ml_distill d = { .teacher = t->teacher,
                     .n_teacher = t->n,
                     .key = o->opd.key,
                     .student = engine,
                     .top_k = (int32_t)o->opd.top_k,
                     .set = o->opd.set,
                     .weight = o->opd.weight,
                     .prompt = { .key = o->opd.context_key,
                                 .sibling_reward = o->opd.sibling_reward,
                                 .chat = o->data.apply_chat_template,
                                 .encoder = t->encoder,
                                 .chat_template = t->run->chat_template,
                                 .kwargs = t->run->dataset.template_kwargs } };

    if (o->algo.use_opd && student && o->opd_type && strcmp(o->opd_type, "self") == 0) {
        ml_teacher *self = ML_NEW(&t->arena, ml_teacher, 1);
        *self = (ml_teacher){ ML_TEACHER_DEFAULT, engine };
        d.teacher = self;
        d.n_teacher = 1;
    }
    return d;
}

void ml_run_teachers_close(ml_run_teachers *t) {
    if (!t->run)
        return;
    for (int32_t i = 0; i < t->n; i++)
        if (t->teacher[i].by.gen)
            t->teacher[i].by.gen->close(t->teacher[i].by.gen);
    if (t->encoder)
        ml_encoder_free(t->encoder);
    if (t->be.name)
        ml_backend_close(&t->be);
    ml_spec_close(&t->spec);
    ml_arena_release(&t->arena);
}
