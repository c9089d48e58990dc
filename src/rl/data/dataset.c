#include "rl/data/dataset.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/log.h"
#include "rl/answers.h"
#include "text/chat/conversation.h"

/* --- options ------------------------------------------------------------------ */

static ml_status check_key(const char **key, const char *fallback, const char *what,
                           ml_err *err) {
    if (!*key)
        *key = fallback;
    if (*key && !**key)
        return ml_fail(
            err, ML_EUSAGE,
            "the %s key of the prompt data is empty; set it to a field of the rows", what);
    return ML_OK;
}

static ml_status check_keys(ml_dataset_opts *o, ml_err *err) {
    ml_status st = check_key(&o->input_key, "input", "input", err);

    if (!st)
        st = check_key(&o->label_key, NULL, "label", err);
    if (!st)
        st = check_key(&o->metadata_key, "metadata", "metadata", err);
    if (!st)
        st = check_key(&o->tool_key, "tools", "tool", err);
    return st;
}

static ml_status parse_kwargs(ml_dataset *ds, ml_err *err) {
    const char *text = ds->opts.template_kwargs ? ds->opts.template_kwargs : "{}";
    ml_status st = ml_json_parse(&ds->template_kwargs, &ds->arena, ml_str_of(text),
                                 "arguments of the chat template", err);

    if (!st && ds->template_kwargs->type != ML_JSON_OBJECT)
        st = ml_fail(err, ML_EUSAGE,
                     "the chat template's arguments are %s; expected an object such as "
                     "{\"enable_thinking\": false}",
                     ml_json_what(ds->template_kwargs));
    return st;
}

static ml_status check_opts(ml_dataset *ds, ml_err *err) {
    ml_dataset_opts *o = &ds->opts;
    ml_status st;

    ML_BUG_IF(o->apply_chat_template && !o->text.render);
    ML_BUG_IF(o->max_prompt_len > 0 && !o->text.count);
    if (!o->make && (!o->path || !*o->path))
        return ml_fail(err, ML_EUSAGE, "no prompt data; set it to a data file");
    if (o->multimodal_keys)
        return ml_fail(err, ML_EUNSUP,
                       "%s: images, video and audio are not supported; remove the "
                       "multimodal keys and use text prompts",
                       o->path);
    if (o->max_prompt_len < 0)
        return ml_fail(err, ML_EUSAGE,
                       "%s: the maximum prompt length is %lld; expected at least 1",
                       o->path, (long long)o->max_prompt_len);
    st = check_keys(o, err);
    if (!st && o->tools)
        st = ml_json_parse(&ds->tools, &ds->arena, ml_str_of(o->tools), "tools", err);
    return st ? st : parse_kwargs(ds, err);
}

/* --- a row -------------------------------------------------------------------- */

static ml_status read_label(ml_prompt *out, const ml_dataset *ds, const ml_json *row,
                            ml_err *err) {
    const char *key = ds->opts.label_key;

    out->label = key ? ml_json_get(row, key) : NULL;
    if (key && !out->label)
        return ml_fail(err, ML_EFORMAT, "the row has no label \"%s\"", key);
    return ML_OK;
}

/* Metadata that is false in Python counts as missing, as in Miles. */
static bool is_falsy(const ml_json *v) {
    double d;

    switch (v->type) {
    case ML_JSON_NULL:
    case ML_JSON_FALSE: return true;
    case ML_JSON_TRUE: return false;
    case ML_JSON_NUMBER: return ml_json_f64(v, &d) && d == 0;
    case ML_JSON_STRING: return v->text.len == 0;
    default: return v->n == 0;
    }
}

static ml_status read_metadata(ml_prompt *out, const ml_dataset *ds, const ml_json *row,
                               ml_err *err) {
    const char *key = ds->opts.metadata_key;

    out->metadata = ml_json_get(row, key);
    if (!out->metadata || is_falsy(out->metadata))
        out->metadata = NULL;
    else if (out->metadata->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EFORMAT, "the metadata \"%s\" is %s; expected an object",
                       key, ml_json_what(out->metadata));
    return ML_OK;
}

