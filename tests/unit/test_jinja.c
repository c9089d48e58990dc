/* Templates: limits, places of errors, spans, clock; checkpoints' templates; the command. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "text/chat/chat_template.h"

static ml_arena arena;
static ml_jinja_fault fault;
static ml_err err;

/* The text, or NULL after a fault. */
static const char *render(const char *template, ml_jinja_opts opts) {
    ml_jinja_text out;
    ml_jinja *t;
    ml_status st;

    ml_jinja_fault_release(&fault);
    if (ml_jinja_compile(&t, ml_str_of(template), &fault, &err))
        return NULL;
    st = ml_jinja_render(&out, &arena, t, &opts, &fault, &err);
    ml_jinja_free(t);
    return st ? NULL : out.text.ptr;
}

static const char *plain(const char *template) {
    return render(template, (ml_jinja_opts){ 0 });
}

static bool is(const char *got, const char *want) {
    if (!got || strcmp(got, want) != 0)
        printf("    got %s\n", got ? got : err.msg);
    return got && strcmp(got, want) == 0;
}

static bool fails(const char *template, const char *kind, uint32_t line, uint32_t column) {
    const char *got = plain(template);

    if (!got && strcmp(fault.kind, kind) == 0 && fault.line == line &&
        fault.column == column)
        return true;
    printf("    %s: %s\n", template, got ? got : err.msg);
    return false;
}

static void renders(void) {
    ml_json hello = { .type = ML_JSON_STRING, .text = { "hello", 5 } };
    ml_json other = { .type = ML_JSON_STRING, .text = { "other", 5 } };
    ml_jinja_var var[] = { { { "x", 1 }, &other }, { { "x", 1 }, &hello } };

    CHECK(is(plain("a{{ 1 + 1 }}b\n"), "a2b"));
    CHECK(is(plain(""), ""));
    CHECK(is(render("{{ x }}", (ml_jinja_opts){ .var = var, .n_var = 2 }), "hello"));
}

static void faults_have_a_place(void) {
    CHECK(fails("{{ x.y }}", "UndefinedError", 1, 5));
    CHECK(fails("ab\n  é {{ 'a' + 1 }}", "TypeError", 2, 12));
    CHECK(fails("{% if true %}\n{{ nope() }}{% endif %}", "UndefinedError", 2, 4));
    CHECK(fails("\n\n{{ 1 | nofilter }}", "TemplateAssertionError", 3, 8));
    CHECK(fails("{% for x in [1] %}{{ raise_exception('no') }}{% endfor %}",
                "TemplateError", 1, 22));
    CHECK(fails("a\r\nb {{ ? }}", "TemplateSyntaxError", 2, 6));
    CHECK_HAS(err.msg, "line 2, column 6: TemplateSyntaxError: unexpected char '?' at 7");
    CHECK(!plain("\xff") && !fault.kind);
    CHECK_HAS(err.msg, "not valid UTF-8 at byte 0");
}

static void limits_hold(void) {
    static const char *const endless[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% "
        "endfor %}",
        "{{ 'aaaaaaaaaaaaaaaa' * 999999999999 }}",
        "{{ [1, 2] * 999999999999 }}",
        "{{ 'x'.ljust(999999999999) }}",
        "{{ '%999999999999d' % 1 }}",
        "{{ '{:999999999999}'.format(1) }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}"
        "{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = ns.x ~ ns.x "
        "%}"
        "{% endfor %}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{{ ('a' * 99999) | replace('', 'bbbbbbbbbb' * 99999) }}",
        "{{ 'a' | indent(99999999999) }}",
        "{{ [1] | tojson(indent=99999999999) }}",
        "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
    };
    ml_jinja_opts small = { .max_steps = 1000000, .max_bytes = 1 << 24 };

    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++) {
        bool stopped = !render(endless[i], small) && fault.kind;
        if (!stopped || (strcmp(fault.kind, "LimitError") != 0 &&
                         strcmp(fault.kind, "RecursionError") != 0 &&
                         strcmp(fault.kind, "ValueError") != 0))
            ml_test_fail(__FILE__, __LINE__, "%s: %s", endless[i], err.msg);
    }
}

/* Work on long values costs steps by their length: a thousand looks at 100,000 characters or
 * items are too many here, though each is one operation of the template. */
