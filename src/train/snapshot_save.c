#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/background.h"
#include "base/bug.h"
#include "base/dir.h"
#include "comm/self/self.h"
#include "model/export.h"
#include "train/snapshot_priv.h"

#define TEMP ML_SNAPSHOT_TEMP
#define ROLLOUT_ID "{rollout_id}"

/* A directory of snapshots, and the snapshot being written there. */
typedef struct place {
    const char *dir;
    ml_save_buffer image;
    ml_save_buffer
        mtp;       /* of its multi-token prediction module; spec NULL: none is trained */
    ml_text state; /* state.json */
} place;

/* The actor is written last: its tracker commits the save. */
enum { CRITIC, ACTOR, N_PLACE };

struct ml_saver {
    ml_saver_opts opts;
    ml_comm *comm;
    place place[N_PLACE]; /* dir NULL: nothing is saved there */
    int64_t iteration;
    ml_background job;
    ml_arena arena; /* of one save */
};

/* --- the directory ---------------------------------------------------------- */

static ml_status write_text(ml_saver *s, const char *dir, const char *name,
                            const ml_text *text, ml_err *err) {
    return ml_file_replace(ml_arena_printf(&s->arena, "%s/%s", dir, name),
                           (ml_str){ text->ptr, text->len }, err);
}

static ml_status write_sums(ml_saver *s, const char *dir, ml_err *err) {
    ml_names names;
    ml_text sums = { 0 };
    ml_status st = ml_snapshot_files(&names, dir, &s->arena, err);

    for (int32_t i = 0; i < names.n && st == ML_OK; i++)
        if (strcmp(names.name[i], ML_SNAPSHOT_SUMS) != 0)
            st = ml_snapshot_sum(&sums, dir, names.name[i], err);
    if (st == ML_OK)
        st = write_text(s, dir, ML_SNAPSHOT_SUMS, &sums, err);
    ml_text_release(&sums);
    return st;
}

/* An EAGLE-3 head is a checkpoint of its own, with the files of the one it began with. */
static ml_status write_head(ml_saver *s, place *p, const char *dir, ml_err *err) {
    ml_export_opts hf = { .dir = ml_arena_printf(&s->arena, "%s/" ML_SNAPSHOT_DRAFT, dir),
                          .keep_dtype = true };
    ml_status st = ml_export_hf(&p->mtp.weights, p->mtp.spec, p->mtp.from, &hf, err);

    return st == ML_OK ? ml_dir_sync(hf.dir, err) : st;
}

static ml_status write_hf(ml_saver *s, place *p, const char *dir, ml_err *err) {
    ml_save_buffer *m = &p->image;
    bool head = p->mtp.spec && p->mtp.from != m->from, module = p->mtp.spec && !head;
    ml_export_opts hf = { .dir = dir,
                          .keep_dtype = true,
                          .also = module ? &p->mtp.weights : NULL,
                          .also_spec = module ? p->mtp.spec : NULL,
                          .bring = m->streamed ? ml_save_buffer_bring : NULL,
                          .ud = m };
    ml_status st = ml_dir_make(dir, err), ended;

    if (st == ML_OK)
        st = m->lora ? ml_lora_save(m->lora, &m->weights, dir, err)
                     : ml_export_hf(&m->weights, m->spec, m->from, &hf, err);
    ended = ml_save_buffer_end(m, st == ML_OK ? err : NULL);
    st = st == ML_OK ? ended : st;
    /* If the run started from a snapshot, its state files were copied too. */
    unlink(ml_arena_printf(&s->arena, "%s/%s", dir, ML_SNAPSHOT_STATE));
    unlink(ml_arena_printf(&s->arena, "%s/%s", dir, ML_SNAPSHOT_SUMS));
    return st == ML_OK && head ? write_head(s, p, dir, err) : st;
}

/* The files of optimizer states.  Without a copy, other ranks send theirs: dir NULL. */
static ml_status write_tensors(ml_saver *s, place *p, const char *dir, ml_err *err) {
    ml_status st = ml_save_buffer_write(&p->image, dir, &s->arena, err);

    return st == ML_OK && p->mtp.spec ? ml_save_buffer_write(&p->mtp, dir, &s->arena, err)
                                      : st;
}

