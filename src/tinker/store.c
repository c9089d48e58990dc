#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/file.h"
#include "tinker/tinker_priv.h"

#define SCHEME "tinker://"
#define RUN_FILE "run.json"

static const char *const kinds[] = { "weights", "sampler_weights", "external_weights" };
static const char *const types[] = { "training", "sampler", "external" };
enum { N_KIND = sizeof kinds / sizeof *kinds };

/* --- names ----------------------------------------------------------------------------- */

/* Names become names of directories: letters, digits and "._:-", not beginning with a dot. */
static bool is_name(ml_str s) {
    if (!s.len || s.len > 200 || s.ptr[0] == '.')
        return false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              strchr("._:-", c)))
            return false;
    }
    return true;
}

static void fill(ml_store_path *out, ml_arena *a, const char *dir) {
    const char *kind = kinds[out->kind];

    out->dir = ml_arena_printf(a, "%s/%s/%s/%s", dir, out->run, kind, out->name);
    out->uri = ml_arena_printf(a, SCHEME "%s/%s/%s", out->run, kind, out->name);
}

ml_status ml_store_path_of(ml_store_path *out, ml_arena *a, const char *dir,
                           const char *run, ml_store_kind kind, ml_str name, ml_err *err) {
    *out = (ml_store_path){ .kind = kind, .run = run };
    if (!is_name(name))
        return ml_fail(
            err, ML_EUSAGE,
            "\"%.*s\" cannot be the name of a checkpoint: use up to 200 letters, "
            "digits, and . _ : -, not beginning with a dot",
            (int)(name.len < 200 ? name.len : 200), name.ptr);
    out->name = ml_arena_str(a, name.ptr, name.len);
    fill(out, a, dir);
    return ML_OK;
}

/* The part of s before the next slash, or all of it. */
static ml_str next_part(ml_str *s) {
    const char *slash = memchr(s->ptr, '/', s->len);
    ml_str part = { s->ptr, slash ? (size_t)(slash - s->ptr) : s->len };
    size_t n = part.len + (slash != NULL);

    *s = (ml_str){ s->ptr + n, s->len - n };
    return part;
}

static int kind_of(ml_str word) {
    int k = 0;

    while (k < N_KIND && !ml_str_is(word, kinds[k]))
        k++;
    return k;
}

/* RUN/KIND/NAME */
static bool parse_parts(ml_store_path *out, ml_arena *a, const char *dir, ml_str rest) {
    ml_str run = next_part(&rest), kind = next_part(&rest);
    int k = kind_of(kind);

    if (!is_name(run) || k == N_KIND || !is_name(rest))
        return false;
    *out = (ml_store_path){ .kind = (ml_store_kind)k,
                            .run = ml_arena_str(a, run.ptr, run.len),
                            .name = ml_arena_str(a, rest.ptr, rest.len) };
    fill(out, a, dir);
    return true;
}

ml_status ml_store_parse(ml_store_path *out, ml_arena *a, const char *dir, ml_str uri,
                         ml_err *err) {
    size_t n = strlen(SCHEME);

    if (uri.len > n && memcmp(uri.ptr, SCHEME, n) == 0 &&
        parse_parts(out, a, dir, (ml_str){ uri.ptr + n, uri.len - n }))
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "\"%.*s\" is no path of a checkpoint: expected "
                   "tinker://RUN/weights/NAME or tinker://RUN/sampler_weights/NAME",
                   (int)(uri.len < 200 ? uri.len : 200), uri.ptr);
}

/* --- writing --------------------------------------------------------------------------- */

/* A checkpoint exists when its description does. */
static const char *description(ml_arena *a, const ml_store_path *p) {
    return ml_arena_printf(a, "%s.json", p->dir);
}

bool ml_store_exists(const ml_store_path *p) {
    ml_arena a;
    bool found;

    ml_arena_init(&a, "a path");
    found = access(description(&a, p), F_OK) == 0;
    ml_arena_release(&a);
    return found;
}

