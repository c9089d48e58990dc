/* Data sets, conversations and the order in which prompts are handed out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "rl/conversation.h"
#include "rl/data_source.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static const char *write_rows(const char *text) {
    const char *path = ml_test_path("prompts.jsonl");
    ml_err err;

    if (ml_file_replace(path, ml_str_of(text), &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return path;
}

/* Without spaces, in source order. */
static void dump(ml_text *t, const ml_json *v) {
    bool is_object = v->type == ML_JSON_OBJECT;

    if (v->type == ML_JSON_STRING) {
        ml_json_quote(t, v->text);
    } else if (v->type == ML_JSON_NUMBER) {
        ml_text_add(t, v->text.ptr, v->text.len);
    } else if (v->type < ML_JSON_NUMBER) {
        ml_text_printf(t, "%s", ml_json_what(v));
    } else {
        int32_t n = 0;
        ml_text_add(t, is_object ? "{" : "[", 1);
        for (const ml_json *c = v->child; c; c = c->next, n++) {
            if (is_object) {
                ml_json_quote(t, c->key);
                ml_text_add(t, ":", 1);
            }
            dump(t, c);
            if (c->next)
                ml_text_add(t, ",", 1);
        }
        CHECK(n == v->n);
        ml_text_add(t, is_object ? "}" : "]", 1);
    }
}

/* A template that shows what it was given, and a tokenizer whose tokens are bytes. */
static ml_status show(void *ud, ml_text *out, const ml_json *messages, const ml_json *tools,
                      const ml_json *kwargs, ml_err *err) {
    const char *refused = ud;

    dump(out, messages);
    if (tools)
        dump(out, tools);
    if (kwargs->child)
        dump(out, kwargs);
    if (refused && strstr(out->ptr, refused))
        return ml_fail(err, ML_EFORMAT, "the template refuses %s", refused);
    return ML_OK;
}

static ml_status count_bytes(void *ud, int worker, int64_t *out, ml_str text, ml_err *err) {
    const char *refused = ud;

    CHECK(worker >= 0 && worker < 4);
    if (refused && text.len && text.ptr[0] == refused[0])
        return ml_fail(err, ML_EFORMAT, "the tokenizer refuses %s", refused);
    *out = (int64_t)text.len;
    return ML_OK;
}

static ml_dataset_opts opts_for(const char *rows) {
    return (ml_dataset_opts){ .path = write_rows(rows),
                              .text = { .render = show, .count = count_bytes } };
}

static bool opens(ml_dataset *ds, const ml_dataset_opts *o) {
    ml_err err;

    if (!ml_dataset_open(ds, o, &err))
        return true;
    ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return false;
}

/* Opening must fail, with a sentence that has `message` in it. */
static void refuses(const ml_dataset_opts *o, const char *message) {
    ml_dataset ds;
    ml_err err = { 0 };

    CHECK(ml_dataset_open(&ds, o, &err));
    CHECK_HAS(err.msg, message);
    CHECK(ds.rows.begin == NULL);
}

/* --- data sets ----------------------------------------------------------------- */

static void reads_fields(void) {
    ml_dataset_opts o =
        opts_for("{\"input\": \"one\", \"metadata\": {\"k\": 1}, \"tools\": "
                 "\"[{\\\"name\\\": \\\"f\\\"}]\"}\n"
                 "{\"input\": [{\"role\": \"user\", \"content\": \"two\"}], \"metadata\": "
                 "[], \"tools\": []}\n"
                 "{\"input\": \"\", \"metadata\": \"\", \"tools\": null}\n");
    ml_dataset ds;
    ml_prompt p;
    ml_arena a;
    ml_err err;

    ml_arena_init(&a, "test");
    CHECK(opens(&ds, &o) && ds.rows.n == 3);
    CHECK(!ml_dataset_prompt(&p, &ds, 0, &a, &err));
    CHECK(ml_str_is(p.text, "one") && !p.messages && !p.label);
    CHECK(p.metadata && ml_json_get(p.metadata, "k"));
    CHECK(p.tools && p.tools->n == 1 && ml_json_get(p.tools->child, "name"));
    CHECK(!ml_dataset_prompt(&p, &ds, 1, &a, &err));
    CHECK(p.messages && p.messages->n == 1 && !p.metadata && p.tools && p.tools->n == 0);
    CHECK(!ml_dataset_prompt(&p, &ds, 2, &a, &err));
    CHECK(!p.messages && p.text.len == 0 && !p.metadata && !p.tools);
    ml_dataset_close(&ds);
    ml_arena_release(&a);
}

