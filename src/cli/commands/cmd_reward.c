/* miles reward: rewards of recorded samples, one JSON object per line in and out. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "run/rollouts.h"
#include "io/end_tokens.h"
#include "text/tokenizer/tokenizer.h"

#define BATCH 256 /* samples in flight; lines are written in input order */

/* A line of the input and its result. */
typedef struct entry {
    ml_arena arena;
    char *line;
    miles_reward_in in;
    ml_text out;
    double reward; /* 0 if there is none */
    bool used;
    char why[300]; /* why there is no reward */
} entry;

typedef struct reward_job {
    ml_rewards *rewards;
    entry *entry; /* [BATCH] */
    int n;
    int64_t n_line, n_sample, seed;
    double sum;
    ml_text stop[ML_END_TOKENS]; /* [n_stop] the model's end tokens as text */
    int32_t n_stop;
    char why[300]; /* why the first sample without a reward has none */
} reward_job;

/* --- input ---------------------------------------------------------------------------- */

static void take_text(const ml_json *v, const char **out, size_t *len) {
    *out = v && v->type == ML_JSON_STRING ? v->text.ptr : NULL;
    *len = *out ? v->text.len : 0;
}

static bool was_cut(const ml_json *doc) {
    const ml_json *status = ml_json_get(doc, "status");

    return status && status->type == ML_JSON_STRING &&
           !ml_str_eq(status->text, ml_str_of("completed"));
}

/* As in training, an answer is graded without its end token. */
static void take_response(const reward_job *j, miles_reward_in *in, const ml_json *doc) {
    take_text(ml_json_get(doc, "response"), &in->response, &in->response_len);
    in->raw_response = in->response;
    in->raw_response_len = in->response_len;
    for (int32_t i = 0; i < j->n_stop && in->response && !was_cut(doc); i++) {
        const ml_text *stop = &j->stop[i];
        if (stop->len && in->response_len >= stop->len &&
            memcmp(in->response + in->response_len - stop->len, stop->ptr, stop->len) ==
                0) {
            in->response_len -= stop->len;
            return;
        }
    }
}

static void take_json(const char *line, const ml_json *v, const char **out, size_t *len) {
    *out = v && v->type != ML_JSON_NULL ? line + v->begin : NULL;
    *len = *out ? v->end - v->begin : 0;
}

/* Text, or a list of messages. */
static void take_prompt(entry *e, const ml_json *prompt) {
    if (prompt && prompt->type == ML_JSON_ARRAY)
        take_json(e->line, prompt, &e->in.messages, &e->in.messages_len);
    else
        take_text(prompt, &e->in.prompt, &e->in.prompt_len);
}

static void take_tokens(entry *e, const ml_json *tokens) {
    int64_t *id;

    if (!tokens || tokens->type != ML_JSON_ARRAY)
        return;
    id = ML_NEW(&e->arena, int64_t, tokens->n + 1);
    for (const ml_json *v = tokens->child; v; v = v->next)
        ml_json_i64(v, &id[e->in.n_token++]);
    e->in.token = id;
}

static ml_status read_sample(reward_job *j, entry *e, ml_str line, ml_err *err) {
    const ml_json *doc = NULL, *index;
    char name[60];
    ml_status st;

    ml_arena_init(&e->arena, "sample");
    e->used = true;
    e->line = ml_arena_str(&e->arena, line.ptr, line.len);
    snprintf(name, sizeof name, "standard input, line %lld", (long long)j->n_line);
    st = ml_json_parse(&doc, &e->arena, (ml_str){ e->line, line.len }, name, err);
    if (st != ML_OK)
        return st;
    if (doc->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EFORMAT, "%s: %s; expected an object with a response", name,
                       ml_json_what(doc));
    e->in =
        (miles_reward_in){ .size = sizeof e->in, .index = j->n_sample, .seed = j->seed };
    take_prompt(e, ml_json_get(doc, "prompt"));
    take_response(j, &e->in, doc);
    take_json(e->line, ml_json_get(doc, "label"), &e->in.label, &e->in.label_len);
    take_json(e->line, ml_json_get(doc, "metadata"), &e->in.metadata, &e->in.metadata_len);
    take_tokens(e, ml_json_get(doc, "tokens"));
    index = ml_json_get(doc, "index");
    if (index)
        ml_json_i64(index, &e->in.index);
    return ML_OK;
}

/* --- output --------------------------------------------------------------------------- */

/* Called on a reward thread. */
static void write_result(void *ud, const ml_reward_result *r) {
    entry *e = ud;

    e->out.len = 0;
    e->reward = r->outcome == ML_REWARD_OK ? r->reward : 0.0;
    ml_text_printf(&e->out, "{\"reward\": ");
    if (r->outcome == ML_REWARD_OK)
        ml_json_number(&e->out, r->reward);
    else
        ml_text_printf(&e->out, "null");
    ml_text_printf(&e->out, ", \"outcome\": \"%s\", \"ms\": %.3f",
                   ml_reward_outcome_name(r->outcome), r->ms);
    if (r->json[0] == '{')
        ml_text_printf(&e->out, ", \"detail\": %s", r->json);
    e->why[0] = 0;
    if (r->outcome != ML_REWARD_OK) {
        ml_str_copy(e->why, sizeof e->why, ml_str_of(r->why));
        ml_text_printf(&e->out, ", \"why\": ");
        ml_json_quote(&e->out, ml_str_of(r->why));
    }
    ml_text_printf(&e->out, "}");
}

