#include "run/rank_spans.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/oom.h"
#include "comm/share.h"

enum {
    TIMES = 8,            /* messages there and back */
    MOST_SPANS = 1 << 20, /* of all ranks, per rollout */
    LEAST_SPANS = 1024,   /* of a rank */
    MOST_NAMES = 512,
};

/* --- clocks ----------------------------------------------------------------------- */

static ml_status say_time(ml_comm *world, int32_t to, ml_err *err) {
    double t = 0;
    ml_tensor x = ml_comm_bytes(&t, sizeof t);
    ml_status st = world->recv(world, NULL, &x, to, err);

    t = ml_clock_s();
    return st == ML_OK ? world->send(world, NULL, &x, to, err) : st;
}

static ml_status ask_time(ml_comm *world, double *offset, double *took, ml_err *err) {
    double t = 0, begin = ml_clock_s(), end;
    ml_tensor x = ml_comm_bytes(&t, sizeof t);
    ml_status st = world->send(world, NULL, &x, 0, err);

    if (st == ML_OK)
        st = world->recv(world, NULL, &x, 0, err);
    end = ml_clock_s();
    if (st == ML_OK && (*took == 0 || end - begin < *took)) {
        *took = end - begin;
        *offset = t - (begin + end) / 2;
    }
    return st;
}

ml_status ml_rank_clock_offset(double *out, ml_comm *world, ml_err *err) {
    double took = 0;
    ml_status st = ML_OK;

    *out = 0;
    if (ml_comm_size(world) == 1)
        return ML_OK;
    ml_comm_doing(world, "comparing clocks", -1);
    for (int32_t r = 1; r < world->size && st == ML_OK; r++)
        for (int i = 0; i < TIMES && st == ML_OK; i++)
            if (world->rank == 0)
                st = say_time(world, r, err);
            else if (world->rank == r)
                st = ask_time(world, out, &took, err);
    ml_comm_doing(world, NULL, -1);
    return st;
}

/* --- spans as bytes: a head, the spans, the names ----------------------------------- */

typedef struct head {
    int64_t n, n_name, left_out[ML_TRACKS];
} head;

typedef struct sent_span {
    int32_t name, group, layer, track; /* name, group: indices of names, or -1 */
    double begin_s, end_s;
} sent_span;

typedef struct names {
    const char *name[MOST_NAMES];
    int32_t n;
} names;

static int32_t index_of(names *all, const char *name) {
    if (!name)
        return -1;
    for (int32_t i = 0; i < all->n; i++)
        if (all->name[i] == name || strcmp(all->name[i], name) == 0)
            return i;
    if (all->n == MOST_NAMES)
        return -1;
    all->name[all->n] = name;
    return all->n++;
}

static void put_span(ml_text *out, names *all, const ml_time_span *s, double offset_s) {
    sent_span to = { .name = index_of(all, s->name),
                     .group = index_of(all, s->group),
                     .layer = s->layer,
                     .track = (int32_t)s->track,
                     .begin_s = s->begin_s + offset_s,
                     .end_s = s->end_s + offset_s };

    ml_text_add(out, (const char *)&to, sizeof to);
}

static void write_spans(ml_text *out, const ml_timeline_taken *taken,
                        const ml_iteration *it, double offset_s, int64_t most) {
    names *all = ml_memory_grow(NULL, sizeof *all, "names of spans");
    ml_time_span stage[ML_ITERATION_SPANS];
    int32_t n_stage = ml_iteration_spans(it, ml_clock_s(), stage);
    head h = { .n = taken->n < most ? taken->n : most };

    all->n = 0;
    memcpy(h.left_out, taken->left_out, sizeof h.left_out);
    for (int64_t i = h.n; i < taken->n; i++)
        h.left_out[taken->span[i].track]++;
    ml_text_add(out, (const char *)&h, sizeof h);
    for (int64_t i = 0; i < h.n; i++)
        put_span(out, all, &taken->span[i], offset_s);
    for (int32_t i = 0; i < n_stage; i++)
        put_span(out, all, &stage[i], offset_s);
    h.n += n_stage;
    h.n_name = all->n;
    memcpy(out->ptr, &h, sizeof h);
    for (int32_t i = 0; i < all->n; i++)
        ml_text_add(out, all->name[i], strlen(all->name[i]) + 1);
    free(all);
}

static const char *name_at(const char *const *name, int64_t n, int32_t i) {
    return i >= 0 && i < n ? name[i] : NULL;
}

/* The other ranks have the same build, so the bytes are as this file writes them. */
static ml_timeline_taken read_spans(const ml_text *in, ml_arena *a) {
    ml_timeline_taken t = { 0 };
    const char *bytes = ml_arena_str(a, in->ptr, in->len), *at;
    const char **name;
    ml_time_span *span;
    head h;

    memcpy(&h, bytes, sizeof h);
    name = ML_NEW(a, const char *, h.n_name + 1);
    at = bytes + sizeof h + (size_t)h.n * sizeof(sent_span);
    for (int64_t i = 0; i < h.n_name; i++, at += strlen(at) + 1)
        name[i] = at;
    span = ML_NEW(a, ml_time_span, h.n + 1);
    for (int64_t i = 0; i < h.n; i++) {
        sent_span s;
        memcpy(&s, bytes + sizeof h + (size_t)i * sizeof s, sizeof s);
        span[i] = (ml_time_span){ .name = name_at(name, h.n_name, s.name),
                                  .group = name_at(name, h.n_name, s.group),
                                  .track = (ml_track)s.track,
                                  .layer = s.layer,
                                  .begin_s = s.begin_s,
                                  .end_s = s.end_s };
        if (!span[i].name)
            span[i].name = "op";
    }
    t.span = span;
    t.n = h.n;
    memcpy(t.left_out, h.left_out, sizeof t.left_out);
    return t;
}

/* --- a meeting -------------------------------------------------------------------- */

static int64_t most_of_rank(int32_t n_rank) {
    return MOST_SPANS / n_rank > LEAST_SPANS ? MOST_SPANS / n_rank : LEAST_SPANS;
}

static ml_status send_spans(ml_comm *world, ml_timeline *mine, double offset_s,
                            const ml_iteration *it, ml_err *err) {
    ml_text bytes = { 0 };
    ml_timeline_taken taken;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "spans of a rank");
    taken = ml_timeline_take(mine, &a);
    write_spans(&bytes, &taken, it, offset_s, most_of_rank(world->size));
    st = ml_comm_send_text(world, &bytes, 0, err);
    ml_text_release(&bytes);
    ml_arena_release(&a);
    return st;
}

static ml_status log_spans(ml_comm *world, ml_run_log *log, ml_err *err) {
    ml_text bytes = { 0 };
    ml_status st = ML_OK;

    for (int32_t r = 1; r < world->size && st == ML_OK; r++) {
        ml_arena a;
        st = ml_comm_recv_text(world, &bytes, r, err);
        if (st != ML_OK)
            break;
        ml_arena_init(&a, "spans of a rank");
        ml_run_log_rank_ops(log, r, read_spans(&bytes, &a), &a);
    }
    ml_text_release(&bytes);
    return st;
}

ml_status ml_rank_spans_meet(ml_comm *world, ml_timeline *mine, double offset_s,
                             const ml_iteration *it, ml_run_log *log, ml_err *err) {
    ml_status st;

    if (ml_comm_size(world) == 1)
        return ML_OK;
    ml_comm_doing(world, "collecting spans", -1);
    st = world->rank ? send_spans(world, mine, offset_s, it, err)
                     : log_spans(world, log, err);
    ml_comm_doing(world, NULL, -1);
    return st;
}
