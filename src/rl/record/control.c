#include "rl/record/control.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "io/jsonl.h"

#define REQUESTS "control.requests"
#define RECORD "control.jsonl"

static const char *const names[ML_N_CONTROL] = { "pause", "resume", "save", "stop", "lr" };

const char *ml_control_name(ml_control_action a) {
    return names[a];
}

bool ml_control_find(ml_control_action *out, ml_str name) {
    for (int i = 0; i < ML_N_CONTROL; i++)
        if (ml_str_is(name, names[i])) {
            *out = (ml_control_action)i;
            return true;
        }
    return false;
}

static bool is_lr(double x) {
    return isfinite(x) && x > 0 && x < 1e6;
}

/* Appends a line in one write, so that requests of several dashboards do not mix. */
static ml_status append(const char *dir, const char *name, const ml_text *line,
                        ml_err *err) {
    ml_text path = { 0 };
    ml_status st = ML_OK;
    int fd;

    ml_text_printf(&path, "%s/%s", dir, name);
    fd = open(path.ptr, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0 || write(fd, line->ptr, line->len) != (ssize_t)line->len)
        st = ml_fail(err, ML_EIO, "%s: cannot write: %s", path.ptr, strerror(errno));
    if (fd >= 0)
        close(fd);
    ml_text_release(&path);
    return st;
}

static void write_line(ml_text *t, int64_t rollout, ml_control_action a, double value) {
    ml_text_printf(t, "{");
    if (rollout >= 0)
        ml_text_printf(t, "\"rollout\": %lld, ", (long long)rollout);
    ml_text_printf(t, "\"action\": \"%s\"", names[a]);
    if (a == ML_CONTROL_LR) {
        ml_text_printf(t, ", \"value\": ");
        ml_json_number(t, value);
    }
    ml_text_printf(t, ", \"time\": %.3f}\n", ml_clock_unix_s());
}

ml_status ml_control_request(const char *dir, ml_control_action a, double value,
                             ml_err *err) {
    ml_text line = { 0 };
    ml_status st;

    if (a == ML_CONTROL_LR && !is_lr(value))
        return ml_fail(err, ML_EUSAGE, "value: expected a learning rate, a number above 0");
    write_line(&line, -1, a, value);
    st = append(dir, REQUESTS, &line, err);
    ml_text_release(&line);
    return st;
}

/* --- the run's side ------------------------------------------------------------------ */

typedef struct change {
    int64_t rollout;
    double lr;
} change;

struct ml_control {
    char *dir, *requests;
    off_t read; /* bytes of the requests */
    change
        *change; /* [n_change] of the record, ascending; those from `next` on are to come */
    int64_t n_change, next;
    double asked_lr; /* a request that waits for the next rollout; 0: none */
    ml_arena arena;
};

static bool read_row(const ml_json *row, ml_control_action *a, double *value) {
    const ml_json *action = ml_json_get(row, "action");

    *value = 0;
    (void)ml_json_f64(ml_json_get(row, "value"), value);
    return action && action->type == ML_JSON_STRING && ml_control_find(a, action->text) &&
           (*a != ML_CONTROL_LR || is_lr(*value));
}

/* The changes of the learning rate that this or an earlier process made. */
static void read_record(ml_control *c) {
    const char *path = ml_arena_printf(&c->arena, "%s/" RECORD, c->dir);
    ml_jsonl f = { 0 };

    if (access(path, R_OK) != 0 || ml_jsonl_open(&f, path, NULL) != ML_OK)
        return;
    c->change = ML_NEW(&c->arena, change, f.n + 1);
    for (int64_t i = 0; i < f.n; i++) {
        change *to = &c->change[c->n_change];
        ml_control_action a;
        const ml_json *row;
        if (ml_jsonl_parse(&row, &f, i, &c->arena, NULL) == ML_OK &&
            read_row(row, &a, &to->lr) && a == ML_CONTROL_LR &&
            ml_json_i64(ml_json_get(row, "rollout"), &to->rollout))
            c->n_change++;
    }
    ml_jsonl_close(&f);
}

/* Unless the directory has one already, or the other has none. */
static ml_status copy_record(ml_control *c, const char *from, ml_err *err) {
    const char *to = ml_arena_printf(&c->arena, "%s/" RECORD, c->dir);
    ml_file old = { 0 };
    ml_status st = ML_OK;

    if (access(to, F_OK) != 0 &&
        ml_file_map(&old, ml_arena_printf(&c->arena, "%s/" RECORD, from), NULL) == ML_OK)
        st = ml_file_replace(to, old.bytes, err);
    ml_file_unmap(&old);
    return st;
}

