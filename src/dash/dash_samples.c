/* Rollouts, groups, samples and tokens. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "dash/turn_split.h"
#include "dash/dash_priv.h"
#include "train/snapshot.h"

/* A page of a list is sent after at most this time; the client asks for the next one. */
#define BUDGET_S 0.15
enum { PAGE_ROWS = 200, MOST_ROWS = 5000 };

/* --- lists ------------------------------------------------------------------------------ */

static void put_row(void *ud, const ml_view_row *row) {
    ml_json_out *o = ud;

    ml_json_begin(o, '{');
    ml_json_put_int(o, "rollout_id", row->rollout);
    ml_json_put_int(o, "sample_index", row->sample);
    ml_json_put_int(o, "group_index", row->group);
    ml_json_put_int(o, "row", row->row);
    ml_dash_put_number(o, "raw_reward", row->has_reward ? row->reward : (double)NAN);
    ml_dash_put_number(o, "reward", row->has_reward ? row->reward : (double)NAN);
    ml_dash_put_text(o, "status", row->status);
    ml_json_put_bool(o, "truncated", ml_str_is(row->status, "truncated"));
    ml_json_put_int(o, "response_length", row->n_response);
    if (row->set.len)
        ml_dash_put_text(o, "set", row->set);
    if (row->prompt.ptr) {
        ml_dash_put_text(o, "prompt", row->prompt);
        ml_dash_put_text(o, "response", row->response);
    }
    ml_json_end(o, '}');
}

static void put_columns(ml_json_out *o, const char *columns) {
    ml_json_key(o, "columns");
    ml_json_raw(o, ml_str_of(columns));
}

static void take_set(void *ud, ml_str name) {
    char *first = ud;
    if (!*first)
        snprintf(first, 200, "%.*s", (int)name.len, name.ptr);
}

/* The data set of an evaluation: the query's, or the first one. */
static const char *set_of(ml_dash_request *r) {
    const char *set = ml_dash_param(r, "set");
    char *first = ML_NEW(r->arena, char, 200);

    if (set)
        return set;
    (void)ml_run_view_sets(r->run->view, take_set, first, NULL);
    return first;
}

static ml_view_query any_row(ml_dash_request *r) {
    bool evals = ml_dash_param_bool(r, "eval");
    return (ml_view_query){ .evals = evals,
                            .set = evals ? set_of(r) : NULL,
                            .rollout = ML_ALL_ROLLOUTS,
                            .group = -1,
                            .row = -1,
                            .least = (double)NAN,
                            .most = (double)NAN };
}

static ml_status end_list(ml_dash_request *r, ml_status st, int64_t rows_from,
                          ml_err *err) {
    if (st == ML_OK && r->text.ptr[r->text.len - 1] == '[' && rows_from >= 0)
        return ml_dash_refuse(r, 404, err, "rollout %lld has no samples",
                              (long long)rows_from);
    ml_json_end(&r->out, ']');
    return st;
}

ml_status ml_dash_summary(ml_dash_request *r, ml_err *err) {
    ml_status st = ml_dash_view(r, err);
    ml_json_out *o = &r->out;
    ml_view_query q;
    ml_view_page page;

    if (st != ML_OK)
        return st;
    q = any_row(r);
    q.rollout = r->rollout;
    ml_json_begin(o, '{');
    ml_json_put_int(o, "rollout_id", r->rollout);
    ml_json_put_bool(o, "evaluation", q.evals);
    put_columns(o, "[\"rollout_id\", \"sample_index\", \"group_index\", \"row\", "
                   "\"raw_reward\", \"reward\", \"status\", \"truncated\", "
                   "\"response_length\"]");
    ml_json_key(o, "rows");
    ml_json_begin(o, '[');
    st = ml_run_view_rows(r->run->view, &q, put_row, o, &page, err);
    st = end_list(r, st, r->rollout, err);
    ml_json_end(o, '}');
    return st;
}

static void put_group(void *ud, const ml_view_group *g) {
    ml_json_out *o = ud;

    ml_json_begin(o, '{');
    ml_json_put_int(o, "group_index", g->group);
    ml_json_put_int(o, "row", g->row);
    ml_json_put_int(o, "n", g->n);
    ml_dash_put_number(o, "reward_mean", g->mean);
    ml_dash_put_number(o, "reward_std", g->spread);
    ml_dash_put_number(o, "reward_min", g->least);
    ml_dash_put_number(o, "reward_max", g->most);
    ml_dash_put_number(o, "response_length_mean", g->n_response);
    ml_dash_put_number(o, "truncated_frac", (double)g->n_truncated / (double)g->n);
    ml_json_put_bool(o, "zero_std", isfinite(g->mean) && g->spread <= 1e-12);
    ml_json_end(o, '}');
}

