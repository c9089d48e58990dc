#include "plugin/python_prompts.h"

#include <pthread.h>
#include <stdio.h>

#include "base/json.h"
#include "plugin/python_extensions.h"

#define FLAG "data-source-path"
#define KEPT 4096 /* rows */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ml_text
    kept[KEPT]; /* of the groups first .. next - 1, each at its number modulo KEPT */
static int64_t first, next;
static miles_error failure; /* of the latest get_samples; "": none */

/* --- rows ------------------------------------------------------------------------------ */

static void keep(ml_str text) {
    ml_text *t = &kept[next % KEPT];

    t->len = 0;
    ml_text_add(t, text.ptr, text.len);
    next++;
    if (next - first > KEPT)
        first = next - KEPT;
}

static ml_str source_of(ml_str text, const ml_json *v) {
    return (ml_str){ text.ptr + v->begin, v->end - v->begin };
}

void ml_python_prompts_clear(void) {
    for (int i = 0; i < KEPT; i++)
        ml_text_release(&kept[i]);
    first = next = 0;
    failure.text[0] = 0;
}

int64_t ml_python_prompts_pull(int64_t n) {
    const ml_json *answer = NULL, *rows;
    int64_t n_new = 0;
    char more[40];
    ml_str text = { 0 };
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "prompts");
    snprintf(more, sizeof more, ", \"n\": %lld", (long long)n);
    if (ml_python_extensions_call(FLAG, more, &a, &answer, &text, &err) != ML_OK) {
        pthread_mutex_lock(&lock);
        ml_str_copy(failure.text, sizeof failure.text, ml_str_of(err.msg));
        pthread_mutex_unlock(&lock);
        n_new = n;
    } else {
        pthread_mutex_lock(&lock);
        rows = ml_json_get(answer, "rows");
        for (const ml_json *v = rows ? rows->child : NULL; v && n_new < n; v = v->next) {
            keep(source_of(text, v));
            n_new++;
        }
        pthread_mutex_unlock(&lock);
    }
    ml_arena_release(&a);
    return n_new;
}

static int give_row(int64_t group, int64_t seed, miles_prompt_out *out, miles_error *err) {
    int failed = 0;

    (void)seed;
    pthread_mutex_lock(&lock);
    if (group >= first && group < next) {
        const ml_text *t = &kept[group % KEPT];
        out->emit(out, t->ptr, t->len);
    } else {
        failed = 1;
        snprintf(err->text, sizeof err->text, "%s",
                 group >= next && failure.text[0]
                     ? failure.text
                     : "the prompt of this group is not kept: the "
                       "group was begun too long ago");
    }
    pthread_mutex_unlock(&lock);
    return failed;
}

static miles_prompts prompts = {
    { sizeof(miles_prompts), MILES_PROMPTS, "a Python class", NULL, "" }, give_row
};

miles_extension *ml_python_prompts_base(void) {
    return &prompts.base;
}

bool ml_python_prompts_are(const miles_prompts *p) {
    return p == &prompts;
}

/* --- snapshots -------------------------------------------------------------------------- */

static ml_status call(const char *what, int64_t rollout, const char *dir, ml_err *err) {
    const ml_json *answer = NULL;
    ml_text more = { 0 };
    ml_str text = { 0 };
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "a data source");
    ml_text_printf(&more, ", \"%s\": %lld, \"dir\": ", what, (long long)rollout);
    ml_json_quote(&more, ml_str_of(dir ? dir : ""));
    st = ml_python_extensions_call(FLAG, more.ptr, &a, &answer, &text, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--" FLAG " %s", prompts.base.name);
    ml_text_release(&more);
    ml_arena_release(&a);
    return st;
}

/* Rows begin at "first_row"; a state without them has none. */
static ml_status take_rows(ml_str state, ml_err *err) {
    const ml_json *doc, *rows;
    int64_t from;
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "a snapshot's prompts");
    st = ml_json_parse(&doc, &a, state, "the data source's state", err);
    rows = st == ML_OK ? ml_json_get(doc, "rows_kept") : NULL;
    if (rows && rows->type == ML_JSON_ARRAY &&
        ml_json_i64(ml_json_get(doc, "first_row"), &from) && from >= 0) {
        first = next = from;
        for (const ml_json *v = rows->child; v; v = v->next)
            keep(source_of(state, v));
    }
    ml_arena_release(&a);
    return st;
}

ml_status ml_python_prompts_load(int64_t rollout, const char *dir, int64_t group,
                                 ml_str state, ml_err *err) {
    ml_status st = ML_OK;

    ml_python_prompts_clear();
    if (state.len)
        st = take_rows(state, err);
    if (next != group)
        first = next = group;
    return st == ML_OK ? call("load", rollout, dir, err) : st;
}

ml_status ml_python_prompts_save(int64_t rollout, bool rows, ml_text *state, ml_err *err) {
    ml_status st = call("save", rollout, NULL, err);

    if (st != ML_OK || !rows)
        return st;
    pthread_mutex_lock(&lock);
    ml_text_printf(state, "\"first_row\": %lld, \"rows_kept\": [", (long long)first);
    for (int64_t i = first; i < next; i++) {
        const ml_text *t = &kept[i % KEPT];
        ml_text_printf(state, "%s", i > first ? ", " : "");
        ml_text_add(state, t->ptr, t->len);
    }
    ml_text_printf(state, "]");
    pthread_mutex_unlock(&lock);
    return ML_OK;
}
