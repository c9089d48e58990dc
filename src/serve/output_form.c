#include "serve/output_form.h"

#include "base/json_out.h"

static bool is_word(const ml_json *v, const char *word) {
    return v && v->type == ML_JSON_STRING && ml_str_is(v->text, word);
}

/* The text of a value, which may not be a part of the body: other APIs make their own. */
static ml_str text_of(ml_job *j, const ml_json *v) {
    ml_text t = { 0 };
    ml_str kept;

    ml_json_write(&t, v);
    kept = ml_str_keep(&j->arena, (ml_str){ t.ptr, t.len });
    ml_text_release(&t);
    return kept;
}

/* --- response_format -------------------------------------------------------- */

static ml_status read_schema(ml_job *j, ml_openai_body *b, ml_err *err) {
    const ml_json *object = ml_json_get(b->format, "json_schema");
    const ml_json *schema = ml_json_get(object, "schema");

    if (!schema || schema->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EUSAGE,
                       "\"response_format\": expected {\"type\": \"json_schema\", "
                       "\"json_schema\": {\"name\": ..., \"schema\": {...}}}");
    b->sampling.source[ML_GRAMMAR_JSON_SCHEMA] = text_of(j, schema);
    return ML_OK;
}

ml_status ml_response_format_read(ml_job *j, ml_openai_body *b, ml_err *err) {
    const ml_json *type = b->format ? ml_json_get(b->format, "type") : NULL;
    ml_str *schema = &b->sampling.source[ML_GRAMMAR_JSON_SCHEMA];

    if (!b->format || is_word(type, "text"))
        return ML_OK;
    if (schema->len)
        return ml_fail(
            err, ML_EUSAGE,
            "\"response_format\" and \"json_schema\" are both set; expected one");
    if (is_word(type, "json_schema"))
        return read_schema(j, b, err);
    if (is_word(type, "json_object"))
        *schema = ml_str_of("{\"type\": \"object\"}");
    else if (is_word(type, "structural_tag"))
        b->sampling.source[ML_GRAMMAR_STRUCTURAL_TAG] = text_of(j, b->format);
    else
        return ml_fail(err, ML_EUSAGE,
                       "\"response_format\": \"type\" is not \"text\", \"json_object\", "
                       "\"json_schema\" or \"structural_tag\"");
    return ML_OK;
}

/* --- tools ------------------------------------------------------------------ */

static ml_str name_of(const ml_json *tool) {
    const ml_json *n = ml_json_get(ml_json_get(tool, "function"), "name");
    return n && n->type == ML_JSON_STRING ? n->text : (ml_str){ 0 };
}

/* The tools that a call may name. */
typedef struct tool_form {
    ml_job *job;
    const ml_json *tools;
    ml_str only;   /* the name that tool_choice requires; empty: any */
    bool required; /* the answer is a call, not text */
    bool single;   /* it has one call */
    bool strict;   /* some tool is strict */
    bool unnamed;  /* some tool has no name */
    bool all;      /* arguments follow the schemas of all tools, not of strict ones only */
} tool_form;

static bool is_offered(const tool_form *f, const ml_json *tool) {
    return !f->only.len || ml_str_eq(f->only, name_of(tool));
}

static void write_schema(const tool_form *f, const ml_json *tool, ml_json_out *o) {
    const ml_json *fn = ml_json_get(tool, "function");
    const ml_json *schema = ml_json_get(fn, "parameters"),
                  *strict = ml_json_get(fn, "strict");
    bool follows = f->all || (strict && strict->type == ML_JSON_TRUE);

    if (follows && schema && schema->type == ML_JSON_OBJECT && schema->n)
        ml_json_raw(o, text_of(f->job, schema));
    else
        ml_json_raw(o, ml_str_of("{\"type\": \"object\"}"));
}

/* A structural tag of calls in the model's own format. */
static void write_tags(const tool_form *f, ml_tool_format format, ml_text *out) {
    ml_json_out o = { .to = out };
    ml_text begin = { 0 }, end = { 0 };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "triggers");
    ml_json_begin(&o, '[');
    ml_json_word(&o, ml_tool_format_trigger(format));
    ml_json_end(&o, ']');
    ml_json_put_bool(&o, "at_least_one", f->required);
    ml_json_put_bool(&o, "stop_after_first", f->single);
    ml_json_put_word(&o, "separator", ml_tool_format_separator(format));
    ml_json_key(&o, "structures");
    ml_json_begin(&o, '[');
    for (const ml_json *t = f->tools->child; t; t = t->next) {
        if (!is_offered(f, t))
            continue;
        begin.len = end.len = 0;
        ml_tool_format_wrap(format, name_of(t), &begin, &end);
        ml_json_begin(&o, '{');
        ml_json_put_str(&o, "begin", (ml_str){ begin.ptr, begin.len });
        ml_json_key(&o, "schema");
        write_schema(f, t, &o);
        ml_json_put_str(&o, "end", (ml_str){ end.ptr, end.len });
        ml_json_end(&o, '}');
    }
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    ml_text_release(&begin);
    ml_text_release(&end);
}