/* Tools are a list, or a list as JSON in a string, the form in which tables store it. */
static ml_status read_tools(ml_prompt *out, const ml_dataset *ds, const ml_json *row,
                            ml_arena *a, ml_err *err) {
    const char *key = ds->opts.tool_key;
    const ml_json *tools = ml_json_get(row, key);
    ml_status st = ML_OK;

    if (tools && tools->type == ML_JSON_STRING)
        st = ml_json_parse(&tools, a, tools->text, "tools", err);
    if (st)
        return st;
    out->tools = tools && tools->type != ML_JSON_NULL ? tools : ds->tools;
    if (out->tools && out->tools->type != ML_JSON_ARRAY)
        return ml_fail(err, ML_EFORMAT, "the tools \"%s\" are %s; expected an array", key,
                       ml_json_what(out->tools));
    return ML_OK;
}

static ml_status read_input(ml_prompt *out, const ml_dataset *ds, const ml_json *row,
                            ml_err *err) {
    const char *key = ds->opts.input_key;
    const ml_json *input = ml_json_get(row, key);
    ml_status st;

    if (!input)
        return ml_fail(err, ML_EFORMAT,
                       "the row has no field \"%s\" for the prompt; its first field is "
                       "\"%.*s\"",
                       key, row->child ? (int)row->child->key.len : 0,
                       row->child ? row->child->key.ptr : "");
    if (input->type == ML_JSON_STRING) {
        out->text = input->text;
        return ML_OK;
    }
    if (input->type != ML_JSON_ARRAY)
        return ml_fail(err, ML_EFORMAT,
                       "the prompt \"%s\" is %s; expected a string or a list of messages",
                       key, ml_json_what(input));
    out->messages = input;
    st = ml_conversation_check(input, err);
    if (st)
        ml_err_prefix(err, "the prompt \"%s\"", key);
    return st;
}

static ml_status call_template(ml_text *text, const ml_dataset *ds, const ml_json *messages,
                               const ml_json *tools, ml_arena *a, ml_err *err) {
    const ml_prompt_text *t = &ds->opts.text;
    ml_status st = t->render(t->ud, text, messages, tools, ds->template_kwargs, err);
    ml_err second;

    if (!st || !tools)
        return st;
    /* Some templates expect bare functions.  If that fails as well, report the first
     * error. */
    text->len = 0;
    return t->render(t->ud, text, messages, ml_tools_functions(a, tools),
                     ds->template_kwargs, &second)
               ? st
               : ML_OK;
}

static ml_status render(ml_prompt *p, const ml_dataset *ds, ml_arena *a, ml_err *err) {
    const ml_json *messages = p->messages, *tools;
    ml_text text = { 0 };
    ml_status st;

    if (!messages)
        messages = ml_conversation_of_text(a, p->text);
    st = ml_conversation_normal(&messages, a, messages, err);
    if (!st)
        st = ml_tools_normal(&tools, a, p->tools, err);
    if (!st)
        st = call_template(&text, ds, messages, tools, a, err);
    if (!st)
        *p = (ml_prompt){ .text = { ml_arena_str(a, text.ptr, text.len), text.len },
                          .label = p->label,
                          .metadata = p->metadata,
                          .tools = p->tools };
    ml_text_release(&text);
    return st;
}

static ml_status read_fields(ml_prompt *out, const ml_dataset *ds, const ml_json *row,
                             ml_arena *a, ml_err *err) {
    ml_status st;

    if (row->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EFORMAT, "the row is %s; expected an object",
                       ml_json_what(row));
    st = read_input(out, ds, row, err);
    if (!st)
        st = read_label(out, ds, row, err);
    if (!st)
        st = read_metadata(out, ds, row, err);
    if (!st)
        st = read_tools(out, ds, row, a, err);
    if (!st && ds->opts.apply_chat_template)
        st = render(out, ds, a, err);
    return st;
}

void ml_dataset_blame(const ml_dataset *ds, int64_t row, ml_err *err) {
    if (ds->opts.make)
        ml_err_prefix(err, "%s, prompt %lld", ds->opts.make->base.name, (long long)row);
    else
        ml_err_prefix(err, "%s:%lld", ml_table_path(&ds->rows, row),
                      (long long)ml_table_line(&ds->rows, row));
}

