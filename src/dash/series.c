#include "dash/series.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/oom.h"

static const char *const file_name[ML_SERIES_FILES] = { "metrics.jsonl", "timing.jsonl" };

void ml_series_open(ml_series_set *s, const char *dir) {
    *s = (ml_series_set){ .last = -1 };
    ml_arena_init(&s->arena, "names of metrics");
    ml_map_init(&s->index, &s->arena, 100);
    for (int i = 0; i < ML_SERIES_FILES; i++)
        s->file[i].path = ml_arena_printf(&s->arena, "%s/%s", dir, file_name[i]);
    ml_series_refresh(s);
}

void ml_series_close(ml_series_set *s) {
    for (int64_t i = 0; i < s->n; i++)
        free(s->series[i].at);
    free(s->series);
    ml_arena_release(&s->arena);
    *s = (ml_series_set){ 0 };
}

/* Doubles an array of *cap elements when it is full. */
static void *grow(void *at, int64_t n, int64_t *cap, size_t size) {
    if (n < *cap)
        return at;
    *cap = *cap ? 2 * *cap : 64;
    return ml_memory_grow(at, (size_t)*cap * size, "metrics of a run");
}

static ml_series *series_of(ml_series_set *s, ml_str name, int file) {
    int64_t i = ml_map_get(&s->index, name, -1);
    char *copy;

    if (i >= 0)
        return &s->series[i];
    copy = ml_arena_str(&s->arena, name.ptr, name.len);
    ml_map_add(&s->index, (ml_str){ copy, name.len }, s->n);
    s->series = grow(s->series, s->n, &s->cap, sizeof *s->series);
    s->series[s->n] = (ml_series){ .name = copy, .file = file };
    return &s->series[s->n++];
}

static void add_row(ml_series_set *s, const ml_json *row, int file) {
    ml_point p = { .step = -1 };

    if (!ml_json_i64(ml_json_get(row, "rollout"), &p.rollout))
        return;
    (void)ml_json_i64(ml_json_get(row, "step"), &p.step);
    for (const ml_json *m = row->child; m; m = m->next) {
        ml_series *to;
        if (ml_str_is(m->key, "rollout") || ml_str_is(m->key, "step"))
            continue;
        to = series_of(s, m->key, file);
        p.value = (double)NAN;
        (void)ml_json_f64(m, &p.value);
        to->at = grow(to->at, to->n, &to->cap, sizeof *to->at);
        to->at[to->n++] = p;
    }
    if (file == 0 && p.rollout > s->last)
        s->last = p.rollout;
}

static void add_lines(ml_series_set *s, ml_str text, int file) {
    const char *end;

    for (; (end = memchr(text.ptr, '\n', text.len)) != NULL;) {
        size_t n = (size_t)(end - text.ptr);
        const ml_json *row;
        ml_arena a;

        ml_arena_init(&a, "a row of metrics");
        if (ml_json_parse(&row, &a, (ml_str){ text.ptr, n }, "", NULL) == ML_OK)
            add_row(s, row, file);
        ml_arena_release(&a);
        text = (ml_str){ end + 1, text.len - n - 1 };
    }
}

static void forget(ml_series_set *s, int file) {
    s->file[file].read = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (s->series[i].file == file)
            s->series[i].n = 0;
    if (file == 0)
        s->last = -1;
}

/* The text after the part that was read, up to the last whole line. */
static ml_text read_on(int fd, off_t from, off_t to) {
    ml_text t = { 0 };
    size_t n = (size_t)(to - from), have = 0;
    char *at = ml_text_room(&t, n);
    ssize_t got;

    while (have < n && (got = pread(fd, at + have, n - have, from + (off_t)have)) > 0)
        have += (size_t)got;
    while (have && t.ptr[have - 1] != '\n')
        have--;
    t.len = have;
    return t;
}

static void refresh_file(ml_series_set *s, int file) {
    int fd = open(s->file[file].path, O_RDONLY | O_CLOEXEC);
    struct stat is;

    if (fd < 0)
        return;
    if (fstat(fd, &is) == 0) {
        if (is.st_ino != s->file[file].inode || is.st_size < s->file[file].read) {
            forget(s, file);
            s->file[file].inode = is.st_ino;
            s->revision++;
        }
        if (is.st_size > s->file[file].read) {
            ml_text t = read_on(fd, s->file[file].read, is.st_size);
            add_lines(s, (ml_str){ t.ptr, t.len }, file);
            s->file[file].read += (off_t)t.len;
            s->revision += t.len > 0;
            ml_text_release(&t);
        }
    }
    close(fd);
}

void ml_series_refresh(ml_series_set *s) {
    for (int i = 0; i < ML_SERIES_FILES; i++)
        refresh_file(s, i);
}

const ml_series *ml_series_find(const ml_series_set *s, const char *name) {
    int64_t i = ml_map_get(&s->index, ml_str_of(name), -1);
    return i < 0 ? NULL : &s->series[i];
}

double ml_series_last(const ml_series_set *s, const char *name, double absent) {
    const ml_series *x = ml_series_find(s, name);
    return x && x->n ? x->at[x->n - 1].value : absent;
}

int64_t ml_series_thin(const ml_point *at, int64_t n, int64_t n_most, int64_t *index) {
    int64_t n_stretch = n_most / 2, n_out = 0;

    if (n <= n_most || n_stretch < 1) {
        for (int64_t i = 0; i < n && i < n_most; i++)
            index[n_out++] = i;
        return n_out;
    }
    for (int64_t k = 0; k < n_stretch; k++) {
        int64_t from = k * n / n_stretch, to = (k + 1) * n / n_stretch, low = from,
                high = from;
        for (int64_t i = from; i < to; i++) {
            low = at[i].value < at[low].value ? i : low;
            high = at[i].value > at[high].value ? i : high;
        }
        index[n_out++] = low < high ? low : high;
        if (low != high)
            index[n_out++] = low < high ? high : low;
    }
    return n_out;
}