/* As SGLang: [{"name": ..., "parameters": ...}, ...] */
static void write_list(const tool_form *f, ml_text *out) {
    ml_json_out o = { .to = out };

    ml_json_raw(&o, ml_str_of("{\"type\": \"array\", \"minItems\": 1, "));
    ml_text_printf(out, "%s\"items\": {\"anyOf\": [", f->single ? "\"maxItems\": 1, " : "");
    o.comma = false;
    for (const ml_json *t = f->tools->child; t; t = t->next) {
        if (!is_offered(f, t))
            continue;
        ml_json_begin(&o, '{');
        ml_json_put_word(&o, "type", "object");
        ml_json_key(&o, "properties");
        ml_json_begin(&o, '{');
        ml_json_key(&o, "name");
        ml_json_begin(&o, '{');
        ml_json_put_str(&o, "const", name_of(t));
        ml_json_end(&o, '}');
        ml_json_key(&o, "parameters");
        write_schema(f, t, &o);
        ml_json_end(&o, '}');
        ml_json_key(&o, "required");
        ml_json_raw(&o, ml_str_of("[\"name\", \"parameters\"]"));
        ml_json_end(&o, '}');
    }
    ml_text_printf(out, "]}}");
}

static ml_status set_grammar(const tool_form *f, ml_openai_body *b, ml_err *err) {
    ml_tool_format format = f->job->server->opts.tools;
    bool own = ml_tool_format_trigger(format) != NULL;
    ml_grammar_kind kind = own ? ML_GRAMMAR_STRUCTURAL_TAG : ML_GRAMMAR_JSON_SCHEMA;
    ml_text text = { 0 };

    if (!f->required && !own)
        return ml_fail(
            err, ML_EUNSUP,
            "strict tools and \"parallel_tool_calls\": false are not supported "
            "for the calls of --tool-call-parser %s, except with \"tool_choice\": "
            "\"required\"",
            ml_tool_format_name(format));
    if (f->unnamed)
        return ml_fail(err, ML_EUSAGE,
                       "\"tools\": expected {\"type\": \"function\", \"function\": "
                       "{\"name\": ...}}");
    for (int k = 0; k < ML_N_GRAMMAR; k++)
        if (b->sampling.source[k].len)
            return ml_fail(
                err, ML_EUSAGE,
                "\"tools\" that need a grammar (\"tool_choice\", strict, "
                "\"parallel_tool_calls\") exclude \"response_format\" and \"%s\"",
                ml_grammar_kind_name((ml_grammar_kind)k));
    if (own)
        write_tags(f, format, &text);
    else
        write_list(f, &text);
    b->calls_as_list = !own;
    b->calls_only = f->required;
    b->sampling.source[kind] = ml_str_keep(&f->job->arena, (ml_str){ text.ptr, text.len });
    ml_text_release(&text);
    return ML_OK;
}

static ml_status check_tools(tool_form *f, ml_err *err) {
    bool found = !f->only.len;

    for (const ml_json *t = f->tools->child; t; t = t->next) {
        const ml_json *strict = ml_json_get(ml_json_get(t, "function"), "strict");
        f->unnamed = f->unnamed || !name_of(t).len;
        found = found || ml_str_eq(f->only, name_of(t));
        f->strict = f->strict || (strict && strict->type == ML_JSON_TRUE);
    }
    if (!found)
        return ml_fail(err, ML_EUSAGE,
                       "\"tool_choice\" names \"%.*s\", which is not in "
                       "\"tools\"",
                       (int)(f->only.len < 100 ? f->only.len : 100), f->only.ptr);
    return ML_OK;
}

/* "auto", "none", "required", or {"type": "function", "function": {"name": ...}} */
static ml_status read_choice(tool_form *f, const ml_json *choice, ml_err *err) {
    f->only = name_of(choice);
    f->required = is_word(choice, "required") || f->only.len;
    if (choice && !f->required && !is_word(choice, "auto") && !is_word(choice, "none"))
        return ml_fail(err, ML_EUSAGE,
                       "\"tool_choice\": expected \"auto\", \"none\", \"required\" or "
                       "{\"type\": \"function\", \"function\": {\"name\": ...}}");
    if (f->required && (!f->tools || !f->tools->n))
        return ml_fail(err, ML_EUSAGE,
                       "\"tool_choice\" requires a call, but there are no "
                       "\"tools\"");
    return ML_OK;
}

ml_status ml_tool_choice_read(ml_job *j, ml_openai_body *b, ml_err *err) {
    tool_form f = { .job = j, .tools = b->tools, .single = !b->parallel_calls };

    if (b->tools && b->tools->type != ML_JSON_ARRAY)
        return ml_fail(err, ML_EUSAGE, "\"tools\" is %s; expected a list",
                       ml_json_what(b->tools));
    if (read_choice(&f, b->tool_choice, err))
        return ML_EUSAGE;
    if (is_word(b->tool_choice, "none") || (b->tools && b->tools->n == 0))
        b->tools = NULL;
    if (!b->tools)
        return ML_OK;
    if (j->server->opts.tools == ML_TOOLS_NONE)
        return ml_fail(err, ML_EUNSUP,
                       "\"tools\" need a tool call parser: start the server with "
                       "--tool-call-parser, or remove \"tools\"");
    if (check_tools(&f, err))
        return ML_EUSAGE;
    f.all = f.required;
    return f.required || f.single || f.strict ? set_grammar(&f, b, err) : ML_OK;
}
