#include "base/philox.h"
#include "tinker/sample_job.h"

/* Answers without a seed of the client's: a function of the server's seed, the sampling client
 * and the request, so that they do not depend on other clients. */
static uint64_t sample_key(const ml_tinker *t, int64_t sampler, int64_t seq,
                           int32_t index) {
    ml_philox x = ml_philox_at(t->opts.seed, (uint64_t)sampler,
                               (uint64_t)seq << 13 | (uint64_t)index);
    return (uint64_t)x.word[0] << 32 | x.word[1];
}

static ml_status read_prompt(ml_sample_job *j, const ml_json *prompt, ml_err *err) {
    const ml_json *chunks = ml_json_get(prompt, "chunks"), *c, *v;
    int32_t *id, n = 0;
    int64_t x;

    for (c = chunks ? chunks->child : NULL; c; c = c->next) {
        v = ml_json_get(c, "tokens");
        if (!v || v->type != ML_JSON_ARRAY)
            return ml_fail(err, ML_EUNSUP,
                           "the prompt has a chunk that is no text; this server samples "
                           "from language models without images and audio");
        n += v->n;
    }
    if (!n)
        return ml_fail(err, ML_EUSAGE, "the prompt has no tokens");
    j->request.prompt = id = ML_NEW(&j->arena, int32_t, n);
    j->request.n_prompt = n;
    for (c = chunks->child; c; c = c->next)
        for (v = ml_json_get(c, "tokens")->child; v; v = v->next) {
            if (!ml_json_i64(v, &x) || x < 0 || x > INT32_MAX)
                return ml_fail(err, ML_EUSAGE,
                               "the prompt has a value that is no token id");
            *id++ = (int32_t)x;
        }
    return ML_OK;
}

static ml_status read_stop(ml_sample_job *j, const ml_json *stop, ml_err *err) {
    ml_gen_request *r = &j->request;
    ml_str *text;
    int32_t *id;
    int64_t x;

    if (!stop || stop->type == ML_JSON_NULL)
        return ML_OK;
    text = ML_NEW(&j->arena, ml_str, stop->n + 1);
    id = ML_NEW(&j->arena, int32_t, stop->n + 1);
    r->stop = text;
    r->stop_id = id;
    if (stop->type == ML_JSON_STRING) {
        text[r->n_stop++] =
            (ml_str){ ml_arena_str(&j->arena, stop->text.ptr, stop->text.len),
                      stop->text.len };
        return ML_OK;
    }
    r->ignore_eos = stop->type == ML_JSON_ARRAY && !stop->n;
    for (const ml_json *v = stop->child; v; v = v->next)
        if (v->type == ML_JSON_STRING)
            text[r->n_stop++] =
                (ml_str){ ml_arena_str(&j->arena, v->text.ptr, v->text.len), v->text.len };
        else if (ml_json_i64(v, &x) && x >= 0 && x <= INT32_MAX)
            id[r->n_stop_id++] = (int32_t)x;
        else
            return ml_fail(err, ML_EUSAGE,
                           "sampling_params.stop must be strings or token ids");
    return ML_OK;
}

static ml_status read_params(ml_sample_job *j, const ml_sampler *s, const ml_json *body,
                             ml_err *err) {
    const ml_json *p = ml_json_get(body, "sampling_params");
    ml_gen_request *r = &j->request;
    double temperature = 1, top_p = 1;
    int64_t top_k = ml_tinker_number(p, "top_k", -1), seed = 0;
    int64_t room = j->t->opts.context - r->n_prompt;
    int64_t most = ml_tinker_number(p, "max_tokens", room);

    ml_json_f64(ml_json_get(p, "temperature"), &temperature);
    ml_json_f64(ml_json_get(p, "top_p"), &top_p);
    if (room < 1)
        return ml_fail(err, ML_EUSAGE,
                       "the prompt has %d tokens, and the context %d: no answer fits",
                       r->n_prompt, j->t->opts.context);
    if (most < 1 || !(temperature >= 0) || !(top_p > 0 && top_p <= 1))
        return ml_fail(err, ML_EUSAGE,
                       "sampling_params: expected max_tokens from 1 on, a temperature from "
                       "0 on, and top_p above 0 and up to 1");
    r->max_new = (int32_t)(most < room ? most : room);
    r->draw = (ml_draw_opts){ .temperature = (float)temperature,
                              .top_k = top_k > 0 && top_k < INT32_MAX ? (int32_t)top_k : 0,
                              .top_p = (float)top_p,
                              .repetition = 1,
                              .dist = ML_DIST_RAW };
    if (ml_json_i64(ml_json_get(p, "seed"), &seed)) {
        r->draw.seed = (uint64_t)seed;
    } else {
        r->draw.seed = j->t->opts.seed;
        r->draw.sample =
            sample_key(j->t, s->number, ml_tinker_number(body, "seq_id", 0), 0);
    }
    return read_stop(j, ml_json_get(p, "stop"), err);
}

/* --- target_prompt_logprobs --- */

static ml_status bad_targets(ml_err *err) {
    return ml_fail(err, ML_EUSAGE,
                   "target_prompt_logprobs must have one row for each prompt token but the "
                   "first, and token ids or -1, dense or in compressed rows");
}

static bool read_list(ml_arena *a, const ml_json *list, int64_t **out, int64_t *n) {
    const ml_json *v = list && list->type == ML_JSON_ARRAY ? list->child : NULL;

    *n = list && list->type == ML_JSON_ARRAY ? list->n : 0;
    *out = ML_NEW(a, int64_t, *n + 1);
    for (int64_t i = 0; v; v = v->next, i++)
        if (!ml_json_i64(v, &(*out)[i]))
            return false;
    return list != NULL;
}

