/* Writes "meta_info", SGLang's metadata of an answer. */
#include <math.h>

#include "base/base64.h"
#include "serve/serve_priv.h"

/* [log-prob, id, text or null] */
static void triple(const ml_choice *c, float logprob, int32_t id, bool text,
                   ml_json_out *o) {
    ml_json_begin(o, '[');
    ml_json_float(o, logprob);
    ml_json_int(o, id);
    if (text && c->job->server->opts.tokenizer)
        ml_token_text(c->job->server, id, o);
    else
        ml_json_null(o);
    ml_json_end(o, ']');
}

/* As in SGLang, one token without a score precedes the prompt's first scored token. */
static bool has_lead(const ml_choice *c) {
    return c->logprob_start >= 0 && c->logprob_start < c->n_prompt;
}

static void unscored(const ml_choice *c, bool text, ml_json_out *o) {
    triple(c, NAN, c->prompt[c->logprob_start], text, o); /* NAN is written as null */
}

typedef struct side {
    const char *logprobs, *top, *also; /* names of the members */
    ml_scored v;
    int32_t from;
    bool lead; /* a token without scores precedes them */
} side;

static void write_own(const ml_choice *c, const side *s, bool text, ml_json_out *o) {
    ml_json_key(o, s->logprobs);
    ml_json_begin(o, '[');
    if (s->lead)
        unscored(c, text, o);
    for (int32_t i = s->from; i < s->v.n; i++)
        triple(c, s->v.logprob[i], s->v.id[i], text, o);
    ml_json_end(o, ']');
}

/* Writes `each` log-probabilities per token; ids are [n][each], or [each] if same_ids; -1 is
 * left out. */
static void write_beside(const ml_choice *c, const side *s, const char *key, int32_t each,
                         const int32_t *id, const float *logprob, bool same_ids, bool text,
                         ml_json_out *o) {
    ml_json_key(o, key);
    ml_json_begin(o, '[');
    if (s->lead)
        ml_json_null(o);
    for (int32_t i = s->from; i < s->v.n; i++) {
        ml_json_begin(o, '[');
        for (int32_t k = 0; k < each; k++) {
            int64_t at = (int64_t)i * each + k;
            int32_t of = same_ids ? id[k] : id[at];
            if (of >= 0)
                triple(c, logprob[at], of, text, o);
        }
        ml_json_end(o, ']');
    }
    ml_json_end(o, ']');
}

static void write_side(const ml_choice *c, const side *s, bool text, ml_json_out *o) {
    write_own(c, s, text, o);
    if (c->n_top)
        write_beside(c, s, s->top, c->n_top, s->v.top_id, s->v.top_logprob, false, text, o);
    if (c->n_also)
        write_beside(c, s, s->also, c->n_also, c->also, s->v.also_logprob, !c->also_each,
                     text, o);
}

static void write_logprobs(const ml_choice *c, ml_meta_opts opts, ml_json_out *o) {
    side prompt = { .logprobs = "input_token_logprobs",
                    .top = "input_top_logprobs",
                    .also = "input_token_ids_logprobs",
                    .v = ml_logprob_buffer_view(&c->scored),
                    .lead = has_lead(c) };
    side answer = { .logprobs = "output_token_logprobs",
                    .top = "output_top_logprobs",
                    .also = "output_token_ids_logprobs",
                    .v = ml_logprob_buffer_view(&c->answer),
                    .from = opts.from };

    write_side(c, &prompt, opts.text, o);
    write_side(c, &answer, opts.text, o);
    ml_json_key(o, "output_token_logprobs_length");
    ml_json_int(o, c->answer.n - opts.from);
}

