#include "cli/commands/sample_text.h"

#include "base/json.h"
#include "base/shown.h"

void ml_sample_text_head(ml_text *out, int64_t rollout, const char *set,
                         const ml_sample *s) {
    if (set && rollout < 0)
        ml_text_printf(out, "evaluation of %s before training", set);
    else if (set)
        ml_text_printf(out, "evaluation of %s after rollout %lld", set, (long long)rollout);
    else
        ml_text_printf(out, "rollout %lld", (long long)rollout);
    ml_text_printf(out, ", sample %lld of group %lld: ", (long long)s->index,
                   (long long)s->group);
    if (s->has_reward)
        ml_text_printf(out, "reward %g", s->reward);
    else
        ml_text_printf(out, "no reward");
    ml_text_printf(out, ", %s, %d tokens", ml_sample_status_name(s->status), s->n_response);
}

static void add_quoted(ml_text *out, ml_str s) {
    ml_text t = { 0 };

    ml_json_quote(&t, s);
    ml_text_show(out, (ml_str){ t.ptr, t.len }, ML_SHOWN_ONE_LINE);
    ml_text_release(&t);
}

void ml_sample_text_fields(ml_text *out, const ml_sample *s) {
    ml_text_printf(out, "  prompt   ");
    add_quoted(out, s->prompt);
    ml_text_printf(out, "\n  answer   ");
    add_quoted(out, s->response);
    ml_text_printf(out, "\n");
    if (s->label.len) {
        ml_text_printf(out, "  label    ");
        ml_text_show(out, s->label, ML_SHOWN_ONE_LINE);
        ml_text_printf(out, "\n");
    }
}

static void add_token(ml_text *out, ml_tokenizer *tokenizer, int32_t id) {
    ml_text_printf(out, "  %6d", id);
    if (tokenizer) {
        ml_text piece = { 0 };
        ml_decode(tokenizer, &piece, &id, 1, false);
        ml_text_printf(out, "  ");
        add_quoted(out, (ml_str){ piece.ptr ? piece.ptr : "", piece.len });
        ml_text_release(&piece);
    }
    ml_text_printf(out, "\n");
}

void ml_sample_text_tokens(ml_text *out, ml_tokenizer *tokenizer, const ml_sample *s) {
    int32_t n_prompt = s->n_token - s->n_response;

    ml_text_printf(out, "  index  mask   log-prob  version   token\n");
    for (int32_t i = 0; i < s->n_token; i++) {
        int32_t t = i - n_prompt;
        ml_text_printf(out, "  %5d", i);
        if (t < 0)
            ml_text_printf(out, "     -          -        -");
        else
            ml_text_printf(out, "     %d", s->mask ? s->mask[t] : 1);
        if (t >= 0 && s->logprob)
            ml_text_printf(out, "  %9.5f", (double)s->logprob[t]);
        else if (t >= 0)
            ml_text_printf(out, "          -");
        if (t >= 0 && s->version)
            ml_text_printf(out, "  %7llu", (unsigned long long)s->version[t]);
        else if (t >= 0)
            ml_text_printf(out, "        -");
        add_token(out, tokenizer, s->token[i]);
    }
}
