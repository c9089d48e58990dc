/* Requests to a run: pause, save, stop, learning rate. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "dash/dash_priv.h"
#include "io/jsonl.h"
#include "rl/record/control.h"
#include "rl/record/run_dir.h"

/* {"action": "pause" | "resume" | "save" | "stop" | "lr", "value": NUMBER} */
ml_status ml_dash_control(ml_dash_request *r, ml_err *err) {
    const ml_access_opts *access = &r->dash->opts.access;
    const ml_json *doc = NULL, *name;
    ml_control_action action;
    double value = 0;
    ml_status st;

    if (!access->api_key && !access->admin_key)
        return ml_dash_refuse(
            r, 403, err,
            "the dashboard is read-only: start it with --api-key-file FILE "
            "or --admin-api-key-file FILE to control runs");
    st = ml_json_parse(&doc, r->arena, r->body, "body", err);
    if (st != ML_OK)
        return ml_dash_refuse(r, 400, err, "the body is not JSON");
    name = ml_json_get(doc, "action");
    if (!name || name->type != ML_JSON_STRING || !ml_control_find(&action, name->text))
        return ml_fail(err, ML_EUSAGE, "action: expected pause, resume, save, stop or lr");
    (void)ml_json_f64(ml_json_get(doc, "value"), &value);
    if (!ml_run_dir_is_live(r->run->dir))
        return ml_dash_refuse(r, 409, err, "no process runs in %s", r->run->dir);
    st = ml_control_request(r->run->dir, action, value, err);
    ml_json_raw(&r->out, ml_str_of("{\"requested\": true}"));
    return st;
}

/* What the run has carried out, in its own rows. */
ml_status ml_dash_control_log(ml_dash_request *r, ml_err *err) {
    const char *path = ml_arena_printf(r->arena, "%s/control.jsonl", r->run->dir);
    ml_jsonl f = { 0 };

    (void)err;
    ml_json_begin(&r->out, '{');
    ml_json_put_bool(&r->out, "live", ml_run_dir_is_live(r->run->dir));
    ml_json_key(&r->out, "actions");
    ml_json_begin(&r->out, '[');
    if (ml_file_there(path) && ml_jsonl_open(&f, path, NULL) == ML_OK)
        for (int64_t i = 0; i < f.n; i++) {
            const ml_json *row;
            if (ml_jsonl_parse(&row, &f, i, r->arena, NULL) == ML_OK)
                ml_json_raw(&r->out, ml_jsonl_row(&f, i));
        }
    ml_jsonl_close(&f);
    ml_json_end(&r->out, ']');
    ml_json_end(&r->out, '}');
    return ML_OK;
}