/* --- rows made by an extension --------------------------------------------------- */

typedef struct made_row {
    ml_arena *arena;
    ml_str text;
} made_row;

static void take_row(miles_prompt_out *out, const char *row, size_t len) {
    made_row *made = out->ctx;
    made->text = (ml_str){ ml_arena_str(made->arena, row, len), len };
}

static ml_status make_row(const ml_json **out, ml_str *text, const ml_dataset *ds,
                          int64_t row, ml_arena *a, ml_err *err) {
    const miles_prompts *make = ds->opts.make;
    made_row made = { .arena = a };
    miles_prompt_out sink = { .size = sizeof sink, .ctx = &made, .emit = take_row };
    miles_error why = { "" };

    if (make->make(row, ds->opts.seed, &sink, &why) != 0)
        return ml_extension_failed(&make->base, &why, err);
    if (!made.text.len)
        return ml_fail(err, ML_EFORMAT, "there is no prompt");
    *text = made.text;
    return ml_json_parse(out, a, made.text, "a prompt", err);
}

static ml_status read_row(const ml_json **out, ml_str *text, const ml_dataset *ds,
                          int64_t row, ml_arena *a, ml_err *err) {
    if (ds->opts.make) {
        ml_status st = make_row(out, text, ds, row, a, err);
        if (st != ML_OK)
            ml_dataset_blame(ds, row, err);
        return st;
    }
    return ml_table_parse(out, text, &ds->rows, row, a, err);
}

ml_status ml_dataset_prompt(ml_prompt *out, const ml_dataset *ds, int64_t row, ml_arena *a,
                            ml_err *err) {
    ml_err unwanted; /* callers that only check a row pass err = NULL */
    const ml_json *v = NULL;
    ml_str source = { 0 };
    ml_status st;

    ML_BUG_IF(row < 0 || (!ds->opts.make && row >= ds->rows.n));
    *out = (ml_prompt){ 0 };
    st = read_row(&v, &source, ds, row, a, err);
    if (st)
        return st;
    st = read_fields(out, ds, v, a, err ? err : &unwanted);
    out->source = source;
    if (st && err)
        ml_dataset_blame(ds, row, err);
    return st;
}

/* --- the check of all rows ---------------------------------------------------- */

typedef enum verdict { KEEP, KEEP_UNMEASURED, DROP_LONG, DROP_BAD } verdict;

/* err may be NULL, which avoids counting lines.  *tools: whether the row has tools.
 * *bytes: length of the prompt's text; -1: it is a list of messages. */
static verdict judge(const ml_dataset *ds, int64_t row, int worker, int64_t *bytes,
                     ml_arena *a, bool *tools, ml_err *err) {
    const ml_prompt_text *t = &ds->opts.text;
    ml_err unwanted;
    ml_prompt p;
    int64_t n = 0;

    if (ml_dataset_prompt(&p, ds, row, a, err))
        return DROP_BAD;
    *bytes = p.messages ? -1 : (int64_t)p.text.len;
    *tools = p.tools && p.tools->child;
    if (ds->opts.max_prompt_len == 0)
        return KEEP;
    if (p.messages)
        return KEEP_UNMEASURED;
    if (t->count(t->ud, worker, &n, p.text, err ? err : &unwanted)) {
        if (err)
            ml_dataset_blame(ds, row, err);
        return DROP_BAD;
    }
    return n > ds->opts.max_prompt_len ? DROP_LONG : KEEP;
}

/* Rows are checked in blocks, so that a bad first row of a large file is reported
 * immediately and the mapped pages of a finished block can be released. */
enum { BLOCK = 1 << 16, GRAIN = 256 };

typedef struct check {
    const ml_dataset *ds;
    int64_t first;        /* first row of the block */
    unsigned char *found; /* [rows.n] verdicts */
    int64_t *bytes;       /* [rows of the block] length of kept prompts; -1: not known */
    atomic_int_fast64_t *with_tools; /* the first row that has any; rows.n: none */
} check;

static void note_tools(atomic_int_fast64_t *first, int64_t row) {
    int_fast64_t seen = atomic_load(first);

    while (row < seen && !atomic_compare_exchange_weak(first, &seen, row))
        ;
}