static void write_finish(const ml_choice *c, ml_json_out *o) {
    ml_json_key(o, "finish_reason");
    if (c->finish == ML_FINISH_NOT) {
        ml_json_null(o);
        return;
    }
    ml_json_begin(o, '{');
    ml_json_key(o, "type");
    ml_json_word(o, ml_choice_finish_word(c));
    if (c->finish == ML_FINISH_LENGTH) {
        ml_json_key(o, "length");
        ml_json_int(o, c->answer.n);
    } else if (c->finish == ML_FINISH_ABORT) {
        ml_json_key(o, "message");
        ml_json_word(o, c->message[0] ? c->message : "Aborted");
    } else {
        ml_json_key(o, "matched");
        ml_choice_matched(c, o);
    }
    ml_json_end(o, '}');
}

static void write_versions(const ml_choice *c, ml_meta_opts opts, ml_json_out *o) {
    ml_scored v = ml_logprob_buffer_view(&c->answer);
    uint64_t last = v.n && v.version ? v.version[v.n - 1] : c->version;

    ml_json_key(o, "weight_version");
    ml_server_write_label(c->job->server, last, o);
    ml_json_key(o, "output_token_versions");
    ml_json_begin(o, '[');
    if (opts.grown)
        ml_choice_write_sent(c, ML_SENT_VERSIONS, o);
    else
        for (int32_t i = opts.from; v.version && i < v.n; i++)
            ml_json_int(o, (int64_t)v.version[i]);
    ml_json_end(o, ']');
}

/* Parallel to the log-probabilities: the unscored first prompt token has null here, too. */
static void write_entropy(const ml_choice *c, ml_meta_opts opts, ml_json_out *o) {
    ml_scored prompt = ml_logprob_buffer_view(&c->scored),
              answer = ml_logprob_buffer_view(&c->answer);

    if (opts.logprobs) {
        ml_json_key(o, "input_token_entropy");
        ml_json_begin(o, '[');
        if (has_lead(c))
            ml_json_null(o);
        for (int32_t i = 0; prompt.entropy && i < prompt.n; i++)
            ml_json_float(o, prompt.entropy[i]);
        ml_json_end(o, ']');
    }
    ml_json_key(o, "output_token_entropy");
    ml_json_begin(o, '[');
    for (int32_t i = opts.from; answer.entropy && i < answer.n; i++)
        ml_json_float(o, answer.entropy[i]);
    ml_json_end(o, ']');
}

/* Writes the i32 rows in base64, as SGLang does.  The last token has no row: the model
 * never processed it. */
static void write_routed(const ml_choice *c, ml_json_out *o) {
    static const char *const key[ML_N_ROUTING] = { "routed_experts", "indexer_topk" };

    for (int i = 0; i < ML_N_ROUTING; i++) {
        ml_text text = { 0 };
        if (!c->routed[i])
            continue;
        ml_base64_write(&text, c->chosen[i].ptr, c->chosen[i].len);
        ml_json_key(o, key[i]);
        ml_json_str(o, (ml_str){ text.ptr, text.len });
        ml_text_release(&text);
    }
}

void ml_meta_info_write(const ml_choice *c, ml_meta_opts opts, ml_json_out *o) {
    ml_json_begin(o, '{');
    ml_json_key(o, "id");
    ml_json_str(o, c->rid);
    write_finish(c, o);
    ml_json_key(o, "prompt_tokens");
    ml_json_int(o, c->n_prompt);
    ml_json_key(o, "completion_tokens");
    ml_json_int(o, c->answer.n);
    ml_json_key(o, "cached_tokens");
    ml_json_int(o, c->n_cached);
    ml_json_key(o, "num_retractions");
    ml_json_int(o, c->n_preempt);
    write_versions(c, opts, o);
    if (opts.logprobs)
        write_logprobs(c, opts, o);
    if (opts.entropy)
        write_entropy(c, opts, o);
    if (c->finish != ML_FINISH_NOT) {
        write_routed(c, o);
        ml_json_key(o, "queue_time");
        ml_json_double(o, c->queued_s);
        ml_json_key(o, "e2e_latency");
        ml_json_double(o, c->end_s - c->job->start_s);
    }
    ml_json_end(o, '}');
}