static ml_status write_files(ml_saver *s, place *p, const char *dir, ml_err *err) {
    ml_status st = write_hf(s, p, dir, err);

    if (st == ML_OK)
        st = write_tensors(s, p, dir, err);
    if (st == ML_OK)
        st = write_text(s, dir, ML_SNAPSHOT_STATE, &p->state, err);
    if (st == ML_OK)
        st = write_sums(s, dir, err);
    return st == ML_OK ? ml_dir_sync(dir, err) : st;
}

/* A directory being removed must not look like a snapshot. */
static ml_status remove_snapshot(ml_saver *s, const char *dir, const char *name,
                                 ml_err *err) {
    const char *path = ml_arena_printf(&s->arena, "%s/%s", dir, name);
    const char *temp = ml_arena_printf(&s->arena, "%s" TEMP "old", path);

    if (rename(path, temp) != 0)
        return ml_fail(err, ML_EIO, "%s: cannot rename to %s: %s", path, temp,
                       strerror(errno));
    return ml_dir_remove(temp, err);
}

static bool retained(const ml_saver_opts *o, int64_t iteration) {
    return o->retain_interval && iteration % o->retain_interval == 0;
}

static ml_status remove_older(ml_saver *s, const char *dir, ml_err *err) {
    /* With retain_interval alone, only the newest of the others is kept. */
    int32_t keep = s->opts.retain_interval && !s->opts.keep_last ? 1 : s->opts.keep_last;
    ml_names names;
    ml_status st;
    int32_t n_kept = 0;

    if (!keep)
        return ML_OK;
    st = ml_dir_list(&names, dir, &s->arena, err);
    for (int32_t i = names.n - 1; i >= 0 && st == ML_OK; i--) {
        int64_t n = ml_snapshot_number(names.name[i]);
        if (n == ML_NONE || n > s->iteration)
            continue;
        if (n_kept++ >= keep && !retained(&s->opts, n))
            st = remove_snapshot(s, dir, names.name[i], err);
    }
    return st;
}

/* The temporary name of a directory being written. */
static const char *temp_of(ml_saver *s, const char *path) {
    return ml_arena_printf(&s->arena, "%s" TEMP "%ld", path, (long)getpid());
}

/* Snapshots never exist without a tracker, not even the first one. */
static ml_status begin_tracker(ml_saver *s, const char *dir, ml_err *err) {
    const char *path = ml_arena_printf(&s->arena, "%s/%s", dir, ML_SNAPSHOT_TRACKER);
    return access(path, F_OK) == 0 ? ML_OK : ml_file_replace(path, ml_str_of("-1"), err);
}

static ml_status write_place(ml_saver *s, place *p, ml_err *err) {
    const char *path = ml_snapshot_path(&s->arena, p->dir, s->iteration);
    const char *temp = temp_of(s, path);
    ml_text number = { 0 };
    ml_status st = write_files(s, p, temp, err);

    if (st == ML_OK)
        st = begin_tracker(s, p->dir, err);
    if (st == ML_OK)
        st = ml_dir_replace(temp, path, err);
    else
        ml_dir_remove(temp, NULL);
    if (st == ML_OK)
        st = ml_dir_sync(p->dir, err);
    ml_text_printf(&number, "%lld", (long long)s->iteration);
    if (st == ML_OK)
        st = write_text(s, p->dir, ML_SNAPSHOT_TRACKER, &number, err);
    ml_text_release(&number);
    return st;
}

/* Writes the weights alone, for --save-hf. */
static ml_status write_copy(ml_saver *s, ml_err *err) {
    ml_text path = { 0 };
    const char *temp;
    ml_status st;

    if (!s->opts.hf)
        return ML_OK;
    ml_text_fill(&path, s->opts.hf, ROLLOUT_ID, s->iteration);
    temp = temp_of(s, path.ptr);
    ml_dir_remove(temp, NULL); /* left by a process that died with this number */
    st = write_hf(s, &s->place[ACTOR], temp, err);
    if (st == ML_OK)
        st = ml_dir_replace(temp, path.ptr, err);
    else
        ml_dir_remove(temp, NULL);
    ml_text_release(&path);
    return st;
}

