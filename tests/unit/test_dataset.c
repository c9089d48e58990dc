/* Data sets of prompts: their rows, what is refused, and the template on them. */
#include <stdio.h>
#include <string.h>

#include "rl/data/dataset.h"
#include "tests/support/json_text.h"
#include "tests/support/log_text.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

/* A template that shows what it was given, and a tokenizer whose tokens are bytes. */
static ml_status show(void *ud, ml_text *out, const ml_json *messages, const ml_json *tools,
                      const ml_json *kwargs, ml_err *err) {
    const char *refused = ud;

    ml_json_text(out, messages);
    if (tools)
        ml_json_text(out, tools);
    if (kwargs->child)
        ml_json_text(out, kwargs);
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
    ml_toy_file("prompts.jsonl", rows);
    return (ml_dataset_opts){ .path = ml_test_path("prompts.jsonl"),
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
    CHECK(ds.rows.file == NULL);
}

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

    refuses(&o, "no prompt data");
    o = good;
    o.multimodal_keys = "{}";
    refuses(&o, "images, video and audio are not supported");
    o = good;
    o.label_key = "";
    refuses(&o, "the label key of the prompt data is empty");
    o = good;
    o.max_prompt_len = -1;
    refuses(&o, "the maximum prompt length is -1");
    o = good;
    o.template_kwargs = "[]";
    refuses(&o, "the chat template's arguments are an array");
    o = good;
    o.template_kwargs = "{";
    refuses(&o, "arguments of the chat template:1:2:");
    o = good;
    o.path = ml_test_path("none.jsonl");
    refuses(&o, "none.jsonl: cannot open");
    o = good;
    o.path = "x.csv";
    refuses(&o, "x.csv: expected a .jsonl, .json or .parquet file");
}

