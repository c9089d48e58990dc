#include "cli/commands/doctor_checks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "run/rollouts.h"
#include "run/evaluator.h"
#include "run/opts.h"
#include "model/weights.h"
#include "plugin/model_family.h"
#include "run/extensions.h"
#include "text/chat/chat_template.h"
#include "train/memory.h"

#define TRAINS (ML_CMD_TRAIN | ML_CMD_SFT)
#define COMPUTES                                                                           \
    (TRAINS | ML_CMD_EVAL | ML_CMD_SERVE | ML_CMD_TINKER | ML_CMD_SCORE |                  \
     ML_CMD_BENCH_ENGINE)
#define READS (ML_CMD_TOKENIZE | ML_CMD_CHAT_TEMPLATE)

typedef struct job {
    const ml_config *c;
    ml_arena arena;
    ml_text said; /* result of the current check; empty: the command does not need it */
    size_t weight_bytes;
    int64_t n_param; /* 0: the model could not be read */
} job;

/* --- the model ------------------------------------------------------------------- */

static ml_status check_model(job *j, ml_err *err) {
    ml_checkpoint *from = NULL;
    ml_spec spec = { 0 };
    ml_status st;

    if (!j->c->run.hf_checkpoint)
        return ML_OK;
    st = ml_model_open(&spec, j->c->run.hf_checkpoint, j->c->run.arch.spec.word,
                       j->c->run.arch.spec.n, err);
    if (st == ML_OK && j->c->load_format != ML_LOAD_DUMMY)
        st = ml_checkpoint_open(&from, j->c->run.hf_checkpoint, err);
    if (st == ML_OK && from)
        st = ml_weights_check(&spec, from, err);
    if (st == ML_OK) {
        j->n_param = ml_spec_param_count(&spec);
        j->weight_bytes = ml_weights_bytes(&spec, from, ML_WEIGHT_AUTO);
        ml_text_printf(&j->said, "%s: %s, %lld parameters, %.2f GB",
                       j->c->run.hf_checkpoint, spec.family, (long long)j->n_param,
                       (double)j->weight_bytes / 1e9);
    }
    ml_checkpoint_close(from);
    ml_spec_close(&spec);
    return st;
}

static ml_status check_text(job *j, ml_err *err) {
    const char *own = j->c->serve.tokenizer_path;
    const char *dir = own ? own : j->c->run.hf_checkpoint;
    bool wants = j->c->run.data.apply_chat_template || j->c->run.chat_template;
    ml_chat_template *chat = NULL;
    ml_tokenizer *tok = NULL;
    ml_err why = { 0 };
    ml_status st;

    if (!dir || j->c->serve.no_tokenizer)
        return ML_OK;
    st = ml_tokenizer_open(&tok, dir, err);
    if (st == ML_OK) {
        st = ml_chat_template_open(&chat, dir, j->c->run.chat_template, &why);
        ml_text_printf(&j->said, "%s; %s", dir,
                       st == ML_OK ? "with a chat template" : "without a chat template");
        ml_chat_template_close(chat);
        ml_tokenizer_close(tok);
        if (st != ML_OK && wants)
            *err = why;
        else
            st = ML_OK;
    }
    return st;
}

/* --- data and rewards ------------------------------------------------------------ */

static ml_dataset_opts rows_of(const ml_config *c, const char *path) {
    ml_dataset_opts o = c->run.data;

    o.path = path;
    o.apply_chat_template = false; /* prompts are not rendered */
    return o;
}

static ml_status check_data(job *j, ml_err *err) {
    const char *path = j->c->run.rollout.load_debug ? NULL : j->c->run.data.path;
    ml_dataset_opts o = rows_of(j->c, path);
    ml_dataset ds = { 0 };
    ml_status st = path ? ml_dataset_open(&ds, &o, err) : ML_OK;

    if (path && st == ML_OK)
        ml_text_printf(&j->said, "%s: %lld rows", path, (long long)ds.rows.n);
    ml_dataset_close(&ds);
    return st;
}