static void judge_some(void *ud, int64_t begin, int64_t end, int worker) {
    const check *c = ud;

    for (int64_t i = c->first + begin; i < c->first + end; i++) {
        bool tools = false;
        ml_arena a;
        int64_t *bytes = &c->bytes[i - c->first];
        ml_arena_init(&a, "a row of prompts");
        *bytes = 0;
        c->found[i] = (unsigned char)judge(c->ds, i, worker, bytes, &a, &tools, NULL);
        if (c->found[i] != KEEP && c->found[i] != KEEP_UNMEASURED)
            *bytes = 0;
        ml_arena_release(&a);
        if (tools)
            note_tools(c->with_tools, i);
    }
}

static ml_status fail_for(const ml_dataset *ds, int64_t row, ml_err *err) {
    bool tools;
    ml_err local;
    int64_t bytes;
    ml_arena a;

    if (!err)
        err = &local;
    ml_arena_init(&a, "an invalid row of prompts");
    ML_BUG_IF(judge(ds, row, 0, &bytes, &a, &tools, err) != DROP_BAD);
    ml_arena_release(&a);
    return err->code;
}

static void note_longest(ml_dataset *ds, const int64_t *bytes, int64_t n) {
    for (int64_t i = 0; i < n && ds->longest_text >= 0; i++)
        if (bytes[i] < 0 || bytes[i] > ds->longest_text)
            ds->longest_text = bytes[i];
}

static ml_status judge_all(ml_dataset *ds, unsigned char *found, int64_t *bytes,
                           atomic_int_fast64_t *with_tools, ml_err *err) {
    for (int64_t first = 0; first < ds->rows.n; first += BLOCK) {
        int64_t n = ds->rows.n - first < BLOCK ? ds->rows.n - first : BLOCK;
        check c = { ds, first, found, bytes, with_tools };

        if (ds->opts.pool)
            ml_pool_run(ds->opts.pool, n, GRAIN, judge_some, &c);
        else
            judge_some(&c, 0, n, 0);
        for (int64_t i = first; i < first + n && !ds->opts.skip_bad_rows; i++)
            if (found[i] == DROP_BAD)
                return fail_for(ds, i, err);
        note_longest(ds, bytes, n);
        ml_table_forget(&ds->rows, first, first + n);
    }
    return ML_OK;
}

static void count(ml_dataset *ds, const unsigned char *found) {
    int64_t n[DROP_BAD + 1] = { 0 };

    for (int64_t i = 0; i < ds->rows.n; i++)
        n[found[i]]++;
    ds->n_unmeasured = n[KEEP_UNMEASURED];
    ds->n_long = n[DROP_LONG];
    ds->bad_line = ML_NEW(&ds->arena, int64_t, n[DROP_BAD]);
    for (int64_t i = 0; i < ds->rows.n; i++)
        if (found[i] == DROP_BAD)
            ds->bad_line[ds->n_bad++] = i;
}

/* "1, 5, 7, ...": the lines of the first invalid rows; with their files, if there are
 * several. */
static void name_lines(ml_text *out, ml_dataset *ds) {
    enum { N_NAMED = 20 };
    const char *path[N_NAMED];
    int64_t n = ds->n_bad < N_NAMED ? ds->n_bad : N_NAMED;

    for (int64_t i = 0; i < n; i++)
        path[i] = ml_table_path(&ds->rows, ds->bad_line[i]);
    ml_table_lines(&ds->rows, ds->bad_line, ds->n_bad);
    for (int64_t i = 0; i < n; i++)
        if (ds->rows.n_file > 1)
            ml_text_printf(out, "%s%s:%lld", i ? ", " : "", path[i],
                           (long long)ds->bad_line[i]);
        else
            ml_text_printf(out, "%s%lld", i ? ", " : "", (long long)ds->bad_line[i]);
    if (n < ds->n_bad)
        ml_text_printf(out, ", ...");
}

