#include "plugin/python_matcher.h"

#include "base/json_out.h"
#include "plugin/python.h"

#define FLAG "session-message-matcher"

static ml_python_worker worker;

ml_status ml_python_matcher_open(const char *path, ml_str args, ml_err *err) {
    ml_python_function fn = { FLAG, path, NULL };

    if (!ml_python_is(path))
        return ml_fail(err, ML_EUSAGE,
                       "--" FLAG " %s: expected strict, loose_tool_call, "
                       "role_content_only, or a Python function: package.module.function "
                       "or ./file.py:function",
                       path);
    return ml_python_worker_open(&worker, &fn, 1, args, 0, err);
}

void ml_python_matcher_close(void) {
    ml_python_worker_close(&worker);
}

static void put_messages(ml_text *t, const char *key, const ml_json *message) {
    ml_text_printf(t, ", \"%s\": [", key);
    for (const ml_json *v = message; v; v = v->next) {
        ml_text_printf(t, "%s", v == message ? "" : ", ");
        ml_json_write(t, v);
    }
    ml_text_printf(t, "]");
}

ml_status ml_python_matcher_run(const ml_json *stored, const ml_json *sent, int32_t *n,
                                ml_err *err) {
    miles_error why = { "" };
    ml_status st = ML_OK;
    int64_t same = 0;
    ml_python_call c;

    ml_python_call_begin(&c, FLAG);
    put_messages(&c.text, "stored", stored);
    put_messages(&c.text, "new", sent);
    if (ml_python_call_run(&c, &worker, &why) != 0)
        st = ml_fail(err, ML_EIO, "--" FLAG ": %s", why.text); /* 500 */
    else
        ml_json_i64(ml_json_get(c.answer, "n"), &same);
    *n = (int32_t)same;
    ml_python_call_end(&c);
    return st;
}