static void put_time(ml_json_out *o, const char *key, time_t at) {
    char text[40];
    struct tm tm;

    gmtime_r(&at, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    ml_json_put_word(o, key, text);
}

static void put_metadata(ml_json_out *o, const ml_json *metadata) {
    ml_text text = { 0 };

    ml_json_key(o, "user_metadata");
    if (metadata && metadata->type == ML_JSON_OBJECT) {
        ml_json_write(&text, metadata);
        ml_json_raw(o, (ml_str){ text.ptr, text.len });
    } else {
        ml_json_null(o);
    }
    ml_text_release(&text);
}

ml_status ml_store_add(const ml_store_path *p, const ml_json *metadata, ml_err *err) {
    ml_text text = { 0 };
    ml_json_out o = { .to = &text };
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "a path");
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "checkpoint_id",
                     ml_arena_printf(&a, "%s/%s", kinds[p->kind], p->name));
    ml_json_put_word(&o, "checkpoint_type", types[p->kind]);
    ml_json_put_word(&o, "tinker_path", p->uri);
    put_time(&o, "time", time(NULL));
    put_metadata(&o, metadata);
    ml_json_end(&o, '}');
    st = ml_file_replace(description(&a, p), (ml_str){ text.ptr, text.len }, err);
    ml_text_release(&text);
    ml_arena_release(&a);
    return st;
}

ml_status ml_store_add_run(ml_tinker *t, const ml_model_client *m, const ml_json *metadata,
                           ml_err *err) {
    ml_text text = { 0 };
    ml_json_out o = { .to = &text };
    ml_status st;
    const char *dir;
    ml_arena a;

    ml_arena_init(&a, "a run");
    dir = ml_arena_printf(&a, "%s/%s", t->opts.dir, m->id);
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "training_run_id", m->id);
    ml_json_put_word(&o, "base_model", t->opts.model);
    ml_json_put_word(&o, "model_owner", "local");
    ml_json_put_bool(&o, "is_lora", true);
    ml_json_put_bool(&o, "corrupted", false);
    ml_json_put_int(&o, "lora_rank", m->rank);
    ml_json_put_bool(&o, "train_unembed", false);
    ml_json_put_bool(&o, "train_mlp", m->mlp);
    ml_json_put_bool(&o, "train_attn", m->attn);
    put_time(&o, "last_request_time", time(NULL));
    put_metadata(&o, metadata);
    ml_json_end(&o, '}');
    st = ml_dir_make(dir, err);
    if (st == ML_OK)
        st = ml_file_replace(ml_arena_printf(&a, "%s/" RUN_FILE, dir),
                             (ml_str){ text.ptr, text.len }, err);
    ml_text_release(&text);
    ml_arena_release(&a);
    return st;
}

/* Removes what belonged to clients of a server that has ended. */
ml_status ml_store_open(const char *dir, ml_err *err) {
    ml_names runs;
    ml_status st = ml_dir_make(dir, err);
    ml_arena a;

    ml_arena_init(&a, "runs");
    if (st == ML_OK)
        st = ml_dir_list(&runs, dir, &a, err);
    for (int32_t i = 0; st == ML_OK && i < runs.n; i++) {
        const char *old = ml_arena_printf(&a, "%s/%s/ephemeral", dir, runs.name[i]);
        if (access(old, F_OK) == 0)
            st = ml_dir_remove(old, err);
    }
    ml_arena_release(&a);
    return st;
}

/* --- reading --------------------------------------------------------------------------- */

/* The text of a file, or an empty one. */
static ml_str text_of(ml_arena *a, const char *path) {
    ml_file f = { 0 };
    ml_str s = { "", 0 };

    if (access(path, F_OK) != 0 || ml_file_map(&f, path, NULL) != ML_OK)
        return s;
    s = (ml_str){ ml_arena_str(a, f.bytes.ptr, f.bytes.len), f.bytes.len };
    ml_file_unmap(&f);
    return s;
}

static ml_str run_text(ml_arena *a, const ml_tinker *t, const char *run) {
    return text_of(a, ml_arena_printf(a, "%s/%s/" RUN_FILE, t->opts.dir, run));
}

ml_status ml_store_info(ml_text *out, ml_tinker *t, ml_str uri, ml_err *err) {
    ml_store_path p = { 0 };
    ml_arena a;
    ml_str run;
    ml_status st;

    ml_arena_init(&a, "a checkpoint");
    st = ml_store_parse(&p, &a, t->opts.dir, uri, err);
    if (st == ML_OK && !ml_store_exists(&p))
        st = ml_fail(err, ML_EUSAGE, "%s does not exist on this server", p.uri);
    run = st == ML_OK ? run_text(&a, t, p.run) : (ml_str){ "", 0 };
    if (st == ML_OK && !run.len)
        st = ml_fail(err, ML_EIO, "%s/%s/" RUN_FILE " cannot be read", t->opts.dir, p.run);
    if (st == ML_OK)
        ml_text_add(out, run.ptr, run.len);
    ml_arena_release(&a);
    return st;
}