static void reads_other_keys(void) {
    ml_dataset_opts o =
        opts_for("{\"q\": \"x\", \"a\": 4.0, \"m\": {\"z\": 0}, \"t\": [1]}\n");
    ml_dataset ds;
    ml_prompt p;
    ml_arena a;
    ml_err err;

    o.input_key = "q";
    o.label_key = "a";
    o.metadata_key = "m";
    o.tool_key = "t";
    ml_arena_init(&a, "test");
    CHECK(opens(&ds, &o));
    CHECK(!ml_dataset_prompt(&p, &ds, 0, &a, &err));
    CHECK(ml_str_is(p.text, "x") && ml_str_is(p.label->text, "4.0"));
    CHECK(p.metadata && p.tools && p.tools->n == 1);
    ml_dataset_close(&ds);
    ml_arena_release(&a);
}

static void refuses_options(void) {
    ml_dataset_opts good = opts_for("{\"input\": \"x\"}\n"), o = { 0 };

    refuses(&o, "no file of prompts");
    o = good;
    o.multimodal_keys = "{}";
    refuses(&o, "images, video and audio are not offered");
    o = good;
    o.label_key = "";
    refuses(&o, "the label key of the prompt data is empty");
    o = good;
    o.max_prompt_len = -1;
    refuses(&o, "a longest prompt of -1 tokens");
    o = good;
    o.template_kwargs = "[]";
    refuses(&o, "the arguments of the chat template are an array");
    o = good;
    o.template_kwargs = "{";
    refuses(&o, "arguments of the chat template:1:2:");
    o = good;
    o.path = ml_test_path("none.jsonl");
    refuses(&o, "none.jsonl: cannot be opened");
    o = good;
    o.path = "x.parquet";
    refuses(&o, "parquet is not read");
}

