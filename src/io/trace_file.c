#include "io/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

#define END "\n]\n"

/* One write call: the array is complete before and after it. */
static ml_status append(ml_trace_file *t, const ml_text *text, ml_err *err) {
    ssize_t n = pwrite(t->fd, text->ptr, text->len, (off_t)t->at);

    if (n != (ssize_t)text->len)
        return ml_fail(err, ML_EIO, "cannot write the trace of --profile: %s",
                       n < 0 ? strerror(errno) : "the disk is full");
    t->at += (int64_t)(text->len - strlen(END));
    return ML_OK;
}

ml_status ml_trace_file_open(ml_trace_file *out, const char *path, ml_err *err) {
    ml_text t = { 0 };
    ml_status st;

    *out = (ml_trace_file){ .origin_s = ml_clock_s() };
    out->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd < 0)
        return ml_fail(err, ML_EIO, "%s: cannot open: %s", path, strerror(errno));
    ml_text_printf(&t, "[\n{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", "
                       "\"args\": {\"name\": \"miles\"}}" END);
    st = append(out, &t, err);
    ml_text_release(&t);
    return st;
}

void ml_trace_file_close(ml_trace_file *t) {
    if (t->at)
        close(t->fd);
    *t = (ml_trace_file){ 0 };
}

/* Writes `text` and releases it. */
static ml_status append_text(ml_trace_file *t, ml_text *text, ml_err *err) {
    ml_status st = append(t, text, err);
    ml_text_release(text);
    return st;
}

ml_status ml_trace_file_lane(ml_trace_file *t, int lane, const char *name, ml_err *err) {
    ml_text text = { 0 };

    ml_text_printf(&text,
                   ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_name\", "
                   "\"args\": {\"name\": \"%s\"}}" END,
                   lane, name);
    return append_text(t, &text, err);
}

ml_status ml_trace_file_span(ml_trace_file *t, const ml_trace_span *s, ml_err *err) {
    ml_text text = { 0 };

    ml_text_printf(&text,
                   ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"name\": \"%s\", "
                   "\"ts\": %.3f, \"dur\": %.3f",
                   s->lane, s->name, 1e6 * (s->begin_s - t->origin_s),
                   1e6 * (s->end_s - s->begin_s));
    if (s->key)
        ml_text_printf(&text, ", \"args\": {\"%s\": %lld}", s->key, (long long)s->value);
    ml_text_printf(&text, "}" END);
    return append_text(t, &text, err);
}