/* Appends the descriptions of a run's checkpoints to a list. */
static void put_checkpoints(ml_json_out *o, ml_tinker *t, const char *run, ml_arena *a) {
    for (int k = 0; k < N_KIND; k++) {
        const char *dir = ml_arena_printf(a, "%s/%s/%s", t->opts.dir, run, kinds[k]);
        ml_names names = { 0 };
        if (access(dir, F_OK) != 0 || ml_dir_list(&names, dir, a, NULL) != ML_OK)
            continue;
        for (int32_t i = 0; i < names.n; i++) {
            size_t n = strlen(names.name[i]);
            ml_str text;
            if (n < 6 || strcmp(names.name[i] + n - 5, ".json") != 0)
                continue;
            text = text_of(a, ml_arena_printf(a, "%s/%s", dir, names.name[i]));
            if (text.len)
                ml_json_raw(o, text);
        }
    }
}

static ml_names list_runs(ml_tinker *t, ml_arena *a) {
    ml_names names = { 0 };

    if (ml_dir_list(&names, t->opts.dir, a, NULL) != ML_OK)
        names.n = 0;
    return names;
}

static void put_cursor(ml_json_out *o, int32_t n) {
    ml_json_key(o, "cursor");
    ml_json_begin(o, '{');
    ml_json_put_int(o, "offset", 0);
    ml_json_put_int(o, "limit", n);
    ml_json_put_int(o, "total_count", n);
    ml_json_end(o, '}');
}

static void serve_list(ml_tinker *t, ml_http_call *c, ml_arena *a, bool checkpoints) {
    ml_names runs = list_runs(t, a);
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_key(&o, checkpoints ? "checkpoints" : "training_runs");
    ml_json_begin(&o, '[');
    for (int32_t i = 0; i < runs.n; i++) {
        ml_str run = run_text(a, t, runs.name[i]);
        if (checkpoints)
            put_checkpoints(&o, t, runs.name[i], a);
        else if (run.len)
            ml_json_raw(&o, run);
    }
    ml_json_end(&o, ']');
    put_cursor(&o, runs.n);
    ml_json_end(&o, '}');
    ml_tinker_reply(c, 200, &body);
}

static void serve_checkpoints(ml_tinker *t, ml_http_call *c, ml_arena *a, const char *run) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "checkpoints");
    ml_json_begin(&o, '[');
    put_checkpoints(&o, t, run, a);
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    ml_tinker_reply(c, 200, &body);
}

/* The description goes first: without it, the rest does not count. */
static void delete_checkpoint(ml_tinker *t, ml_http_call *c, ml_arena *a, ml_str run,
                              ml_str rest) {
    ml_store_path p = { 0 };
    ml_err err = { 0 };
    const char *all =
        ml_arena_printf(a, "%.*s/%.*s", (int)run.len, run.ptr, (int)rest.len, rest.ptr);

    if (!parse_parts(&p, a, t->opts.dir, ml_str_of(all)) || !ml_store_exists(&p)) {
        ml_tinker_refuse(c, 404, "The checkpoint does not exist.");
        return;
    }
    if (unlink(description(a, &p)) != 0 || ml_dir_remove(p.dir, &err) != ML_OK) {
        ml_tinker_refuse(c, 500, err.msg);
        return;
    }
    ml_tinker_forget_adapter(t, p.dir);
    ml_http_reply(c, 200, "application/json", ml_str_of("{}"));
}