ml_status ml_dash_groups(ml_dash_request *r, ml_err *err) {
    bool evals = ml_dash_param_bool(r, "eval");
    ml_status st = ml_dash_view(r, err);
    ml_json_out *o = &r->out;

    if (st != ML_OK)
        return st;
    ml_json_begin(o, '{');
    ml_json_put_int(o, "rollout_id", r->rollout);
    ml_json_put_bool(o, "evaluation", evals);
    put_columns(o, "[\"group_index\", \"row\", \"n\", \"reward_mean\", \"reward_std\", "
                   "\"reward_min\", \"reward_max\", \"response_length_mean\", "
                   "\"truncated_frac\", \"zero_std\"]");
    ml_json_key(o, "rows");
    ml_json_begin(o, '[');
    st = ml_run_view_groups(r->run->view, evals, r->rollout, put_group, o, err);
    st = end_list(r, st, r->rollout, err);
    ml_json_end(o, '}');
    return st;
}

/* "ROLLOUT,PLACE" */
static ml_status read_after(ml_dash_request *r, ml_view_query *q, ml_err *err) {
    const char *after = ml_dash_param(r, "after");
    long long rollout, place;
    char end;

    if (!after)
        return ML_OK;
    if (sscanf(after, "%lld,%lld%c", &rollout, &place, &end) != 2)
        return ml_fail(err, ML_EUSAGE, "after: expected the value of \"next\"");
    q->after = true;
    q->after_rollout = rollout;
    q->after_place = place;
    return ML_OK;
}

static ml_status read_query(ml_dash_request *r, ml_view_query *q, ml_err *err) {
    ml_status st;

    *q = any_row(r);
    q->n_most = PAGE_ROWS;
    q->budget_s = BUDGET_S;
    q->texts = true;
    q->text = ml_dash_param(r, "q");
    q->status = ml_dash_param(r, "status");
    if (q->text && !*q->text)
        q->text = NULL;
    if (q->status && !*q->status)
        q->status = NULL;
    st = ml_dash_param_int(r, "rollout", -1, INT64_MAX, &q->rollout, err);
    if (st == ML_OK)
        st = ml_dash_param_int(r, "group", 0, INT64_MAX, &q->group, err);
    if (st == ML_OK)
        st = ml_dash_param_int(r, "row", 0, INT64_MAX, &q->row, err);
    if (st == ML_OK)
        st = ml_dash_param_int(r, "limit", 1, MOST_ROWS, &q->n_most, err);
    if (st == ML_OK)
        st = ml_dash_param_number(r, "min_reward", &q->least, err);
    if (st == ML_OK)
        st = ml_dash_param_number(r, "max_reward", &q->most, err);
    return st == ML_OK ? read_after(r, q, err) : st;
}

ml_status ml_dash_samples(ml_dash_request *r, ml_err *err) {
    ml_status st = ml_dash_view(r, err);
    ml_json_out *o = &r->out;
    ml_view_query q;
    ml_view_page page;

    if (st == ML_OK)
        st = read_query(r, &q, err);
    if (st != ML_OK)
        return st;
    ml_json_begin(o, '{');
    ml_json_key(o, "rows");
    ml_json_begin(o, '[');
    st = ml_run_view_rows(r->run->view, &q, put_row, o, &page, err);
    ml_json_end(o, ']');
    ml_json_put_word(o, "next",
                     page.more
                         ? ml_arena_printf(r->arena, "%lld,%lld", (long long)page.rollout,
                                           (long long)page.place)
                         : NULL);
    ml_json_end(o, '}');
    return st;
}

ml_status ml_dash_trajectories(ml_dash_request *r, ml_err *err) {
    (void)err;
    ml_json_raw(&r->out, ml_str_of("{\"lanes\": [], \"consume_ts\": null, \"t0\": null}"));
    return ML_OK;
}

/* --- one sample --------------------------------------------------------------------------- */