/* Bad rows on line 3, behind a good row and a blank line. */
static void names_bad_rows(void) {
    static const struct {
        const char *row, *message;
    } cases[] = {
        { "{\"input\": \"x\"", "prompts.jsonl:3:14: expected ',' or '}'" },
        { "[1]", "prompts.jsonl:3: the row is an array; expected an object" },
        { "{\"text\": \"x\", \"l\": 1}", "prompts.jsonl:3: the row has no field \"input\" "
                                         "for the prompt; its first field is "
                                         "\"text\"" },
        { "{}", "prompts.jsonl:3: the row has no field \"input\"" },
        { "{\"input\": 5, \"l\": 1}",
          "prompts.jsonl:3: the prompt \"input\" is a number; expected a string or" },
        { "{\"input\": [], \"l\": 1}", "prompts.jsonl:3: the prompt \"input\": is empty" },
        { "{\"input\": [\"x\"], \"l\": 1}", "message 0 is a string" },
        { "{\"input\": [{\"role\": \"user\"}, {\"content\": \"x\"}], \"l\": 1}",
          "message 1: role is missing" },
        { "{\"input\": [{\"role\": 1}], \"l\": 1}", "message 0: role is a number" },
        { "{\"input\": \"x\"}", "prompts.jsonl:3: the row has no label \"l\"" },
        { "{\"input\": \"x\", \"l\": 1, \"metadata\": \"m\"}",
          "the metadata \"metadata\" is a string" },
        { "{\"input\": \"x\", \"l\": 1, \"tools\": {}}",
          "the tools \"tools\" are an object" },
        { "{\"input\": \"x\", \"l\": 1, \"tools\": \"[\"}", "prompts.jsonl:3: tools:1:2:" },
        { "{\"input\": \"x\", \"l\": 1, \"tools\": \"1\"}",
          "the tools \"tools\" are a number" },
        { "{\"input\": \"x\", \"l\": NaN}", "prompts.jsonl:3:21: expected a value" },
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

static void skips_and_says_so(void) {
    ml_dataset_opts o = opts_for(
        "x\n{\"input\": \"a\"}\n\n{\"input\": 1}\n{\"input\": \"b\"}\n{\"input\": \n");
    ml_text log = { 0 };
    ml_dataset ds;
    ml_prompt p;
    ml_arena a;
    ml_err err;

    ml_log_to_text(&log);
    ml_arena_init(&a, "test");
    o.skip_bad_rows = true;
    CHECK(opens(&ds, &o));
    CHECK(ds.rows.n == 2 && ds.n_bad == 3);
    CHECK(ds.bad_line[0] == 1 && ds.bad_line[1] == 4 && ds.bad_line[2] == 6);
    CHECK_HAS(log.ptr, "skipped 3 invalid rows, on lines 1, 4, 6; the first: ");
    CHECK_HAS(log.ptr, "prompts.jsonl:1:1: expected a value, found 'x'");
    CHECK(!ml_dataset_prompt(&p, &ds, 1, &a, &err) && ml_str_is(p.text, "b"));
    ml_dataset_close(&ds);
    ml_arena_release(&a);
    ml_text_release(&log);
}

static void refuses_emptiness(void) {
    ml_dataset_opts o = opts_for("\n\n");

    refuses(&o, "no usable prompt: of 0 rows, 0 are invalid and 0 too long");
    o = opts_for("1\n2\n{\"input\": \"longer\"}\n");
    o.skip_bad_rows = true;
    o.max_prompt_len = 5;
    refuses(&o, "no usable prompt: of 3 rows, 2 are invalid and 1 too long");
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

    ml_log_to_text(&log);
    ml_arena_init(&a, "test");
    o.max_prompt_len = 4;
    CHECK(opens(&ds, &o));
    CHECK(ds.rows.n == 3 && ds.n_long == 1 && ds.n_unmeasured == 1);
    CHECK_HAS(log.ptr, "skipped 1 of 4 prompts with more than 4 tokens");
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

static ml_status show_no_tools(void *ud, ml_text *out, const ml_json *messages,
                               const ml_json *tools, const ml_json *kwargs, ml_err *err) {
    (void)tools;
    return show(ud, out, messages, NULL, kwargs, err);
}

/* Tools that the template does not write are told of once, with the first such row. */
static void tools_the_template_lacks(void) {
    static const char rows[] =
        "{\"input\": \"a\", \"tools\": []}\n{\"input\": \"x\", \"tools\": [{\"name\": "
        "\"f\"}]}\n{\"input\": \"y\", \"tools\": [{\"name\": \"f\"}]}\n";
    ml_dataset_opts o = opts_for(rows);
    ml_text log = { 0 };
    ml_dataset ds;

    ml_log_to_text(&log);
    o.apply_chat_template = true;
    CHECK(opens(&ds, &o));
    CHECK(log.len == 0);
    ml_dataset_close(&ds);
    o.text.render = show_no_tools;
    CHECK(opens(&ds, &o));
    CHECK_HAS(log.ptr, "prompts.jsonl:2: the row has tools in \"tools\", but the chat "
                       "template ignores them");
    CHECK(!strstr(log.ptr, "prompts.jsonl:3:"));
    ml_dataset_close(&ds);
    log.len = 0;
    o.apply_chat_template = false;
    CHECK(opens(&ds, &o));
    CHECK(log.len == 0);
    ml_dataset_close(&ds);
    ml_text_release(&log);
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

static const ml_test tests[] = {
    { "rows give prompt, label, metadata and tools", reads_fields },
    { "rows are read by the keys that are set", reads_other_keys },
    { "a data set with bad options is refused", refuses_options },
    { "a bad row is named with file and line", names_bad_rows },
    { "skipped bad rows are counted and their lines reported", skips_and_says_so },
    { "a data set without a usable row is refused", refuses_emptiness },
    { "a slice checks its own rows alone", slices_and_checks_only_these },
    { "prompts over --rollout-max-prompt-len are dropped and counted", drops_long_prompts },
    { "tools that the template does not write are warned of once",
      tools_the_template_lacks },
    { "the chat template renders strings and messages", applies_the_template },
    { "a template's error carries the row's line", templates_may_refuse },
    { "a data set has the same rows for any number of threads", threads_change_nothing },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