static void long_values_cost_steps(void) {
    static const char *const looks[] = {
        "s.count('y')",
        "s.isalpha()",
        "s.islower()",
        "s is lower",
        "s | wordcount",
        "s == t",
        "s < t",
        "'y' in s",
        "s.find('y')",
        "s.rfind('xy')",
        "s.strip('abcd')",
        "s.rfind(h)",
        "s.startswith(t)",
        "l.count(0)",
        "s.strip(t)",
        "l == m",
        "s.isidentifier()",
        "s | wordwrap(9)",
        "l | first",
        "s.translate({})",
        "l | pprint",
        "s.maketrans(s, t)",
        "s.partition('y')",
        "0 in l",
    };
    ml_jinja_opts small = { .max_steps = 300000, .max_bytes = 1 << 28 };
    char template[600];

    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        snprintf(template, sizeof template,
                 "{%% set s = 'x' * 100000 %%}{%% set t = 'x' * 100000 %%}"
                 "{%% set h = 'x' * 50000 ~ 'y' %%}{%% set l = [1] * 10000 %%}"
                 "{%% set m = [1] * 10000 %%}"
                 "{%% for i in range(1000) %%}{%% set y = %s %%}{%% endfor %%}",
                 looks[i]);
        if (render(template, small) || !fault.kind || strcmp(fault.kind, "LimitError") != 0)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", looks[i],
                         fault.kind ? err.msg : "no limit");
    }
}

/* Source whose tree would be too deep to walk. */
static void deep_sources(void) {
    static const struct {
        const char *open, *mid, *close;
    } cases[] = { { "(", "1", ")" },     { "[", "", "]" },           { "-", "1", "" },
                  { "not ", "1", "" },   { "1 + ", "1", "" },        { "", "x", ".a" },
                  { "", "x", "|upper" }, { "1 and ", "1", "" },      { "{1:", "1", "}" },
                  { "", "x", "[0]" },    { "1 if 1 else ", "1", "" } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ml_text t = { 0 };
        ml_text_printf(&t, "{{ ");
        for (int k = 0; k < 20000; k++)
            ml_text_printf(&t, "%s", cases[i].open);
        ml_text_printf(&t, "%s", cases[i].mid);
        for (int k = 0; k < 20000; k++)
            ml_text_printf(&t, "%s", cases[i].close);
        ml_text_printf(&t, " }}");
        CHECK(!plain(t.ptr) && strcmp(fault.kind, "RecursionError") == 0);
        ml_text_release(&t);
    }
}

/* Many branches times many names must not multiply. */
static void wide_sources(void) {
    ml_text t = { 0 };

    for (int i = 0; i < 6000; i++)
        ml_text_printf(&t, "{{n%x}}{%%if a%%}{%%set b=1%%}{%%endif%%}", (unsigned)i);
    CHECK(t.len < ML_JINJA_SOURCE && is(plain(t.ptr), ""));
    while (t.len <= ML_JINJA_SOURCE)
        ml_text_printf(&t, "more and more and more and more and more text");
    CHECK(!plain(t.ptr));
    CHECK_HAS(err.msg, "the maximum is 262144");
    ml_text_release(&t);
}

static void spans_count_both_ways(void) {
    ml_jinja_text out;
    ml_jinja *t;

    CHECK(ml_jinja_compile(&t, ml_str_of("é{% generation %}日x{% endgeneration %}"), NULL,
                           &err) == ML_OK);
    CHECK(ml_jinja_render(&out, &arena, t, &(ml_jinja_opts){ 0 }, NULL, &err) == ML_OK);
    CHECK(out.n_span == 1 && out.span[0].begin == 1 && out.span[0].end == 3);
    CHECK(out.span[0].begin_byte == 2 && out.span[0].end_byte == 6);
    ml_jinja_free(t);
}

static void clock_can_be_set(void) {
    struct tm now = { .tm_year = 99, .tm_mon = 11, .tm_mday = 31, .tm_hour = 23 };
    CHECK(is(render("{{ strftime_now('%Y-%m-%d %H:%M') }}", (ml_jinja_opts){ .now = &now }),
             "1999-12-31 23:00"));
    CHECK(plain("{{ strftime_now('%Y') }}") != NULL);
}

/* --- checkpoints ---------------------------------------------------------------------- */

static void put(const char *name, const char *text) {
    CHECK(ml_file_replace(ml_test_path(name), ml_str_of(text), &err) == ML_OK);
}