static void put_turn(void *ud, const ml_turn_text *t) {
    ml_json_out *o = ud;

    ml_json_begin(o, '{');
    ml_dash_put_text(o, "role", t->role);
    ml_dash_put_text(o, "content", t->content);
    ml_json_end(o, '}');
}

static void put_turns(ml_json_out *o, const ml_sample *s) {
    ml_text whole = { 0 };

    ml_text_add(&whole, s->prompt.ptr, s->prompt.len);
    ml_text_add(&whole, s->response.ptr, s->response.len);
    ml_json_key(o, "messages");
    ml_json_begin(o, '[');
    if (!ml_conversation_split((ml_str){ whole.ptr ? whole.ptr : "", whole.len }, put_turn,
                               o)) {
        put_turn(o, &(ml_turn_text){ ml_str_of("prompt"), s->prompt });
        put_turn(o, &(ml_turn_text){ ml_str_of("response"), s->response });
    }
    ml_json_end(o, ']');
    ml_text_release(&whole);
}

static void put_messages(void *ud, const ml_view_row *row, const ml_sample *s,
                         const ml_sample_advantages *advantage) {
    ml_dash_request *r = ud;
    ml_json_out *o = &r->out;

    (void)advantage;
    ml_json_begin(o, '{');
    ml_json_put_int(o, "rollout_id", row->rollout);
    ml_json_put_int(o, "sample_index", row->sample);
    ml_json_put_int(o, "group_index", row->group);
    ml_json_put_int(o, "row", row->row);
    ml_dash_put_number(o, "reward", s->has_reward ? s->reward : (double)NAN);
    ml_dash_put_text(o, "status", row->status);
    ml_json_put_int(o, "response_length", s->n_response);
    ml_dash_put_text(o, "prompt", s->prompt);
    ml_dash_put_text(o, "response", s->response);
    ml_dash_put_text(o, "label", s->label);
    put_turns(o, s);
    ml_json_end(o, '}');
}

static ml_status one_sample(ml_dash_request *r, ml_view_whole *put, void *ud, ml_err *err) {
    ml_status st = ml_dash_view(r, err);
    bool found = false;

    if (st == ML_OK)
        st = ml_run_view_sample(r->run->view, r->rollout, r->sample,
                                ml_dash_param_bool(r, "eval") ? set_of(r) : NULL, put, ud,
                                &found, err);
    if (st == ML_OK && !found)
        return ml_dash_refuse(r, 404, err, "rollout %lld has no sample %lld",
                              (long long)r->rollout, (long long)r->sample);
    return st;
}

ml_status ml_dash_messages(ml_dash_request *r, ml_err *err) {
    return one_sample(r, put_messages, r, err);
}

/* --- tokens ------------------------------------------------------------------------------- */

/* The checkpoint of the run's flags. */
static const char *checkpoint_of(ml_dash_request *r) {
    const ml_json *doc = NULL, *path;
    ml_file f = { 0 };
    const char *out = NULL;

    if (ml_file_map(&f, ml_arena_printf(r->arena, "%s/flags.json", r->run->dir), NULL) ==
            ML_OK &&
        ml_json_parse(&doc, r->arena, f.bytes, "flags.json", NULL) == ML_OK) {
        path = ml_json_get(doc, "hf-checkpoint");
        if (path && path->type == ML_JSON_STRING)
            out = ml_arena_str(r->arena, path->text.ptr, path->text.len);
    }
    ml_file_unmap(&f);
    return out;
}

/* The tokenizer: of the flag, of the run's newest snapshot, or of the checkpoint it began
 * with.  NULL: there is none, and tokens are shown as numbers. */
static const ml_tokenizer *tokenizer_of(ml_dash_request *r) {
    ml_dash_run *run = r->run;
    const char *dir[3] = { r->dash->opts.tokenizer, NULL, NULL };
    int64_t newest;

    if (run->asked_tokenizer)
        return run->tokenizer;
    run->asked_tokenizer = true;
    if (ml_snapshot_latest(&newest, run->dir, NULL) == ML_OK && newest != ML_NONE)
        dir[1] = ml_snapshot_path(r->arena, run->dir, newest);
    dir[2] = checkpoint_of(r);
    for (int i = 0; i < 3; i++)
        if (dir[i] && ml_tokenizer_open(&run->tokenizer, dir[i], NULL) == ML_OK)
            break;
    return run->tokenizer;
}

typedef struct token_range {
    ml_dash_request *request;
    int64_t start, end; /* of all tokens, prompt and response */
    bool empty;
} token_range;