/* Waits for the samples in flight and prints them in order. */
static ml_status flush(reward_job *j, ml_err *err) {
    ml_rewards_wait(j->rewards);
    for (int i = 0; i < j->n; i++) {
        j->sum += j->entry[i].reward;
        if (!j->why[0])
            memcpy(j->why, j->entry[i].why, sizeof j->why);
        puts(j->entry[i].out.ptr);
    }
    for (int i = 0; i < BATCH; i++)
        if (j->entry[i].used) {
            ml_arena_release(&j->entry[i].arena);
            j->entry[i].used = false;
        }
    j->n = 0;
    if (fflush(stdout) != 0)
        return ml_fail(err, ML_EIO, "cannot write standard output: %s", strerror(errno));
    return ML_OK;
}

static void print_summary(reward_job *j) {
    int64_t n[ML_REWARD_OUTCOMES];

    ml_rewards_counts(j->rewards, n);
    fprintf(stderr, "%lld samples:", (long long)j->n_sample);
    for (int i = 0; i < ML_REWARD_OUTCOMES; i++)
        fprintf(stderr, " %lld %s%s", (long long)n[i],
                ml_reward_outcome_name((ml_reward_outcome)i),
                i + 1 < ML_REWARD_OUTCOMES ? "," : "");
    if (n[ML_REWARD_OK])
        fprintf(stderr, "; mean reward %.6g", j->sum / (double)n[ML_REWARD_OK]);
    fprintf(stderr, "\n");
}

/* Fails if no sample was graded. */
static ml_status check_any(reward_job *j, ml_err *err) {
    int64_t n[ML_REWARD_OUTCOMES];

    ml_rewards_counts(j->rewards, n);
    if (j->n_sample == 0 || n[ML_REWARD_OK] > 0)
        return ML_OK;
    return ml_fail(err, ML_EPEER,
                   "none of the %lld samples has a reward; the first error: %s",
                   (long long)j->n_sample, j->why);
}

/* --- the command ---------------------------------------------------------------------- */

static ml_status score(reward_job *j, ml_str line, ml_err *err) {
    entry *e = &j->entry[j->n];
    ml_status st = read_sample(j, e, line, err);

    if (st != ML_OK)
        return st;
    ml_rewards_submit(j->rewards, &e->in, write_result, e);
    j->n++;
    j->n_sample++;
    return j->n == BATCH ? flush(j, err) : ML_OK;
}

static ml_status score_all(reward_job *j, ml_err *err) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    ml_status st = ML_OK;

    while (st == ML_OK && (len = getline(&line, &cap, stdin)) >= 0) {
        j->n_line++;
        if (strspn(line, " \t\r\n") < (size_t)len)
            st = score(j, (ml_str){ line, (size_t)len }, err);
    }
    if (st == ML_OK && ferror(stdin))
        st = ml_fail(err, ML_EIO, "cannot read standard input: %s", strerror(errno));
    free(line);
    /* The lines before an invalid one are still graded and printed. */
    if (st == ML_OK)
        return flush(j, err);
    flush(j, NULL);
    return st;
}

/* The texts of the model's end tokens, if a model is given. */
static ml_status read_stops(reward_job *j, const char *dir, ml_err *err) {
    ml_tokenizer *tokenizer = NULL;
    ml_end_tokens end = { 0 };
    ml_status st = ml_tokenizer_open(&tokenizer, dir, err);

    if (st == ML_OK)
        st = ml_end_tokens_read(&end, dir, err);
    if (st == ML_OK)
        ml_end_tokens_add(&end, ml_tokenizer_role(tokenizer, ML_TOKEN_EOS));
    for (int32_t i = 0; i < end.n && st == ML_OK; i++)
        ml_decode(tokenizer, &j->stop[j->n_stop++], &end.id[i], 1, false);
    if (tokenizer)
        ml_tokenizer_close(tokenizer);
    return st;
}

ml_status ml_cmd_reward(const ml_config *c, ml_err *err) {
    reward_job j = { .seed = c->reward_seed };
    ml_run_opts run = c->run;
    ml_reward_opts opts;
    ml_arena arena;
    ml_status st;

    ml_arena_init(&arena, "reward");
    st = c->run.hf_checkpoint ? read_stops(&j, c->run.hf_checkpoint, err) : ML_OK;
    if (st == ML_OK)
        st = ml_reward_models_open(&run, err);
    if (st == ML_OK)
        st = ml_reward_models_start(&run.reward, err);
    if (st == ML_OK)
        st = ml_reward_opts_resolve(&opts, &run, &arena, err);
    if (st == ML_OK)
        st = ml_rewards_open(&j.rewards, &opts, err);
    if (st == ML_OK) {
        j.entry = calloc(BATCH, sizeof *j.entry);
        st = j.entry ? score_all(&j, err)
                     : ml_fail(err, ML_ENOMEM, "out of memory for samples");
        print_summary(&j);
        if (st == ML_OK)
            st = check_any(&j, err);
    }
    ml_rewards_close(j.rewards);
    ml_reward_models_close(&run.reward);
    for (int i = 0; j.entry && i < BATCH; i++)
        ml_text_release(&j.entry[i].out);
    free(j.entry);
    for (int32_t i = 0; i < j.n_stop; i++)
        ml_text_release(&j.stop[i]);
    ml_arena_release(&arena);
    return st;
}