/* Where clients download the files of external weights: external_weights/NAME. */
static void serve_urls(ml_tinker *t, ml_http_call *c, ml_arena *a, ml_str run, ml_str id) {
    ml_str host = ml_http_header(c, "host");
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };
    ml_names names = { 0 };
    ml_store_path p = { 0 };
    const char *all =
        ml_arena_printf(a, "%.*s/%.*s", (int)run.len, run.ptr, (int)id.len, id.ptr);

    if (!parse_parts(&p, a, t->opts.dir, ml_str_of(all)) || p.kind != ML_STORE_EXTERNAL ||
        !ml_store_exists(&p) || ml_dir_list(&names, p.dir, a, NULL) != ML_OK) {
        ml_tinker_refuse(c, 404, "The checkpoint does not exist.");
        return;
    }
    ml_json_begin(&o, '{');
    ml_json_key(&o, "urls");
    ml_json_begin(&o, '{');
    for (int32_t i = 0; i < names.n; i++)
        ml_json_put_word(&o, names.name[i],
                         ml_arena_printf(a, "%s://%.*s/api/v1/files/%s/%s",
                                         t->opts.access.tls ? "https" : "http",
                                         (int)host.len, host.ptr, all, names.name[i]));
    ml_json_end(&o, '}');
    put_time(&o, "expires", time(NULL) + 86400);
    ml_json_end(&o, '}');
    ml_tinker_reply(c, 200, &body);
}

/* files/RUN/external_weights/NAME/FILE */
static void serve_file(ml_tinker *t, ml_http_call *c, ml_arena *a, ml_str rest) {
    const char *slash = memrchr(rest.ptr, '/', rest.len);
    ml_str name = { slash ? slash + 1 : "", 0 };
    ml_store_path p = { 0 };
    ml_file f = { 0 };
    const char *path;

    if (slash)
        name.len = (size_t)(rest.ptr + rest.len - name.ptr);
    if (!is_name(name) ||
        !parse_parts(&p, a, t->opts.dir,
                     (ml_str){ rest.ptr, (size_t)(slash - rest.ptr) }) ||
        p.kind != ML_STORE_EXTERNAL || !ml_store_exists(&p)) {
        ml_tinker_refuse(c, 404, "The file does not exist.");
        return;
    }
    path = ml_arena_printf(a, "%s/%.*s", p.dir, (int)name.len, name.ptr);
    if (access(path, F_OK) != 0 || ml_file_map(&f, path, NULL) != ML_OK) {
        ml_tinker_refuse(c, 404, "The file does not exist.");
        return;
    }
    ml_http_reply(c, 200, "application/octet-stream", f.bytes);
    ml_file_unmap(&f);
}

static bool ends(ml_str s, const char *with, ml_str *before) {
    size_t n = strlen(with);

    if (s.len <= n || memcmp(s.ptr + s.len - n, with, n) != 0)
        return false;
    *before = (ml_str){ s.ptr, s.len - n };
    return true;
}

/* training_runs/RUN, .../checkpoints, .../checkpoints/KIND/NAME */
static bool serve_run(ml_tinker *t, ml_http_call *c, ml_arena *a, ml_str rest) {
    ml_str id = next_part(&rest), what = next_part(&rest), run = { "", 0 }, checkpoint;
    bool get = ml_str_is(ml_http_method(c), "GET");

    if (is_name(id))
        run = run_text(a, t, ml_arena_str(a, id.ptr, id.len));
    if (!run.len)
        ml_tinker_refuse(c, 404, "The training run does not exist.");
    else if (!what.len && get)
        ml_http_reply(c, 200, "application/json", run);
    else if (ml_str_is(what, "checkpoints") && !rest.len && get)
        serve_checkpoints(t, c, a, ml_arena_str(a, id.ptr, id.len));
    else if (ml_str_is(what, "checkpoints") && get &&
             ends(rest, "/external_weights_urls", &checkpoint))
        serve_urls(t, c, a, id, checkpoint);
    else if (ml_str_is(what, "checkpoints") && rest.len && !get)
        delete_checkpoint(t, c, a, id, rest);
    else
        return false;
    return true;
}

bool ml_store_serve(ml_tinker *t, ml_http_call *c, ml_str rest) {
    bool get = ml_str_is(ml_http_method(c), "GET"), known = true;
    ml_str first;
    ml_arena a;

    ml_arena_init(&a, "runs");
    first = next_part(&rest);
    if (ml_str_is(first, "training_runs") && rest.len)
        known = serve_run(t, c, &a, rest);
    else if (ml_str_is(first, "files") && get)
        serve_file(t, c, &a, rest);
    else if (get && !rest.len &&
             (ml_str_is(first, "training_runs") || ml_str_is(first, "checkpoints")))
        serve_list(t, c, &a, ml_str_is(first, "checkpoints"));
    else
        known = false;
    ml_arena_release(&a);
    return known;
}
