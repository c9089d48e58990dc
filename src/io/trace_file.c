#include "io/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

#define END "\n]\n"

/* One write call: the array is complete before and after it.  The text begins with a comma. */
static ml_status append(ml_trace_file *t, const ml_text *text, ml_err *err) {
    ssize_t n;

    if (t->at == 1) /* the first element */
        text->ptr[0] = ' ';
    n = pwrite(t->fd, text->ptr, text->len, (off_t)t->at);

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
    ml_text_printf(&t, "[" END);
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

static void put_name(ml_text *t, int row, int lane, const char *what, const char *name) {
    ml_text_printf(t,
                   ",\n{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"%s\", "
                   "\"args\": {\"name\": \"%s\"}}",
                   row + 1, lane + 1, what, name);
}

ml_status ml_trace_file_row(ml_trace_file *t, int row, const char *name,
                            const char *const *lane, int n_lane, ml_err *err) {
    ml_text text = { 0 };

    put_name(&text, row, 0, "process_name", name);
    ml_text_printf(&text,
                   ",\n{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_sort_index\", "
                   "\"args\": {\"sort_index\": %d}}",
                   row + 1, row);
    for (int i = 0; i < n_lane; i++)
        put_name(&text, row, i, "thread_name", lane[i]);
    ml_text_printf(&text, END);
    return append_text(t, &text, err);
}

static void put_args(ml_text *text, const ml_trace_span *s) {
    if (!s->key && !s->group)
        return;
    ml_text_printf(text, ", \"args\": {");
    if (s->key)
        ml_text_printf(text, "\"%s\": %lld", s->key, (long long)s->value);
    if (s->group)
        ml_text_printf(text, "%s\"group\": \"%s\"", s->key ? ", " : "", s->group);
    ml_text_printf(text, "}");
}

static void put_span(ml_text *text, const ml_trace_file *t, const ml_trace_span *s) {
    ml_text_printf(text,
                   ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"name\": \"%s\", "
                   "\"ts\": %.3f, \"dur\": %.3f",
                   s->row + 1, s->lane + 1, s->name, 1e6 * (s->begin_s - t->origin_s),
                   1e6 * (s->end_s - s->begin_s));
    put_args(text, s);
    ml_text_printf(text, "}");
}

ml_status ml_trace_file_spans(ml_trace_file *t, const ml_trace_span *span, int64_t n,
                              ml_err *err) {
    ml_text text = { 0 };

    if (!n)
        return ML_OK;
    for (int64_t i = 0; i < n; i++)
        put_span(&text, t, &span[i]);
    ml_text_printf(&text, END);
    return append_text(t, &text, err);
}
