#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "tests/load/load.h"

#define FIRST_ID 3 /* smaller ids are BOS, EOS and padding */
#define IDS 80

static void write_ids(const load_case *c, ml_text *out) {
    for (int i = 0; i < c->n_prompt; i++)
        ml_text_printf(out, "%s%d", i ? "," : "", (int)c->prompt[i]);
}

void load_case_generate(const load_case *c, bool stream, const char *rid, ml_text *out) {
    out->len = 0;
    ml_text_printf(out, "{\"input_ids\": [");
    write_ids(c, out);
    ml_text_printf(out,
                   "], \"stream\": %s, \"sampling_params\": {\"temperature\": 1, "
                   "\"max_new_tokens\": %d, \"sampling_seed\": %d}",
                   stream ? "true" : "false", c->max_new, c->seed);
    if (rid)
        ml_text_printf(out, ", \"rid\": \"%s\"", rid);
    ml_text_printf(out, "}");
}

void load_case_completion(const load_case *c, bool stream, ml_text *out) {
    out->len = 0;
    ml_text_printf(out, "{\"model\": \"m\", \"prompt\": [");
    write_ids(c, out);
    ml_text_printf(out,
                   "], \"stream\": %s, \"temperature\": 1, \"max_tokens\": %d, "
                   "\"seed\": %d}",
                   stream ? "true" : "false", c->max_new, c->seed);
}

bool load_read_answer(ml_str json, int32_t *id, int *n, bool *aborted) {
    const ml_json *doc, *ids, *reason;
    bool ok = false;
    ml_arena a;

    *n = 0;
    *aborted = false;
    ml_arena_init(&a, "load answer");
    if (ml_json_parse(&doc, &a, json, "answer", NULL) == ML_OK) {
        ids = ml_json_get(doc, "output_ids");
        reason = ml_json_get(ml_json_get(doc, "meta_info"), "finish_reason");
        reason = ml_json_get(reason, "type");
        *aborted = reason && ml_str_is(reason->text, "abort");
        ok = ids && ids->type == ML_JSON_ARRAY;
        for (const ml_json *v = ok ? ids->child : NULL; v && ok; v = v->next) {
            int64_t x = -1;
            ok = *n < LOAD_ANSWER && ml_json_i64(v, &x);
            if (ok)
                id[(*n)++] = (int32_t)x;
        }
    }
    ml_arena_release(&a);
    return ok;
}

bool load_read_text(ml_str json, ml_text *out) {
    const ml_json *doc, *choice, *text = NULL;
    bool ok;
    ml_arena a;

    ml_arena_init(&a, "load answer");
    if (ml_json_parse(&doc, &a, json, "answer", NULL) == ML_OK) {
        choice = ml_json_get(doc, "choices");
        text = choice && choice->child ? ml_json_get(choice->child, "text") : NULL;
    }
    ok = text && text->type == ML_JSON_STRING;
    if (ok)
        ml_text_add(out, text->text.ptr, text->text.len);
    ml_arena_release(&a);
    return ok;
}

/* --- running each request alone --------------------------------------------- */

typedef struct alone {
    load *load;
    ml_text body;
    int status;
    bool failed;
} alone;

static void got_head(void *ud, int status, ml_str headers) {
    (void)headers;
    ((alone *)ud)->status = status;
}

static void got_data(void *ud, ml_str piece) {
    ml_text_add(&((alone *)ud)->body, piece.ptr, piece.len);
}

static void got_done(void *ud, const ml_err *err) {
    alone *a = ud;

    a->failed = err != NULL;
    if (err)
        load_fail(a->load, "alone: %s", err->msg);
    ml_loop_stop(a->load->loop);
}

static bool ask(alone *a, const char *path, const ml_text *request) {
    ml_http_fns fns = { got_head, got_data, got_done, a };
    ml_http_job *job;
    char url[100];
    ml_http_request r = { .method = "POST",
                          .url = url,
                          .body = { request->ptr, request->len },
                          .connect_s = 10,
                          .idle_s = 60 };

    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", a->load->port, path);
    a->body.len = 0;
    ml_text_add(&a->body, "", 0);
    if (ml_http_start(&job, a->load->client, &r, fns, NULL) != ML_OK)
        return false;
    ml_loop_run(a->load->loop);
    return !a->failed && a->status == 200;
}

/* Makes prompts with common prefixes, to exercise the server's prefix cache. */
static void make_up(load_case *c, int i, uint64_t *random) {
    uint64_t family = (uint64_t)(i % 5) * 977 + 12345;

    c->n_prompt = 1 + load_random(random, LOAD_PROMPT);
    c->max_new = 1 + load_random(random, LOAD_ANSWER);
    c->seed = load_random(random, 1000000);
    for (int k = 0; k < c->n_prompt; k++)
        c->prompt[k] =
            FIRST_ID + load_random(k < c->n_prompt * 2 / 3 ? &family : random, IDS);
}

void load_cases_ask(load *l) {
    uint64_t random = (uint64_t)l->seed + 1;
    ml_text request = { 0 };
    alone a = { .load = l };

    for (int i = 0; i < LOAD_CASES; i++) {
        load_case *c = &l->cases[i];
        bool aborted;
        make_up(c, i, &random);
        load_case_generate(c, false, NULL, &request);
        if (!ask(&a, "/generate", &request) ||
            !load_read_answer((ml_str){ a.body.ptr, a.body.len }, c->answer, &c->n_answer,
                              &aborted) ||
            aborted || c->n_answer == 0)
            load_fail(l, "alone: /generate answered %d, %s", a.status, a.body.ptr);
        load_case_completion(c, false, &request);
        ml_text_add(&c->text, "", 0);
        if (!ask(&a, "/v1/completions", &request) ||
            !load_read_text((ml_str){ a.body.ptr, a.body.len }, &c->text))
            load_fail(l, "alone: /v1/completions answered %d, %s", a.status, a.body.ptr);
    }
    ml_text_release(&request);
    ml_text_release(&a.body);
}

void load_cases_free(load *l) {
    for (int i = 0; i < LOAD_CASES; i++)
        ml_text_release(&l->cases[i].text);
}