/* Nothing of the previous save is removed until this one is complete. */
static ml_status write_all(void *ud, ml_err *err) {
    ml_saver *s = ud;
    ml_status st = write_copy(s, err);

    for (int i = 0; i < N_PLACE && st == ML_OK; i++)
        if (s->place[i].dir)
            st = write_place(s, &s->place[i], err);
    for (int i = 0; i < N_PLACE && st == ML_OK; i++)
        if (s->place[i].dir)
            st = remove_older(s, s->place[i].dir, err);
    return st;
}

/* What ranks other than the first do while it writes. */
static ml_status send_all(ml_saver *s, ml_err *err) {
    ml_status st = ML_OK;

    if (s->opts.hf)
        st = ml_save_buffer_serve(&s->place[ACTOR].image, err);
    for (int i = 0; i < N_PLACE && st == ML_OK && !s->opts.async; i++) {
        if (!s->place[i].dir)
            continue;
        st = ml_save_buffer_serve(&s->place[i].image, err);
        if (st == ML_OK)
            st = write_tensors(s, &s->place[i], NULL, err);
    }
    return st;
}

/* --- open, save, close ------------------------------------------------------ */

/* Whether a name is `form` with a number in place of {rollout_id}, followed by the suffix
 * of a temporary directory whose process, on this machine, no longer exists.  The weights
 * alone are written outside --save, where another run may write as well. */
