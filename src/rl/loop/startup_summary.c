#include "rl/loop/startup_summary.h"

#include <string.h>

#include "base/utf8.h"

enum { SHOWN = 400, TOKENS = 24 }; /* bytes of a text; tokens of a prompt, of an answer */

static void say_text(ml_text *t, void (*say)(const char *line)) {
    say(t->ptr);
    ml_text_release(t);
}

/* Appends the text on one line, shortened: of a prompt, the end is more informative. */
static void add_short(ml_text *t, ml_str s, bool end) {
    size_t n = s.len < SHOWN ? s.len : SHOWN;
    ml_str part = end ? (ml_str){ s.ptr + (s.len - n), n } : ml_utf8_cut(s, SHOWN);

    while (end && n < s.len && part.len && ((unsigned char)part.ptr[0] & 0xC0) == 0x80)
        /* Do not start inside a UTF-8 character. */
        part = (ml_str){ part.ptr + 1, part.len - 1 };
    ml_json_quote(t, part);
}

void ml_show_sample(const char *when, const ml_sample *s, void (*say)(const char *line)) {
    ml_text t = { 0 };

    ml_text_printf(&t, "%s: prompt ", when);
    add_short(&t, s->prompt, true);
    ml_text_printf(&t, " (%d tokens), response ", s->n_token - s->n_response);
    add_short(&t, s->response, false);
    ml_text_printf(&t, " (%d tokens), reward %g", s->n_response, s->reward);
    if (s->label.len)
        ml_text_printf(&t, ", label %.*s", (int)ml_utf8_cut(s->label, SHOWN).len,
                       s->label.ptr);
    say_text(&t, say);
}

/* Shows the prompt's last tokens, then those of the answer; untrained tokens are in
 * brackets. */
static void show_tokens(const ml_sample *s, void (*say)(const char *line)) {
    int32_t n_prompt = s->n_token - s->n_response,
            first = n_prompt > TOKENS ? n_prompt - TOKENS : 0,
            last = s->n_response > TOKENS ? n_prompt + TOKENS : s->n_token;
    ml_text t = { 0 };

    ml_text_printf(
        &t, "first rollout: tokens of that sample, with untrained tokens in brackets:%s",
        first ? " ..." : "");
    for (int32_t i = first; i < last; i++) {
        bool trained = i >= n_prompt && (!s->mask || s->mask[i - n_prompt]);
        ml_text_printf(&t, trained ? " %d" : " [%d]", s->token[i]);
    }
    ml_text_printf(&t, "%s", last < s->n_token ? " ..." : "");
    say_text(&t, say);
}

typedef struct look {
    int64_t n_group, n_flat, n_alike; /* flat: groups of equal rewards */
    int64_t n_truncated, n_ended;
    double least, most, mean; /* of rewards */
    int32_t shortest, longest;
} look;

static bool same_answer(const ml_sample *x, const ml_sample *y) {
    return x->n_response == y->n_response &&
           memcmp(x->token + x->n_token - x->n_response,
                  y->token + y->n_token - y->n_response,
                  (size_t)x->n_response * sizeof *x->token) == 0;
}

static void look_at_group(look *l, const ml_sample *const *s, int64_t n) {
    bool flat = true, alike = n > 1;

    for (int64_t i = 1; i < n; i++) {
        flat &= s[i]->reward == s[0]->reward;
        alike &= same_answer(s[i], s[0]);
    }
    l->n_group++;
    l->n_flat += flat;
    l->n_alike += alike;
}

static look look_at(const ml_rollout_batch *h) {
    look l = { .least = h->sample[0]->reward,
               .most = h->sample[0]->reward,
               .shortest = h->sample[0]->n_response };

    for (int64_t i = 0, begin = 0; i < h->n; i++) {
        const ml_sample *s = h->sample[i];
        l.least = s->reward < l.least ? s->reward : l.least;
        l.most = s->reward > l.most ? s->reward : l.most;
        l.mean += s->reward / (double)h->n;
        l.shortest = s->n_response < l.shortest ? s->n_response : l.shortest;
        l.longest = s->n_response > l.longest ? s->n_response : l.longest;
        l.n_truncated += s->status == ML_SAMPLE_TRUNCATED;
        l.n_ended += s->status == ML_SAMPLE_COMPLETED;
        if (i + 1 == h->n || h->sample[i + 1]->group != s->group) {
            look_at_group(&l, h->sample + begin, i + 1 - begin);
            begin = i + 1;
        }
    }
    return l;
}

static void warn(const look *l, int64_t n, bool compares, void (*say)(const char *line)) {
    if (l->n_truncated == n)
        say("warning: all responses were truncated: increase --rollout-max-response-len, "
            "or check the model's EOS token");
    if (l->n_ended == 0)
        say("warning: no response ended with an EOS token or a stop string: check "
            "eos_token_id in generation_config.json, or set --rollout-stop");
    if (l->n_alike == l->n_group)
        say("warning: all responses to a prompt are identical: increase "
            "--rollout-temperature");
    if (compares && l->least == l->most)
        say("warning: all rewards are equal (zero reward variance): no gradient; check the "
            "response above, --rm-type and --label-key");
}

void ml_startup_summary(const ml_rollout_batch *h, bool compares,
                        void (*say)(const char *line)) {
    ml_text t = { 0 };
    look l;

    if (h->n == 0)
        return;
    ml_show_sample("first rollout", h->sample[0], say);
    show_tokens(h->sample[0], say);
    l = look_at(h);
    ml_text_printf(&t,
                   "first rollout: %lld samples of %lld prompts, %d to %d tokens, %.0f%% "
                   "truncated, reward %g to %g, mean %.4g",
                   (long long)h->n, (long long)l.n_group, l.shortest, l.longest,
                   100.0 * (double)l.n_truncated / (double)h->n, l.least, l.most, l.mean);
    if (compares)
        ml_text_printf(&t, "; %lld prompts with zero reward variance (no gradient)",
                       (long long)l.n_flat);
    say_text(&t, say);
    warn(&l, h->n, compares, say);
}