static const ml_json *json(const char *text) {
    const ml_json *v = NULL;
    if (ml_json_parse(&v, &arena, ml_str_of(text), "test", &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return v;
}

/* A row through the checkpoint in the test's folder; NULL after a fault. */
static const char *chat(const char *choice, const char *row) {
    const ml_json *v = json(row), *prompt = ml_json_get(v, "add_generation_prompt");
    ml_chat c = { .messages = ml_json_get(v, "messages"),
                  .tools = ml_json_get(v, "tools"),
                  .add_generation_prompt = prompt && prompt->type == ML_JSON_TRUE,
                  .kwargs = v };
    ml_jinja_text out = { 0 };
    ml_chat_template *t;
    ml_status st = ml_chat_template_open(&t, ml_test_dir(), choice, &err);

    if (!st)
        st = ml_chat_render(&out, &arena, t, &c, NULL, &err);
    ml_chat_template_close(t);
    return st ? NULL : out.text.ptr;
}

static void template_of_the_config(void) {
    put("tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"pad_token\": "
        "null,"
        "\"add_bos_token\": true, \"image_token\": \"<img>\", "
        "\"extra_special_tokens\": {\"boi\": \"<boi>\"}, \"chat_template\": "
        "\"{{ bos_token }}{{ eos_token }}{{ image_token }}{{ boi }}{{ pad_token is defined "
        "}}"
        "{{ tools is none }}{{ documents is none }}{{ messages | length }}{{ kw }}\"}");
    CHECK(is(chat(NULL, "{\"messages\": [1], \"kw\": 7}"),
             "<s></s><img><boi>FalseTrueTrue17"));
    CHECK(is(chat(NULL, "{\"messages\": [], \"bos_token\": \"B\"}"),
             "B</s><img><boi>FalseTrueTrue0"));
    put("special_tokens_map.json", "{\"bos_token\": {\"content\": \"<map>\"}}");
    CHECK(is(chat(NULL, "{\"messages\": []}"), "<map></s><img><boi>FalseTrueTrue0"));
}

static void named_templates(void) {
    put("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"}, "
        "{\"name\": \"tool_use\", \"template\": \"T\"}, {\"name\": \"rag\", \"template\": "
        "\"R\"}]}");
    CHECK(is(chat(NULL, "{\"messages\": []}"), "D"));
    CHECK(is(chat(NULL, "{\"messages\": [], \"tools\": []}"), "T"));
    CHECK(is(chat("rag", "{\"messages\": [], \"tools\": []}"), "R"));
    put("own.jinja", "own {{ messages | length }}\n");
    CHECK(
        is(chat(ml_test_path("own.jinja"), "{\"messages\": [], \"tools\": []}"), "own 0"));
    CHECK(!chat("nope", "{\"messages\": []}"));
    CHECK_HAS(err.msg, "nope: no such file");
    CHECK_HAS(err.msg, "default, tool_use, rag");
    put("chat_template.jinja", "file");
    CHECK(is(chat(NULL, "{\"messages\": [], \"tools\": []}"), "file"));
    CHECK(mkdir(ml_test_path("additional_chat_templates"), 0777) == 0);
    put("additional_chat_templates/tool_use.jinja", "with tools");
    CHECK(is(chat(NULL, "{\"messages\": [], \"tools\": []}"), "with tools"));
}

static void bad_templates(void) {
    CHECK(!chat(NULL, "{\"messages\": []}"));
    CHECK_HAS(err.msg, "has no chat template");
    put("tokenizer_config.json", "{\"chat_template\": \"a\\n{% if %}\"}");
    CHECK(!chat(NULL, "{\"messages\": []}"));
    CHECK_HAS(err.msg, "tokenizer_config.json: chat_template: line 2, column 7: "
                       "TemplateSyntaxError: Expected an expression");
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"x\"}]}");
    CHECK(!chat(NULL, "{\"messages\": []}"));
    CHECK_HAS(err.msg, "expected an object with the strings");
    put("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"x\", \"template\": \"\"}, "
        "{\"name\": \"y\", \"template\": \"\"}]}");
    CHECK(!chat(NULL, "{\"messages\": []}"));
    CHECK_HAS(err.msg, "several chat templates (x, y) and none named default");
}

static ml_chat_check check(const char *template, const char *messages) {
    ml_chat c = { .messages = json(messages) };
    ml_chat_check out = { 0 };
    ml_chat_template *t;

    put("chat_template.jinja", template);
    CHECK(ml_chat_template_open(&t, ml_test_dir(), NULL, &err) == ML_OK);
    CHECK(ml_chat_check_stable(&out, &arena, t, &c, NULL, &err) == ML_OK);
    ml_chat_template_close(t);
    return out;
}

static void stability(void) {
    static const char talk[] = "[{\"role\": \"user\", \"content\": \"é1\"}, {\"role\": "
                               "\"assistant\", \"content\": "
                               "\"2\"}, {\"role\": \"tool\", \"content\": \"3\"}, "
                               "{\"role\": \"tool\", \"content\": "
                               "\"4\"}, {\"role\": \"assistant\", \"content\": \"5\"}]";
    ml_chat_check c =
        check("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
              "{% if add_generation_prompt %}[assistant]{% endif %}",
              talk);
    CHECK(c.stable && c.n_text == 6);
    /* the last message is written differently */
    c = check("{% for m in messages %}{{ m.content }}{{ '!' if loop.last }}{% endfor %}",
              talk);
    CHECK(!c.stable && c.message == 2 && c.character == 2);
    CHECK(ml_str_is(c.before, "!") && ml_str_is(c.after, "2!"));
    /* the generation prompt is not what the answer begins with */
    c = check("{% for m in messages %}{{ m.content }}{% endfor %}"
              "{% if add_generation_prompt %}>{% endif %}",
              talk);
    CHECK(!c.stable && c.message == 2 && c.character == 2 && ml_str_is(c.before, ">"));
    /* results of tools come together */
    c = check("{% for m in messages %}{{ m.content }}{{ ';' if m.role == 'tool' and "
              "(loop.last or loop.nextitem.role != 'tool') }}{% endfor %}",
              talk);
    CHECK(c.stable);
    /* what cannot be rendered on the way is passed over */
    c = check("{% if messages | length < 5 %}{{ raise_exception('more') }}{% endif %}x",
              talk);
    CHECK(c.stable && c.n_text == 1);
}

