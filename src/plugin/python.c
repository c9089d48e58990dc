#include "plugin/python.h"

#include <ctype.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "plugin/python_host.h"
#include "plugin/python_modules.h"

#define LIMIT_S 3600.0 /* of a call of the loop or of training */

/* Reads the first message, which has the worker's program. */
#define BOOT                                                                               \
    "import json, os, struct\n"                                                            \
    "def read(n):\n"                                                                       \
    "    data = b\"\"\n"                                                                   \
    "    while len(data) < n:\n"                                                           \
    "        part = os.read(3, n - len(data))\n"                                           \
    "        if not part:\n"                                                               \
    "            raise SystemExit\n"                                                       \
    "        data += part\n"                                                               \
    "    return data\n"                                                                    \
    "hello = json.loads(read(struct.unpack(\"=IIQd\", read(24))[0]))\n"                    \
    "exec(compile(hello[\"modules\"][\"miles_worker\"], \"<miles_worker>\", \"exec\"))\n"

/* "file.py", "file.py:name". */
static const char *end_of_file(const char *path) {
    const char *dot = strstr(path, ".py");

    return dot && (dot[3] == 0 || dot[3] == ':') && !strchr(path, ' ') ? dot + 3 : NULL;
}

/* Identifiers joined by dots or, before the last, a colon. */
static bool is_dotted(const char *path) {
    bool begins = true;
    int n_part = 1;

    for (const char *c = path; *c; c++) {
        bool joins = *c == '.' || *c == ':';
        if (begins ? !isalpha((unsigned char)*c) && *c != '_'
                   : !joins && !isalnum((unsigned char)*c) && *c != '_')
            return false;
        begins = joins;
        n_part += joins;
    }
    return !begins && n_part > 1;
}

bool ml_python_is(const char *path) {
    size_t n = strlen(path);

    if (n > 3 && strcmp(path + n - 3, ".so") == 0)
        return false;
    return end_of_file(path) || (is_dotted(path) && !strstr(path, ".so:"));
}

static void write_hello(ml_text *t, const ml_python_function *fn, int n, ml_str args) {
    ml_text_printf(t, "{\"modules\": {");
    for (const ml_python_module *m = ml_python_modules; m->name; m++) {
        ml_text_printf(t, "%s\"%s\": ", m > ml_python_modules ? ", " : "", m->name);
        ml_json_quote(t, ml_str_of(m->text));
    }
    ml_text_printf(t, "}, \"args\": %.*s, \"functions\": [", args.len ? (int)args.len : 2,
                   args.len ? args.ptr : "{}");
    for (int i = 0; i < n; i++) {
        ml_text_printf(t, "%s{\"flag\": \"%s\", \"path\": ", i ? ", " : "", fn[i].flag);
        ml_json_quote(t, ml_str_of(fn[i].path));
        if (fn[i].fallback)
            ml_text_printf(t, ", \"default\": \"%s\"", fn[i].fallback);
        ml_text_printf(t, "}");
    }
    ml_text_printf(t, "]}");
}

static ml_status check_file(const ml_python_function *fn, ml_arena *a, ml_err *err) {
    const char *end = end_of_file(fn->path), *file;

    if (!end)
        return ML_OK;
    file = ml_arena_str(a, fn->path, (size_t)(end - fn->path));
    if (access(file, R_OK) != 0)
        return ml_fail(err, ML_EIO, "--%s: cannot read %s", fn->flag, file);
    if (!*end && !fn->fallback)
        return ml_fail(err, ML_EUSAGE, "--%s: expected %s:NAME, with the function's name",
                       fn->flag, file);
    return ML_OK;
}

ml_status ml_python_try(const ml_worker_pool_opts *opts, ml_arena *a, const char **about,
                        ml_err *err) {
    ml_worker_pool *pool = NULL;
    ml_status st = ml_worker_pool_open(&pool, opts, err);

    if (st == ML_OK && about)
        *about = ml_arena_printf(a, "%s", ml_worker_pool_about(pool));
    ml_worker_pool_close(pool);
    return st;
}

ml_status ml_python_workers(ml_worker_pool_opts *out, ml_arena *a,
                            const ml_python_function *fn, int n, ml_str args, ml_err *err) {
    ml_status st = ML_OK;
    ml_text hello = { 0 };

    for (int i = 0; i < n && st == ML_OK; i++)
        st = check_file(&fn[i], a, err);
    if (st != ML_OK)
        return st;
    write_hello(&hello, fn, n, args);
    *out = (ml_worker_pool_opts){
        .line = "exec python3 -c '" BOOT "'",
        .name = n == 1 ? fn[0].path : "Python functions",
        .hello = { ml_arena_str(a, hello.ptr, hello.len), hello.len },
        .memory_flag = "reward-memory",
        .serve = ml_python_serve,
    };
    ml_text_release(&hello);
    return ML_OK;
}

/* --- one worker ------------------------------------------------------------------------ */

ml_status ml_python_worker_open(ml_python_worker *w, const ml_python_function *fn, int n,
                                ml_str args, size_t shared_bytes, ml_err *err) {
    ml_worker_pool_opts opts;
    ml_status st;

    ml_python_worker_close(w);
    ml_arena_init(&w->arena, "Python functions");
    st = ml_python_workers(&opts, &w->arena, fn, n, args, err);
    opts.shared_bytes = shared_bytes;
    if (st == ML_OK)
        st = ml_worker_pool_open(&w->pool, &opts, err);
    if (st != ML_OK)
        ml_arena_release(&w->arena);
    return st;
}

void ml_python_worker_close(ml_python_worker *w) {
    if (!w->pool)
        return;
    ml_worker_pool_close(w->pool);
    ml_arena_release(&w->arena);
    w->pool = NULL;
}

void ml_python_call_begin(ml_python_call *c, const char *flag) {
    *c = (ml_python_call){ 0 };
    ml_arena_init(&c->arena, "a call");
    ml_text_printf(&c->text, "{\"f\": \"%s\"", flag);
}

void ml_python_call_end(ml_python_call *c) {
    ml_text_release(&c->text);
    ml_arena_release(&c->arena);
}

int ml_python_call_run(ml_python_call *c, ml_python_worker *w, miles_error *err) {
    ml_text answer = { 0 };
    ml_worker_end how;
    const ml_json *error;
    ml_err why = { 0 };
    int failed = 1;

    ml_text_printf(&c->text, "}");
    how =
        ml_worker_pool_ask(w->pool, &answer, (ml_str){ c->text.ptr, c->text.len }, LIMIT_S);
    c->source = (ml_str){ ml_arena_str(&c->arena, answer.ptr, answer.len), answer.len };
    if (how != ML_WORKER_ANSWERED)
        ml_str_copy(err->text, sizeof err->text, c->source);
    else if (ml_json_parse(&c->answer, &c->arena, c->source, "the answer", &why) != ML_OK)
        ml_str_copy(err->text, sizeof err->text, ml_str_of(why.msg));
    else if ((error = ml_json_get(c->answer, "error")) && error->type == ML_JSON_STRING)
        ml_str_copy(err->text, sizeof err->text, error->text);
    else
        failed = 0;
    ml_text_release(&answer);
    return failed;
}
