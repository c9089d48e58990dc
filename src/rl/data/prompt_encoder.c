#include "rl/data/prompt_encoder.h"

#include "base/bug.h"

void ml_prompt_encoder_init(ml_prompt_encoder *p, const ml_tokenizer *t,
                            const ml_chat_template *c, int n_worker) {
    *p = (ml_prompt_encoder){ .tokenizer = t,
                              .chat_template = c,
                              .n_worker = t ? n_worker : 0 };
    ml_arena_init(&p->arena, "prompter");
    p->encoder = ML_NEW(&p->arena, ml_encoder *, p->n_worker);
    p->tokens = ML_NEW(&p->arena, ml_tokens, p->n_worker);
    for (int i = 0; i < p->n_worker; i++)
        p->encoder[i] = ml_encoder_new(t);
}

void ml_prompt_encoder_release(ml_prompt_encoder *p) {
    for (int i = 0; i < p->n_worker; i++) {
        ml_encoder_free(p->encoder[i]);
        ml_tokens_release(&p->tokens[i]);
    }
    ml_arena_release(&p->arena);
}

static ml_status render(void *ud, ml_text *out, const ml_json *messages,
                        const ml_json *tools, const ml_json *kwargs, ml_err *err) {
    const ml_prompt_encoder *p = ud;
    ml_chat chat = { .messages = messages,
                     .tools = tools,
                     .add_generation_prompt = true,
                     .kwargs = kwargs };
    ml_jinja_text text;
    ml_arena a;
    ml_status st;

    ML_BUG_IF(!p->chat_template);
    ml_arena_init(&a, "rendered prompt");
    st = ml_chat_render(&text, &a, p->chat_template, &chat, NULL, err);
    if (st == ML_OK)
        ml_text_add(out, text.text.ptr, text.text.len);
    ml_arena_release(&a);
    return st;
}

static ml_status count(void *ud, int worker, int64_t *out, ml_str text, ml_err *err) {
    const ml_prompt_encoder *p = ud;
    ml_status st;

    ML_BUG_IF(worker >= p->n_worker);
    st =
        ml_encode(p->encoder[worker], &p->tokens[worker], text, (ml_encode_opts){ 0 }, err);
    *out = p->tokens[worker].n;
    return st;
}

ml_prompt_text ml_prompt_encoder_text(ml_prompt_encoder *p) {
    return (ml_prompt_text){ .ud = p, .render = render, .count = count };
}