/* Logs how many rows were dropped, with the lines of the first few and the first reason. */
static void warn(ml_dataset *ds) {
    const char *path = ds->rows.path;
    ml_text lines = { 0 };
    ml_err first;

    if (ds->n_unmeasured)
        ml_log(ML_LOG_WARN,
               "%s: %lld prompts are lists of messages; their length is only limited with "
               "--apply-chat-template",
               path, (long long)ds->n_unmeasured);
    if (ds->n_long)
        ml_log(ML_LOG_INFO, "%s: skipped %lld of %lld prompts with more than %lld tokens",
               path, (long long)ds->n_long, (long long)ds->rows.n,
               (long long)ds->opts.max_prompt_len);
    if (!ds->n_bad)
        return;
    fail_for(ds, ds->bad_line[0], &first);
    name_lines(&lines, ds);
    ml_log(ML_LOG_WARN, "%s: skipped %lld invalid rows, on lines %s; the first: %s", path,
           (long long)ds->n_bad, lines.ptr, first.msg);
    ml_text_release(&lines);
}

/* Whether the template renders the same text with and without the row's tools. */
static bool loses_tools(const ml_dataset *ds, int64_t row) {
    ml_dataset plain = *ds;
    ml_prompt with, without;
    ml_err ignored;
    ml_arena a;
    bool lost;

    ml_arena_init(&a, "a row with tools");
    plain.opts.apply_chat_template = false;
    lost = ml_dataset_prompt(&with, &plain, row, &a, NULL) == ML_OK;
    without = with;
    without.tools = NULL;
    lost = lost && render(&with, ds, &a, &ignored) == ML_OK &&
           render(&without, ds, &a, &ignored) == ML_OK &&
           ml_str_eq(with.text, without.text);
    ml_arena_release(&a);
    return lost;
}

static void warn_of_tools(const ml_dataset *ds, int64_t row) {
    if (row == ds->rows.n || !ds->opts.apply_chat_template || !loses_tools(ds, row))
        return;
    ml_log(ML_LOG_WARN,
           "%s:%lld: the row has tools in \"%s\", but the chat template ignores them: use "
           "a template with tools (--chat-template-path)",
           ml_table_path(&ds->rows, row), (long long)ml_table_line(&ds->rows, row),
           ds->opts.tool_key);
}

static ml_status check_rows(ml_dataset *ds, ml_err *err) {
    int64_t n = ds->rows.n;
    atomic_int_fast64_t with_tools = n;
    unsigned char *found = calloc((size_t)n + 1, 1);
    int64_t *bytes = calloc(n < BLOCK ? (size_t)n + 1 : BLOCK, sizeof *bytes);
    ml_status st;

    if (!found || !bytes) {
        free(found);
        free(bytes);
        return ml_fail(err, ML_ENOMEM, "%s: out of memory for checking %lld rows",
                       ds->opts.path, (long long)n);
    }
    st = judge_all(ds, found, bytes, &with_tools, err);
    free(bytes);
    if (!st) {
        count(ds, found);
        warn(ds);
        warn_of_tools(ds, atomic_load(&with_tools));
        for (int64_t i = 0; i < n; i++)
            found[i] = found[i] == KEEP || found[i] == KEEP_UNMEASURED;
        ml_table_keep(&ds->rows, found);
    }
    free(found);
    if (!st && ds->rows.n == 0)
        st = ml_fail(
            err, ML_EFORMAT,
            "%s: no usable prompt: of %lld rows, %lld are invalid and %lld too long",
            ds->opts.path, (long long)n, (long long)ds->n_bad, (long long)ds->n_long);
    return st;
}

ml_status ml_dataset_open(ml_dataset *out, const ml_dataset_opts *opts, ml_err *err) {
    ml_status st;

    *out = (ml_dataset){ .opts = *opts, .longest_text = opts->make ? -1 : 0 };
    ml_arena_init(&out->arena, "a data set");
    st = check_opts(out, err);
    if (!st && !opts->make)
        st = ml_table_open(&out->rows, opts->path, err);
    if (!st && !opts->make)
        st = check_rows(out, err);
    if (st)
        ml_dataset_close(out);
    return st;
}

void ml_dataset_close(ml_dataset *ds) {
    ml_table_close(&ds->rows);
    ml_arena_release(&ds->arena);
    *ds = (ml_dataset){ 0 };
}