static void put_token_texts(ml_dash_request *r, const int32_t *id, int64_t n) {
    const ml_tokenizer *t = tokenizer_of(r);
    ml_json_out *o = &r->out;

    ml_json_key(o, "token_text");
    if (!t) {
        ml_json_null(o);
        return;
    }
    ml_json_begin(o, '[');
    for (int64_t i = 0; i < n; i++) {
        ml_text piece = { 0 };
        ml_decode(t, &piece, &id[i], 1, false);
        ml_dash_put_text(o, NULL, (ml_str){ piece.ptr ? piece.ptr : "", piece.len });
        ml_text_release(&piece);
    }
    ml_json_end(o, ']');
}

/* Numbers of the response's tokens; those of tokens outside the mask are null, because no one
 * computed them. */
static void put_numbers(ml_json_out *o, const char *key, const float *x, bool one,
                        const uint8_t *mask, int64_t from, int64_t to) {
    ml_json_key(o, key);
    if (!x) {
        ml_json_null(o);
        return;
    }
    ml_json_begin(o, '[');
    for (int64_t i = from; i < to; i++)
        if (mask && !mask[i])
            ml_json_null(o);
        else
            ml_json_float(o, x[one ? 0 : i]);
    ml_json_end(o, ']');
}

static void put_whole_numbers(ml_json_out *o, const char *key, const uint8_t *mask,
                              const uint64_t *version, int64_t from, int64_t to) {
    ml_json_key(o, key);
    if (!mask && !version) {
        ml_json_null(o);
        return;
    }
    ml_json_begin(o, '[');
    for (int64_t i = from; i < to; i++)
        ml_json_int(o, mask ? mask[i] : (int64_t)version[i]);
    ml_json_end(o, ']');
}

static void put_tokens(void *ud, const ml_view_row *row, const ml_sample *s,
                       const ml_sample_advantages *advantage) {
    static const char *const absent[] = { "train_log_probs", "ref_log_probs", "lp_diff",
                                          "imp_ratio",       "entropy",       "ref_entropy",
                                          "returns" };
    token_range *g = ud;
    ml_json_out *o = &g->request->out;
    int64_t n_prompt = s->n_token - s->n_response,
            end = g->end < s->n_token ? g->end : s->n_token, n = end - g->start,
            from = g->start > n_prompt ? g->start - n_prompt : 0,
            to = end > n_prompt ? end - n_prompt : 0;

    if (n <= 0) {
        g->empty = true;
        return;
    }
    ml_json_begin(o, '{');
    ml_json_put_int(o, "rollout_id", row->rollout);
    ml_json_put_int(o, "sample_index", row->sample);
    ml_json_put_bool(o, "evaluation", row->set.len > 0);
    ml_json_put_int(o, "total_len", s->n_token);
    ml_json_put_int(o, "prompt_len", n_prompt);
    ml_json_put_int(o, "start", g->start);
    ml_json_put_int(o, "end", end);
    ml_json_put_int(o, "response_offset",
                    n_prompt > g->start ? (n_prompt < end ? n_prompt : end) - g->start : 0);
    ml_json_key(o, "token_ids");
    ml_json_ids(o, s->token + g->start, (int32_t)n);
    put_token_texts(g->request, s->token + g->start, n);
    put_numbers(o, "rollout_log_probs", s->logprob, false, s->mask, from, to);
    put_whole_numbers(o, "loss_mask", s->mask, NULL, from, to);
    put_numbers(o, "advantages", advantage->at, advantage->n == 1, s->mask, from, to);
    put_whole_numbers(o, "weight_versions", NULL, s->version, from, to);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        ml_json_put_word(o, absent[i], NULL);
    ml_json_end(o, '}');
}

ml_status ml_dash_tokens(ml_dash_request *r, ml_err *err) {
    token_range g = { .request = r, .end = INT32_MAX };
    ml_status st = ml_dash_param_int(r, "start", 0, INT32_MAX, &g.start, err);

    if (st == ML_OK)
        st = ml_dash_param_int(r, "end", 0, INT32_MAX, &g.end, err);
    if (st == ML_OK)
        st = one_sample(r, put_tokens, &g, err);
    if (st == ML_OK && g.empty)
        return ml_fail(err, ML_EUSAGE, "start, end: the sample has no token in this range");
    return st;
}