/* --- the command ------------------------------------------------------------------------ */

static int command(char out[4000], const char *flags, const char *rows) {
    char args[1000];

    put("rows.jsonl", rows);
    snprintf(args, sizeof args, "chat-template --hf-checkpoint %s %s < %s", ml_test_dir(),
             flags, ml_test_path("rows.jsonl"));
    return ml_test_miles(out, 4000, args);
}

static void command_line(void) {
    char out[4000];

    put("chat_template.jinja",
        "{% for m in messages %}{% if m.role == 'x' %}{{ raise_exception('no x') }}{% "
        "endif %}"
        "{{ m.content }}{% generation %}.{% endgeneration %}{% endfor %}"
        "{{ '>' if add_generation_prompt }}{{ kw }}");
    CHECK(command(
              out, "",
              "{\"messages\": [{\"content\": \"é\"}], \"add_generation_prompt\": true}\n\n"
              "{\"messages\": [{\"role\": \"x\"}]}\n{\"messages\": [], \"kw\": \"\\n\"}") ==
          0);
    CHECK(is(out, "{\"text\": \"é.>\", \"generation\": [[1, 2]]}\n"
                  "{\"error\": \"TemplateError: no x\", \"line\": 1, \"column\": 49}\n"
                  "{\"text\": \"\\n\"}\n"));
    CHECK(command(out, "", "{\"messages\": []}\n{\"messages\": 5}\n") == 1);
    CHECK_HAS(out, "standard input, line 2: expected an object with an array \"messages\"");
    CHECK(command(out, "", "\n{") == 1);
    CHECK_HAS(out, "standard input, line 2:1:2: ");
    CHECK(command(out, "", "{\"messages\": [], \"add_generation_prompt\": 1}") == 1);
    CHECK_HAS(out, "must be true or false");
    CHECK(command(out, "--check", "{\"messages\": [{\"content\": \"a\"}]}\n") == 0);
    CHECK(is(out, "{\"stable\": true, \"texts\": 1}\n"));
    put("last.jinja", "{{ messages[-1].content }}");
    CHECK(command(out, "--check --chat-template $PWD/none", "") == 1);
    CHECK_HAS(out, "no such file");
}

static void command_finds_rewriting(void) {
    char out[4000], flags[300];

    put("last.jinja", "{{ messages[-1].content }}");
    snprintf(flags, sizeof flags, "--check --chat-template %s", ml_test_path("last.jinja"));
    CHECK(
        command(out, flags,
                "{\"messages\": [{\"role\": \"a\", \"content\": \"ab\"}, {\"role\": \"b\", "
                "\"content\": \"ac\"}]}\n") == 1);
    CHECK_HAS(out, "{\"stable\": false, \"texts\": 2, \"message\": 2, \"character\": 1, "
                   "\"before\": \"b\", \"after\": \"c\"}");
    CHECK_HAS(out, "later turns change earlier text in 1 of 1 conversations");
}

static const ml_test tests[] = {
    { "templates render variables and literals", renders, 0 },
    { "template errors have line and column", faults_have_a_place, 0 },
    { "endless templates hit the limits of steps, depth and size", limits_hold, 0 },
    { "work on long values costs steps by their length", long_values_cost_steps, 0 },
    { "a template nested too deeply is refused", deep_sources, 0 },
    { "a template with many branches and names compiles in linear time", wide_sources, 0 },
    { "generation spans count bytes and code points", spans_count_both_ways, 0 },
    { "strftime_now uses the clock that is set", clock_can_be_set, 0 },
    { "the template and special tokens of tokenizer_config.json are used",
      template_of_the_config, 0 },
    { "a template is chosen by name", named_templates, 0 },
    { "a missing or broken chat template is named", bad_templates, 0 },
    { "a template that rewrites earlier messages is detected", stability, 0 },
    { "miles chat-template renders conversations", command_line, 0 },
    { "miles chat-template --check reports rewriting", command_finds_rewriting, 0 },
    { 0 },
};

int main(int argc, char **argv) {
    ml_arena_init(&arena, "test");
    return ml_test_main(argc, argv, tests);
}