/* Bad rows on line 3, behind a good row and a blank line. */
static void names_bad_rows(void) {
    static const struct {
        const char *row, *message;
    } cases[] = {
        { "{\"input\": \"x\"", "prompts.jsonl:3:14: ',' or '}' was expected" },
        { "[1]", "prompts.jsonl:3: the row is an array; an object was expected" },
        { "{\"text\": \"x\", \"l\": 1}", "prompts.jsonl:3: the row has no field \"input\" "
                                         "for the prompt; its first field is "
                                         "\"text\"" },
        { "{}", "prompts.jsonl:3: the row has no field \"input\"" },
        { "{\"input\": 5, \"l\": 1}",
          "prompts.jsonl:3: the prompt \"input\" is a number; a string or" },
        { "{\"input\": [], \"l\": 1}", "prompts.jsonl:3: the prompt \"input\": is empty" },
        { "{\"input\": [\"x\"], \"l\": 1}", "message 0 is a string" },
        { "{\"input\": [{\"role\": \"user\"}, {\"content\": \"x\"}], \"l\": 1}",
          "message 1: its role is missing" },
        { "{\"input\": [{\"role\": 1}], \"l\": 1}", "message 0: its role is a number" },
        { "{\"input\": \"x\"}", "prompts.jsonl:3: the row has no label \"l\"" },
        { "{\"input\": \"x\", \"l\": 1, \"metadata\": \"m\"}",
          "the metadata \"metadata\" is a string" },
        { "{\"input\": \"x\", \"l\": 1, \"tools\": {}}",
          "the tools \"tools\" are an object" },
        { "{\"input\": \"x\", \"l\": 1, \"tools\": \"[\"}", "prompts.jsonl:3: tools:1:2:" },
        { "{\"input\": \"x\", \"l\": 1, \"tools\": \"1\"}",
          "the tools \"tools\" are a number" },
        { "{\"input\": \"x\", \"l\": NaN}", "prompts.jsonl:3:21: a value was expected" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char rows[512];
        ml_dataset_opts o;
        ml_dataset ds;
        snprintf(rows, sizeof rows,
                 "{\"input\": \"good\", \"l\": 0}\n\n%s\n{\"input\": \"last\", \"l\": 0}\n",
                 cases[i].row);
        o = opts_for(rows);
        o.label_key = "l";
        refuses(&o, cases[i].message);
        o.skip_bad_rows = true;
        CHECK(opens(&ds, &o));
        CHECK(ds.rows.n == 2 && ds.n_bad == 1 && ds.bad_line[0] == 3);
        ml_dataset_close(&ds);
    }
}

static void keep_line(void *ud, ml_log_level level, const char *line) {
    ml_text *t = ud;
    (void)level;
    ml_text_printf(t, "%s\n", line);
}

static void skips_and_says_so(void) {
    ml_dataset_opts o = opts_for(
        "x\n{\"input\": \"a\"}\n\n{\"input\": 1}\n{\"input\": \"b\"}\n{\"input\": \n");
    ml_text log = { 0 };
    ml_dataset ds;
    ml_prompt p;
    ml_arena a;
    ml_err err;

    ml_log_to(keep_line, &log);
    ml_arena_init(&a, "test");
    o.skip_bad_rows = true;
    CHECK(opens(&ds, &o));
    CHECK(ds.rows.n == 2 && ds.n_bad == 3);
    CHECK(ds.bad_line[0] == 1 && ds.bad_line[1] == 4 && ds.bad_line[2] == 6);
    CHECK_HAS(log.ptr, "3 bad rows are skipped, on lines 1, 4, 6; the first: ");
    CHECK_HAS(log.ptr, "prompts.jsonl:1:1: a value was expected, 'x' found");
    CHECK(!ml_dataset_prompt(&p, &ds, 1, &a, &err) && ml_str_is(p.text, "b"));
    ml_dataset_close(&ds);
    ml_arena_release(&a);
    ml_text_release(&log);
}

static void refuses_emptiness(void) {
    ml_dataset_opts o = opts_for("\n\n");

    refuses(&o, "no prompt is left: of 0 rows 0 are bad and 0 too long");
    o = opts_for("1\n2\n{\"input\": \"longer\"}\n");
    o.skip_bad_rows = true;
    o.max_prompt_len = 5;
    refuses(&o, "no prompt is left: of 3 rows 2 are bad and 1 too long");
}

static void slices_and_checks_only_these(void) {
    ml_dataset_opts o = opts_for("bad\n{\"input\": \"b\"}\n{\"input\": \"c\"}\nbad\n");
    char path[4096];
    ml_dataset ds;

    snprintf(path, sizeof path, "%s@[1:-1]", o.path);
    o.path = path;
    CHECK(opens(&ds, &o));
    CHECK(ds.rows.n == 2 && ds.n_bad == 0);
    ml_dataset_close(&ds);
}

static void drops_long_prompts(void) {
    ml_dataset_opts o =
        opts_for("{\"input\": \"four\"}\n{\"input\": \"fives\"}\n"
                 "{\"input\": [{\"role\": \"user\"}]}\n{\"input\": \"\"}\n");
    ml_text log = { 0 };
    ml_dataset ds;
    ml_prompt p;
    ml_arena a;
    ml_err err;

    ml_log_to(keep_line, &log);
    ml_arena_init(&a, "test");
    o.max_prompt_len = 4;
    CHECK(opens(&ds, &o));
    CHECK(ds.rows.n == 3 && ds.n_long == 1 && ds.n_unmeasured == 1);
    CHECK_HAS(log.ptr, "1 of 4 prompts are longer than 4 tokens");
    CHECK_HAS(log.ptr, "1 prompts are lists of messages");
    CHECK(!ml_dataset_prompt(&p, &ds, 1, &a, &err) && p.messages);
    ml_dataset_close(&ds);
    ml_arena_release(&a);
    ml_text_release(&log);

    o.text.ud = (char[]){ "f" };
    refuses(&o, "prompts.jsonl:1: the tokenizer refuses f");
}

static void applies_the_template(void) {
    ml_dataset_opts o = opts_for(
        "{\"input\": \"a\\\"b\"}\n{\"input\": [{\"role\": \"system\", \"content\": 1}]}\n"
        "{\"input\": \"x\", \"tools\": [{\"name\": \"f\"}]}\n");
    static const char *const want[] = {
        "[{\"role\":\"user\",\"content\":\"a\\\"b\"}]{\"think\":false}",
        "[{\"role\":\"system\",\"content\":1}]{\"think\":false}",
        "[{\"role\":\"user\",\"content\":\"x\"}][{\"type\":\"function\",\"function\":{"
        "\"description\":null,\"name\":\"f\",\"parameters\":null,\"strict\":false}}]"
        "{\"think\":false}",
    };
    ml_dataset ds;
    ml_arena a;
    ml_err err;

    ml_arena_init(&a, "test");
    o.apply_chat_template = true;
    o.template_kwargs = "{\"think\": false}";
    CHECK(opens(&ds, &o));
    for (int64_t i = 0; i < 3; i++) {
        ml_prompt p;
        CHECK(!ml_dataset_prompt(&p, &ds, i, &a, &err));
        if (!ml_str_is(p.text, want[i]) || p.messages)
            ml_test_fail(__FILE__, __LINE__, "%s", p.text.ptr);
        CHECK((p.tools != NULL) == (i == 2));
    }
    ml_dataset_close(&ds);
    ml_arena_release(&a);
}

/* A template that refuses wrapped functions gets them bare; its errors carry the line. */
static void templates_may_refuse(void) {
    ml_dataset_opts o = opts_for("\n{\"input\": \"x\", \"tools\": [{\"name\": \"f\"}]}\n");
    ml_dataset ds;
    ml_prompt p;
    ml_arena a;
    ml_err err;

    ml_arena_init(&a, "test");
    o.apply_chat_template = true;
    o.text.ud = (char[]){ "\"type\"" };
    CHECK(opens(&ds, &o));
    CHECK(!ml_dataset_prompt(&p, &ds, 0, &a, &err));
    CHECK(ml_str_is(p.text, "[{\"role\":\"user\",\"content\":\"x\"}][{\"description\":null,"
                            "\"name\":\"f\",\"parameters\":null,\"strict\":false}]"));
    ml_dataset_close(&ds);
    o.text.ud = (char[]){ "user" };
    refuses(&o, "prompts.jsonl:2: the template refuses user");
    ml_arena_release(&a);
}

/* Several blocks, several threads: the same rows stay, the same first bad one is named. */
static void threads_change_nothing(void) {
    enum { N = 150000 };
    ml_text rows = { 0 };
    ml_dataset_opts o;
    ml_dataset one, many;
    ml_err err_one, err_many;

    for (int i = 0; i < N; i++)
        ml_text_printf(&rows,
                       i % 1000 == 999 ? "{\"input\": %d\n" : "{\"input\": \"%d\"}\n", i);
    o = opts_for(rows.ptr);
    CHECK(ml_dataset_open(&one, &o, &err_one));
    CHECK(!ml_pool_new(&o.pool, 4, &err_many));
    CHECK(ml_dataset_open(&many, &o, &err_many));
    CHECK(strcmp(err_one.msg, err_many.msg) == 0);
    CHECK_HAS(err_many.msg, "prompts.jsonl:1000:14:");

    o.skip_bad_rows = true;
    o.max_prompt_len = 5;
    CHECK(opens(&many, &o));
    CHECK(many.n_bad == N / 1000 && many.n_long == (N - 100000) / 1000 * 999);
    CHECK(many.rows.n == N - many.n_bad - many.n_long);
    CHECK(many.bad_line[149] == N);
    ml_dataset_close(&many);
    ml_pool_free(o.pool);
    ml_text_release(&rows);
}

/* --- conversations ------------------------------------------------------------- */

static void normal_messages(void) {
    static const struct {
        const char *in, *out; /* out NULL: an error */
    } cases[] = {
        { "[{\"role\":\"user\",\"content\":null}]",
          "[{\"role\":\"user\",\"content\":null}]" },
        { "[{\"role\":\"assistant\",\"content\":null,\"x\":1}]",
          "[{\"role\":\"assistant\",\"content\":\"\",\"x\":1}]" },
        { "[{\"role\":\"assistant\"}]", "[{\"role\":\"assistant\"}]" },
        { "[{\"role\":\"assistant\",\"tool_calls\":[]}]",
          "[{\"role\":\"assistant\",\"tool_calls\":[]}]" },
        { "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
          "\"arguments\":"
          "\"{\\\"a\\\": [1.0, "
          "\\\"x\\\"]}\"},\"id\":7}]},{\"role\":\"tool\",\"content\":\"r\"}]",
          "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
          "\"arguments\":"
          "{\"a\":[1.0,\"x\"]}},\"id\":7}],\"content\":\"\"},{\"role\":\"tool\","
          "\"content\":\"r\"}]" },
        { "[{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"function\":"
          "{\"arguments\":{\"a\":1}}},3,{\"function\":null}]}]",
          "[{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"function\":"
          "{\"arguments\":{\"a\":1}}},3,{\"function\":null}]}]" },
        { "[{\"role\":\"user\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}]",
          "[{\"role\":\"user\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}]" },
        { "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}"
          "]",
          NULL },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ml_json *in, *out;
        ml_text before = { 0 }, after = { 0 };
        ml_arena a;
        ml_err err;
        ml_status st;
        ml_arena_init(&a, "test");
        CHECK(!ml_json_parse(&in, &a, ml_str_of(cases[i].in), "case", &err));
        st = ml_conversation_normal(&out, &a, in, &err);
        CHECK((st == ML_OK) == (cases[i].out != NULL));
        if (st)
            CHECK_HAS(err.msg, "arguments of a tool call:1:2:");
        else
            dump(&after, out);
        if (!st && strcmp(after.ptr, cases[i].out) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s became %s", cases[i].in, after.ptr);
        dump(&before, in);
        CHECK(ml_str_is(ml_str_of(cases[i].in), before.ptr) || strchr(cases[i].in, ' '));
        ml_text_release(&before);
        ml_text_release(&after);
        ml_arena_release(&a);
    }
}

static void normal_tools(void) {
    static const struct {
        const char *in, *out;
        bool good;
    } cases[] = {
        { "[]", NULL, true },
        { "[{\"function\":{\"parameters\":{\"b\":1,\"a\":2},\"name\":\"f\",\"more\":1,"
          "\"description\":\"d\",\"strict\":true},\"type\":\"other\"}]",
          "[{\"type\":\"other\",\"function\":{\"description\":\"d\",\"name\":\"f\","
          "\"parameters\":"
          "{\"b\":1,\"a\":2},\"strict\":true}}]",
          true },
        { "[{\"name\":\"g\",\"type\":5}]",
          "[{\"type\":\"function\",\"function\":{\"description\":null,\"name\":\"g\","
          "\"parameters\":null,\"strict\":false}}]",
          true },
        { "[1]", "a tool is a number without the name of a function", false },
        { "[{\"function\":{}}]", "a tool is an object without the name", false },
        { "[{\"function\":[]}]", "a tool is an array without the name", false },
        { "[{\"name\":1}]", "a tool's name is a number", false },
        { "[{\"name\":\"f\",\"strict\":null}]", "a tool's strict is null", false },
        { "[{\"name\":\"f\",\"description\":{}}]", "a tool's description is an object",
          false },
        { "[{\"function\":{\"name\":\"f\"},\"type\":1}]", "a tool's type is a number",
          false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ml_json *in, *out;
        ml_text got = { 0 };
        ml_arena a;
        ml_err err = { 0 };
        ml_arena_init(&a, "test");
        CHECK(!ml_json_parse(&in, &a, ml_str_of(cases[i].in), "case", &err));
        CHECK((ml_tools_normal(&out, &a, in, &err) == ML_OK) == cases[i].good);
        if (!cases[i].good)
            CHECK_HAS(err.msg, cases[i].out);
        else if (out)
            dump(&got, out);
        if (cases[i].good && cases[i].out && strcmp(got.ptr, cases[i].out) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s became %s", cases[i].in, got.ptr);
        CHECK(!cases[i].good || (out != NULL) == (cases[i].out != NULL));
        ml_text_release(&got);
        ml_arena_release(&a);
    }
}

/* --- the source ---------------------------------------------------------------- */

static ml_data_source *source_of(const ml_dataset *ds, bool shuffle, int64_t seed,
                                 int32_t n) {
    ml_data_source_opts o = { .shuffle = shuffle, .seed = seed, .n_samples_per_prompt = n };
    ml_data_source *s = NULL;
    ml_err err;

    if (ml_data_source_new(&s, ds, &o, &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return s;
}

static ml_dataset numbered(int n) {
    ml_text rows = { 0 };
    ml_dataset_opts o;
    ml_dataset ds;

    for (int i = 0; i < n; i++)
        ml_text_printf(&rows, "{\"input\": \"%d\"}\n", i);
    o = opts_for(rows.ptr);
    ml_text_release(&rows);
    opens(&ds, &o);
    return ds;
}

static void source_options(void) {
    ml_data_source_opts o = { .n_samples_per_prompt = 0 };
    ml_data_source *s;
    ml_err err;

    CHECK(ml_data_source_new(&s, NULL, &o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "0 samples per prompt");
    o = (ml_data_source_opts){ .seed = INT64_MIN, .n_samples_per_prompt = 1 };
    CHECK(ml_data_source_new(&s, NULL, &o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "the seed -9223372036854775808");
}

/* Groups out of epoch 1 with seed 42 are those of random.Random(43). */
static void epochs(void) {
    static const int64_t want[20] = { 7, 3, 2, 8, 5, 6, 9, 4, 0, 1,
                                      8, 1, 5, 6, 9, 7, 3, 2, 4, 0 };
    ml_dataset ds = numbered(10);
    ml_data_source *s = source_of(&ds, true, 42, 4);
    ml_group g[20];

    CHECK(ml_data_source_get(s, g, 0) == 0);
    CHECK(ml_data_source_get(s, g, 7) == 7);
    CHECK(ml_data_source_get(s, g + 7, 7) == 7);
    CHECK(ml_data_source_get(s, g + 14, 6) == 6);
    for (int64_t i = 0; i < 20; i++) {
        CHECK(g[i].row == want[i] && g[i].group_index == i);
        CHECK(g[i].first_index == 4 * i && g[i].n_sample == 4);
    }
    ml_data_source_free(s);
    ml_dataset_close(&ds);
}

static void gives_back(void) {
    ml_dataset ds = numbered(5);
    ml_data_source *s = source_of(&ds, false, 0, 2);
    ml_group g[5], again[5];

    CHECK(ml_data_source_get(s, g, 3) == 3);
    ml_data_source_add(s, g + 1, 2);
    ml_data_source_add(s, g, 1);
    CHECK(ml_data_source_n_buffered(s) == 3);
    CHECK(ml_data_source_get(s, again, 1) == 1 && again[0].row == 1);
    CHECK(ml_data_source_n_buffered(s) == 2);
    CHECK(ml_data_source_get(s, again, 4) == 4);
    CHECK(again[0].group_index == 2 && again[1].group_index == 0);
    CHECK(again[2].group_index == 3 && again[2].first_index == 6 && again[3].row == 4);
    CHECK(ml_data_source_n_buffered(s) == 0);
    ml_data_source_free(s);
    ml_dataset_close(&ds);
}

static void goes_without_data(void) {
    ml_data_source *s = source_of(NULL, true, 1, 3);
    ml_group g[2];

    CHECK(ml_data_source_get(s, g, 2) == 2);
    CHECK(g[1].row == -1 && g[1].group_index == 1 && g[1].first_index == 3);
    ml_data_source_free(s);
}

/* Stopped after any number of requests and restored, the source goes on as if nothing had
 * happened; the saved line is restored to the same line. */
static void resumes_anywhere(void) {
    ml_dataset ds = numbered(7);

    for (int stop = 0; stop < 12; stop++) {
        ml_data_source *whole = source_of(&ds, true, 9, 2),
                       *fresh = source_of(&ds, true, 9, 2);
        ml_text state = { 0 }, again = { 0 };
        ml_err err;

        for (int i = 0; i < 12; i++) {
            ml_group a[3], b[3];
            if (i == stop) {
                ml_data_source_save(whole, &state);
                CHECK(!ml_data_source_load(fresh, (ml_str){ state.ptr, state.len }, "s",
                                           &err));
                ml_data_source_save(fresh, &again);
                CHECK(strcmp(state.ptr, again.ptr) == 0);
            }
            CHECK(ml_data_source_get(whole, a, 3) == 3);
            if (i < stop)
                continue;
            CHECK(ml_data_source_get(fresh, b, 3) == 3);
            for (int k = 0; k < 3; k++)
                CHECK(a[k].row == b[k].row && a[k].group_index == b[k].group_index &&
                      a[k].first_index == b[k].first_index);
        }
        ml_text_release(&state);
        ml_text_release(&again);
        ml_data_source_free(whole);
        ml_data_source_free(fresh);
    }
    ml_dataset_close(&ds);
}

static void loads_states(void) {
    static const char good[] =
        "{\"sample_offset\": 1, \"epoch_id\": 2, \"sample_group_index\": "
        "3, \"sample_index\": 4, \"metadata\": {\"k\": [1.0]}, \"rows\": 8}";
    static const struct {
        const char *state, *message;
    } bad[] = {
        { "", "state.json:1:1: a value was expected" },
        { "[]", "\"sample_offset\" of the data source's state is missing" },
        { "{\"sample_offset\": -1}",
          "\"sample_offset\" of the data source's state is out of range" },
        { "{\"sample_offset\": 1.0}", "is out of range" },
        { "{\"sample_offset\": \"1\"}", "is a string; a count was expected" },
        { "{\"sample_offset\": 1, \"epoch_id\": 4611686018427387904}", "\"epoch_id\"" },
        { "{\"sample_offset\": 1, \"epoch_id\": 2, \"sample_group_index\": 3, "
          "\"sample_index\": 4, "
          "\"rows\": 3}",
          "\"metadata\" of the data source's state is missing" },
    };
    ml_dataset ds = numbered(3);
    ml_data_source *s = source_of(&ds, false, 0, 1);
    ml_text log = { 0 }, state = { 0 };
    ml_group g;
    ml_err err;

    ml_log_to(keep_line, &log);
    CHECK(!ml_data_source_load(s, ml_str_of(good), "state.json", &err));
    CHECK_HAS(log.ptr, "state.json: was saved with 8 prompts, now there are 3");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(ml_data_source_load(s, ml_str_of(bad[i].state), "state.json", &err));
        CHECK_HAS(err.msg, bad[i].message);
    }
    ml_data_source_save(s, &state); /* what was loaded before, untouched by the failures */
    CHECK_HAS(state.ptr,
              "{\"sample_offset\": 1, \"epoch_id\": 2, \"sample_group_index\": 3, "
              "\"sample_index\": 4, \"metadata\": {\"k\": [1.0]}, \"rows\": 3}");
    CHECK(ml_data_source_get(s, &g, 1) == 1);
    CHECK(g.row == 1 && g.group_index == 3 && g.first_index == 4);
    ml_text_release(&log);
    ml_text_release(&state);
    ml_data_source_free(s);
    ml_dataset_close(&ds);
}

static const ml_test tests[] = {
    { "reads_fields", reads_fields },
    { "reads_other_keys", reads_other_keys },
    { "refuses_options", refuses_options },
    { "names_bad_rows", names_bad_rows },
    { "skips_and_says_so", skips_and_says_so },
    { "refuses_emptiness", refuses_emptiness },
    { "slices_and_checks_only_these", slices_and_checks_only_these },
    { "drops_long_prompts", drops_long_prompts },
    { "applies_the_template", applies_the_template },
    { "templates_may_refuse", templates_may_refuse },
    { "threads_change_nothing", threads_change_nothing },
    { "normal_messages", normal_messages },
    { "normal_tools", normal_tools },
    { "source_options", source_options },
    { "epochs", epochs },
    { "gives_back", gives_back },
    { "goes_without_data", goes_without_data },
    { "resumes_anywhere", resumes_anywhere },
    { "loads_states", loads_states },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