static const char *either(const char *own, const char *other) {
    return own ? own : other;
}

static ml_status check_set(job *j, const ml_eval_spec *s, ml_err *err) {
    const ml_config *c = j->c;
    ml_run_opts own = ml_evaluator_config(&c->run, s);
    ml_dataset_opts o = rows_of(c, s->path);
    ml_rewards *rewards = NULL;
    ml_dataset ds = { 0 };
    ml_status st;

    o.input_key = either(s->input_key, either(c->run.rollout.eval_input_key, o.input_key));
    o.label_key = either(s->label_key, either(c->run.rollout.eval_label_key, o.label_key));
    o.metadata_key = either(s->metadata_key, o.metadata_key);
    o.metadata_more = s->metadata_more;
    st = ml_dataset_open(&ds, &o, err);
    if (st == ML_OK)
        st = ml_reward_check(&own, &ds, err);
    if (st == ML_OK)
        st = ml_rewards_open_for(&rewards, &j->arena, &own, err);
    if (st == ML_OK)
        ml_text_printf(&j->said, "%s%s: %lld rows", j->said.len ? ", " : "", s->name,
                       (long long)ds.rows.n);
    else
        ml_err_prefix(err, "evaluation set '%s'", s->name);
    ml_rewards_close(rewards);
    ml_dataset_close(&ds);
    return st;
}

static ml_status check_evals(job *j, ml_err *err) {
    ml_eval_spec *spec = NULL;
    int32_t n = 0;
    ml_status st = ml_evaluator_specs(&spec, &n, &j->arena, &j->c->run, err);

    for (int32_t i = 0; i < n && st == ML_OK; i++)
        st = check_set(j, &spec[i], err);
    return st;
}

static ml_status check_reward(job *j, ml_err *err) {
    const ml_config *c = j->c;
    ml_dataset_opts o = rows_of(c, c->run.data.path);
    const char *named = either(c->run.custom_rm_path, c->run.reward.rm_type);
    ml_rewards *rewards = NULL;
    ml_dataset ds = { 0 };
    ml_err unread = { 0 }; /* the data check reports its own errors */
    ml_status st = ML_OK;

    if (c->run.rollout.load_debug)
        return ML_OK;
    if (!named && ml_reward_from_environment(&c->run))
        named = "from the environment";
    if (o.path && ml_dataset_open(&ds, &o, &unread) == ML_OK) {
        st = ml_reward_check(&c->run, &ds, err);
        named = named ? named : "from each row's metadata";
    }
    if (st == ML_OK)
        st = ml_rewards_open_for(&rewards, &j->arena, &c->run, err);
    if (st == ML_OK && named)
        ml_text_printf(&j->said, "%s", named);
    ml_rewards_close(rewards);
    ml_dataset_close(&ds);
    return st;
}

/* --- training -------------------------------------------------------------------- */

static ml_status check_options(job *j, ml_err *err) {
    ml_run_opts o = j->c->run;

    return j->n_param ? ml_run_opts_complete(&o, err) : ML_OK; /* against config.json */
}

static ml_status check_algorithm(job *j, ml_err *err) {
    ml_recipe recipe;
    ml_status st = ml_recipe_resolve(&recipe, &j->c->run.algo, err);

    ml_loop_extensions_close();
    return st;
}

static ml_status check_extensions(job *j, ml_err *err) {
    ml_loop_extensions extensions = { 0 };
    ml_status st = ml_loop_extensions_resolve(&extensions, &j->c->run.extensions.path, err);

    ml_loop_extensions_close();
    return st;
}

/* --- the machine ----------------------------------------------------------------- */

/* The directory itself or its nearest existing ancestor. */
static const char *nearest(ml_arena *a, const char *dir) {
    char *path = ml_arena_str(a, dir, strlen(dir)), *slash;

    while (access(path, F_OK) != 0) {
        slash = strrchr(path, '/');
        if (!slash || slash == path)
            return slash ? "/" : ".";
        *slash = 0;
    }
    return path;
}