ml_status ml_control_open(ml_control **out, const char *dir, const char *from,
                          int64_t rollout, ml_err *err) {
    ml_status st = ML_OK;
    ml_control *c;
    ml_arena a;

    ml_arena_init(&a, "requests to a run");
    c = ML_NEW(&a, ml_control, 1);
    c->arena = a;
    c->dir = ml_arena_printf(&c->arena, "%s", dir);
    c->requests = ml_arena_printf(&c->arena, "%s/" REQUESTS, dir);
    *out = c;
    if (unlink(c->requests) != 0 && errno != ENOENT)
        return ml_fail(err, ML_EIO, "%s: cannot remove: %s", c->requests, strerror(errno));
    if (rollout > 0 && from)
        st = copy_record(c, from, err);
    if (rollout > 0 && st == ML_OK)
        read_record(c);
    return st;
}

void ml_control_close(ml_control *c) {
    ml_arena a;

    if (!c)
        return;
    a = c->arena; /* c itself is allocated in it */
    ml_arena_release(&a);
}

static ml_status record(ml_control *c, int64_t rollout, ml_control_action a, double value,
                        ml_err *err) {
    ml_text line = { 0 };
    ml_status st;

    write_line(&line, rollout, a, value);
    st = append(c->dir, RECORD, &line, err);
    ml_text_release(&line);
    return st;
}

static ml_status obey(ml_control *c, int64_t rollout, const ml_json *row,
                      ml_control_orders *o, ml_err *err) {
    ml_control_action a;
    double value;

    if (!read_row(row, &a, &value))
        return ML_OK;
    if (a == ML_CONTROL_LR) {
        c->asked_lr = value;
        return ML_OK;
    }
    o->save |= a == ML_CONTROL_SAVE;
    o->stop |= a == ML_CONTROL_STOP;
    o->paused = a == ML_CONTROL_PAUSE ? true : a == ML_CONTROL_RESUME ? false : o->paused;
    return record(c, rollout, a, value, err);
}

static ml_status obey_lines(ml_control *c, int64_t rollout, ml_str text,
                            ml_control_orders *o, ml_err *err) {
    ml_status st = ML_OK;
    const char *end;

    while (st == ML_OK && (end = memchr(text.ptr, '\n', text.len)) != NULL) {
        size_t n = (size_t)(end - text.ptr);
        const ml_json *row;
        ml_arena a;

        ml_arena_init(&a, "a request to a run");
        if (ml_json_parse(&row, &a, (ml_str){ text.ptr, n }, REQUESTS, NULL) == ML_OK)
            st = obey(c, rollout, row, o, err);
        ml_arena_release(&a);
        c->read += (off_t)n + 1;
        text = (ml_str){ end + 1, text.len - n - 1 };
    }
    return st;
}

/* The first changes come from the record; then from requests, which continue it. */
static ml_status set_lr(ml_control *c, int64_t rollout, ml_control_orders *o, ml_err *err) {
    double asked = c->asked_lr;

    while (c->next < c->n_change && c->change[c->next].rollout <= rollout)
        o->lr = c->change[c->next++].lr;
    if (asked <= 0)
        return ML_OK;
    c->asked_lr = 0;
    o->lr = asked;
    return record(c, rollout, ML_CONTROL_LR, asked, err);
}

ml_status ml_control_poll(ml_control *c, int64_t rollout, bool begins,
                          ml_control_orders *orders, ml_err *err) {
    int fd = open(c->requests, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ml_status st = ML_OK;
    struct stat is;

    if (fd >= 0 && fstat(fd, &is) == 0 && is.st_size > c->read) {
        ml_text t = { 0 };
        size_t n = (size_t)(is.st_size - c->read);
        ssize_t got = pread(fd, ml_text_room(&t, n), n, c->read);
        st = obey_lines(c, rollout, (ml_str){ t.ptr, got > 0 ? (size_t)got : 0 }, orders,
                        err);
        ml_text_release(&t);
    }
    if (fd >= 0)
        close(fd);
    return st == ML_OK && begins ? set_lr(c, rollout, orders, err) : st;
}