/* Row pointers of a dense tensor. */
static void make_rows(ml_sample_job *j, int64_t rows) {
    j->crow = ML_NEW(&j->arena, int64_t, rows + 1);
    for (int64_t i = 0; i <= rows; i++)
        j->crow[i] = i * j->n_col;
}

static ml_status read_targets(ml_sample_job *j, const ml_json *m, ml_err *err) {
    int64_t *shape, *data, *crow = NULL, n_dim, n, n_crow = 0, n_col = 0;
    int64_t rows = j->request.n_prompt - 1, widest = 0;
    const ml_json *sparse = ml_json_get(m, "sparse_crow_indices");

    if (!read_list(&j->arena, ml_json_get(m, "shape"), &shape, &n_dim) || n_dim != 2 ||
        shape[0] != rows || shape[1] < 1 || rows < 1 ||
        !read_list(&j->arena, ml_json_get(m, "data"), &data, &n))
        return bad_targets(err);
    j->n_col = shape[1];
    if (sparse && sparse->type == ML_JSON_ARRAY) {
        if (!read_list(&j->arena, sparse, &crow, &n_crow) || n_crow != rows + 1 ||
            !read_list(&j->arena, ml_json_get(m, "sparse_col_indices"), &j->col, &n_col) ||
            n_col != n || crow[0] != 0 || crow[rows] != n)
            return bad_targets(err);
        j->crow = crow;
    } else if (n != rows * shape[1]) {
        return bad_targets(err);
    } else {
        make_rows(j, rows);
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t width = j->crow[i + 1] - j->crow[i];
        if (width < 0 || j->crow[i + 1] > n)
            return bad_targets(err);
        widest = width > widest ? width : widest;
    }
    if (widest < 1 || widest > 4096)
        return bad_targets(err);
    j->n_also = (int32_t)widest;
    j->also = ML_NEW(&j->arena, int32_t, rows * widest);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < widest; k++) {
            int64_t at = j->crow[i] + k, id = at < j->crow[i + 1] ? data[at] : -1;
            if (id < -1 || id > INT32_MAX)
                return bad_targets(err);
            j->also[i * widest + k] = (int32_t)id;
        }
    return ML_OK;
}

static ml_status read_scores(ml_sample_job *j, const ml_json *body, ml_err *err) {
    const ml_json *target = ml_json_get(body, "target_prompt_logprobs");
    int64_t last = ml_tinker_number(body, "prompt_logprobs_last_n", 0);
    int64_t kp = ml_tinker_number(body, "topk_prompt_logprobs", 0);
    int64_t ka = ml_tinker_number(body, "topk_sample_logprobs", 0);

    if (ml_tinker_number(body, "prompt_alt_tokens_k", 0) > 0)
        return ml_fail(err, ML_EUNSUP, "this server does not draw prompt_alt_tokens");
    if (ml_tinker_true(body, "record_stability_info", false))
        return ml_fail(err, ML_EUNSUP,
                       "this server does not record stability information; remove "
                       "record_stability_info");
    if (kp < 0 || ka < 0 || kp > 4096 || ka > 4096 || last < 0 ||
        (last && last >= j->request.n_prompt))
        return ml_fail(err, ML_EUSAGE,
                       "expected topk_prompt_logprobs and topk_sample_logprobs from 0 to "
                       "4096, and prompt_logprobs_last_n below the prompt's length");
    j->k_prompt = (int32_t)kp;
    j->k_answer = (int32_t)ka;
    j->wants_prompt = ml_tinker_true(body, "prompt_logprobs", false) || kp;
    j->score_from = last ? (int32_t)(j->request.n_prompt - last) : 0;
    return target && target->type == ML_JSON_OBJECT ? read_targets(j, target, err) : ML_OK;
}

/* The prompt's log-probs are those of temperature 1: with it, an answer has them, too. */
static void make_choices(ml_sample_job *j) {
    float temperature = j->request.draw.temperature;
    bool with_answer = j->wants_prompt && (temperature == 1 || temperature == 0);

    j->choice = ML_NEW(&j->arena, ml_sample_choice, j->n_sample + 2);
    if (j->wants_prompt && !with_answer)
        j->choice[j->n_choice++] = (ml_sample_choice){ .job = j, .kind = ML_CHOICE_SCORE };
    if (j->n_also)
        j->choice[j->n_choice++] = (ml_sample_choice){ .job = j, .kind = ML_CHOICE_TARGET };
    for (int32_t i = 0; i < j->n_sample; i++)
        j->choice[j->n_choice++] =
            (ml_sample_choice){ .job = j,
                                .kind =
                                    with_answer && !i ? ML_CHOICE_BOTH : ML_CHOICE_SAMPLE,
                                .index = i };
}

ml_status ml_sample_job_read(ml_sample_job *j, const ml_sampler *s, const ml_json *body,
                             ml_err *err) {
    ml_status st = ML_OK;

    if (j->n_sample < 1 || j->n_sample > ML_MAX_SAMPLES)
        st = ml_fail(err, ML_EUSAGE, "num_samples must be from 1 to %d", ML_MAX_SAMPLES);
    if (st == ML_OK)
        st = read_prompt(j, ml_json_get(body, "prompt"), err);
    if (st == ML_OK)
        st = read_params(j, s, body, err);
    if (st == ML_OK)
        st = read_scores(j, body, err);
    if (st == ML_OK)
        make_choices(j);
    return st;
}