/* Weights, f32 masters of bf16 ones, and the moments of Adam. */
static double snapshot_bytes(const job *j) {
    double n = (double)j->n_param, weights = (double)j->weight_bytes;
    double masters = weights < 4 * n ? 4 * n : 0;

    return weights + (j->c->run.save_optim ? masters + 8 * n : 0);
}

static ml_status check_disk(job *j, ml_err *err) {
    const char *save = j->c->run.save, *dir;
    struct statvfs fs;
    struct stat is;
    double left;

    if (!save)
        return ML_OK;
    dir = nearest(&j->arena, save);
    if (stat(dir, &is) == 0 && !S_ISDIR(is.st_mode))
        return ml_fail(err, ML_EIO, "--save %s: %s is not a directory", save, dir);
    if (access(dir, W_OK | X_OK) != 0)
        return ml_fail(err, ML_EIO, "--save %s: cannot write to %s: %s", save, dir,
                       strerror(errno));
    if (statvfs(dir, &fs) != 0)
        return ml_fail(err, ML_EIO, "--save %s: %s: %s", save, dir, strerror(errno));
    left = (double)fs.f_bavail * (double)fs.f_frsize;
    if (left < snapshot_bytes(j))
        return ml_fail(err, ML_EIO,
                       "--save %s: %.2f GB free, but a snapshot needs about %.2f GB: free "
                       "space, choose another directory, or add --no-save-optim",
                       save, left / 1e9, snapshot_bytes(j) / 1e9);
    ml_text_printf(&j->said, "%s: %.2f GB free, a snapshot needs about %.2f GB", save,
                   left / 1e9, snapshot_bytes(j) / 1e9);
    return ML_OK;
}

static ml_status check_device(job *j, ml_err *err) {
    ml_backend_opts o = j->c->run.backend;
    ml_backend be = { 0 };
    ml_status st = ml_backend_open(&be, &o, err);

    if (st != ML_OK)
        return st;
    ml_text_printf(&j->said, "%s %s%s%s, %.1f GB of memory available", be.name, be.level,
                   be.path ? ", " : "", be.path ? be.path : "",
                   (double)ml_memory_available(&be) / 1e9);
    ml_backend_close(&be);
    return ML_OK;
}

/* --- all checks ------------------------------------------------------------------ */

static const struct {
    const char *name;
    unsigned cmds;
    ml_status (*run)(job *j, ml_err *err);
} checks[] = {
    { "model", COMPUTES | ML_CMD_CONVERT, check_model },
    { "text", (COMPUTES | READS) & ~(unsigned)ML_CMD_SCORE, check_text },
    { "data", TRAINS, check_data },
    { "evaluation", ML_CMD_TRAIN | ML_CMD_EVAL, check_evals },
    { "reward", ML_CMD_TRAIN, check_reward },
    { "options", TRAINS, check_options },
    { "algorithm", ML_CMD_TRAIN, check_algorithm },
    { "extensions", ML_CMD_TRAIN | ML_CMD_EVAL, check_extensions },
    { "disk", TRAINS, check_disk },
    { "device", COMPUTES, check_device },
};

int ml_doctor_checks(const ml_config *c, ml_cmd cmd, ml_status *first) {
    job j = { .c = c };
    int n_wrong = 0;

    *first = ML_OK;
    ml_arena_init(&j.arena, "checks");
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        ml_err err = { 0 };
        ml_status st = checks[i].cmds & cmd ? checks[i].run(&j, &err) : ML_OK;
        if (st != ML_OK)
            printf("%-10s ERROR: %s\n", checks[i].name, err.msg);
        else if (j.said.len)
            printf("%-10s ok: %s\n", checks[i].name, j.said.ptr);
        if (st != ML_OK && n_wrong++ == 0)
            *first = st;
        ml_text_release(&j.said);
        j.said = (ml_text){ 0 };
    }
    ml_arena_release(&j.arena);
    return n_wrong;
}