static bool is_dead_copy(const char *form, const char *name) {
    const char *number = strstr(form, ROLLOUT_ID), *rest = number + strlen(ROLLOUT_ID);
    size_t head = (size_t)(number - form), digits;
    char *end;
    long pid;

    if (strncmp(name, form, head) != 0 || !(digits = strspn(name + head, "0123456789")))
        return false;
    name += head + digits;
    if (strncmp(name, rest, strlen(rest)) != 0)
        return false;
    name += strlen(rest);
    if (strncmp(name, TEMP, strlen(TEMP)) != 0)
        return false;
    pid = strtol(name + strlen(TEMP), &end, 10);
    return pid > 0 && !*end && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static ml_status tidy_copies(ml_saver *s, ml_err *err) {
    const char *slash = s->opts.hf ? strrchr(s->opts.hf, '/') : NULL;
    ml_names names = { 0 };
    ml_status st;
    struct stat sb;
    const char *dir;

    if (!slash || !strstr(slash, ROLLOUT_ID)) /* the id is in a parent directory: each
                                                 copy has its own */
        return ML_OK;
    dir = ml_arena_str(&s->arena, s->opts.hf, (size_t)(slash - s->opts.hf));
    if (stat(dir, &sb) != 0)
        return ML_OK;
    st = ml_dir_list(&names, dir, &s->arena, err);
    for (int32_t i = 0; i < names.n && st == ML_OK; i++)
        if (is_dead_copy(slash + 1, names.name[i]))
            st =
                ml_dir_remove(ml_arena_printf(&s->arena, "%s/%s", dir, names.name[i]), err);
    return st;
}

static ml_status prepare_dirs(ml_saver *s, ml_err *err) {
    ml_status st = ML_OK;

    for (int i = 0; i < N_PLACE && st == ML_OK; i++) {
        if (!s->place[i].dir)
            continue;
        st = ml_dir_make(s->place[i].dir, err);
        if (st == ML_OK)
            st = ml_snapshot_tidy(s->place[i].dir, err);
    }
    return st == ML_OK ? tidy_copies(s, err) : st;
}

ml_status ml_saver_open(ml_saver **out, const ml_saver_opts *opts, ml_err *err) {
    ml_saver *s = calloc(1, sizeof *s);
    ml_status st = ML_OK;

    if (!s)
        return ml_fail(err, ML_ENOMEM, "out of memory for a snapshot");
    s->opts = *opts;
    s->comm = opts->comm ? opts->comm : ml_comm_self();
    s->place[ACTOR].dir = opts->dir;
    s->place[CRITIC].dir = opts->critic_dir;
    ml_arena_init(&s->arena, "a save");
    if (s->comm->rank == 0)
        st = prepare_dirs(s, err);
    st = s->comm->agree(s->comm, st, err);
    if (st == ML_OK)
        *out = s;
    else
        ml_saver_close(s);
    return st;
}

static void describe(place *p, const ml_save_state *state, int64_t n_sample) {
    p->state.len = 0;
    ml_text_printf(&p->state,
                   "{\n \"iteration\": %lld,\n \"optimizer_step\": %lld,\n \"samples\": "
                   "%lld,\n \"weight_version\": %llu,\n",
                   (long long)state->iteration, (long long)p->image.n_step,
                   (long long)n_sample, (unsigned long long)p->image.weights.version);
    if (p->mtp.spec)
        ml_text_printf(&p->state, " \"mtp_optimizer_step\": %lld,\n",
                       (long long)p->mtp.n_step);
    ml_text_printf(&p->state, " \"data\": %.*s,\n \"config\": %.*s\n}\n",
                   (int)state->data.len, state->data.ptr, (int)state->config.len,
                   state->config.ptr);
}

static ml_status keep(ml_saver *s, ml_save_buffer *m, ml_err *err) {
    return s->opts.async ? ml_save_buffer_copy(m, &s->arena, err)
                         : ml_save_buffer_fetch(m, &s->arena, err);
}

/* After a copy the trainer may continue. */
static ml_status take_place(ml_saver *s, int i, const ml_save_models *m,
                            const ml_save_state *state, ml_err *err) {
    place *p = &s->place[i];
    ml_trainer *t = i == ACTOR ? m->actor : m->critic;
    const ml_checkpoint *from = i == ACTOR ? s->opts.from : s->opts.critic_from;
    ml_status st;

    if (!p->dir)
        return ML_OK;
    ml_save_buffer_take(&p->image, ml_trainer_optimizer(t), ml_trainer_lora(t), from,
                        i == ACTOR ? m->ref : NULL, !s->opts.no_optim, &s->arena);
    if (ml_trainer_mtp(t))
        ml_save_buffer_take_mtp(&p->mtp, ml_trainer_mtp(t), from, !s->opts.no_optim,
                                &s->arena);
    describe(p, state, ml_trainer_samples(t));
    st = keep(s, &p->image, err);
    return st == ML_OK && p->mtp.spec ? keep(s, &p->mtp, err) : st;
}

ml_status ml_saver_save(ml_saver *s, const ml_save_models *models,
                        const ml_save_state *state, ml_err *err) {
    ml_status st = ml_saver_wait(s, err);

    ML_BUG_IF(s->opts.critic_dir && !models->critic);
    st = s->comm->agree(s->comm, st, err);
    if (st != ML_OK)
        return st;
    ml_arena_release(&s->arena);
    ml_arena_init(&s->arena, "a save");
    s->iteration = state->iteration;
    for (int i = 0; i < N_PLACE && st == ML_OK; i++)
        st = take_place(s, i, models, state, err);
    if (st == ML_OK && s->comm->rank > 0)
        st = send_all(s, err);
    else if (st == ML_OK)
        st = s->opts.async ? ml_background_start(&s->job, write_all, s, err)
                           : write_all(s, err);
    return s->comm->agree(s->comm, st, err);
}

ml_status ml_saver_wait(ml_saver *s, ml_err *err) {
    return ml_background_wait(&s->job, err);
}

void ml_saver_close(ml_saver *s) {
    if (!s)
        return;
    ml_saver_wait(s, NULL);
    for (int i = 0; i < N_PLACE; i++) {
        ml_text_release(&s->place[i].state);
        ml_save_buffer_release(&s->place[i].image);
        ml_save_buffer_release(&s->place[i].mtp);
    }
    ml_arena_release(&s->arena);
    free(s);
}
