#include "engine/routing_record.h"

#include <stdlib.h>
#include <string.h>

static int64_t width_of(const ml_routing_record *r, int route) {
    return (int64_t)r->of[route].n_layer * r->of[route].top_k;
}

static size_t row_bytes(const ml_spec *s, const ml_engine_opts *o) {
    int64_t n = 0;
    for (int i = 0; i < ML_N_ROUTING; i++)
        n += o->routed[i] ? ml_spec_routing_width(s, (ml_routing_kind)i) : 0;
    return (size_t)n * sizeof(int32_t);
}

size_t ml_routing_record_page_bytes(const ml_spec *s, const ml_engine_opts *o,
                                    int32_t n_page) {
    return row_bytes(s, o) * ML_PAGE * (size_t)n_page;
}

size_t ml_routing_record_bytes(const ml_spec *s, const ml_engine_opts *o, int32_t n_page,
                               int32_t n_token) {
    return ml_routing_record_page_bytes(s, o, n_page) +
           row_bytes(s, o) * ((size_t)n_token + (size_t)o->context);
}

static int32_t *rows_of(int64_t n, int64_t width) {
    return malloc((size_t)(n * width) * sizeof(int32_t));
}

ml_status ml_routing_record_open(ml_routing_record *r, const ml_spec *s,
                                 const ml_engine_opts *o, int32_t n_page, int32_t n_group,
                                 int32_t n_token, ml_err *err) {
    *r = (ml_routing_record){ .n_page = n_page };
    for (int i = 0; i < ML_N_ROUTING; i++) {
        int64_t width = ml_spec_routing_width(s, (ml_routing_kind)i);
        if (!o->routed[i] || !width)
            continue;
        r->of[i].n_layer = s->route[i].n_layer;
        r->of[i].top_k = s->route[i].top_k;
        r->of[i].step = rows_of(n_token, width);
        r->of[i].page = rows_of((int64_t)n_page * n_group * ML_PAGE, width);
        r->of[i].report = rows_of(o->context, width);
        if (!r->of[i].step || !r->of[i].page || !r->of[i].report) {
            ml_routing_record_close(r);
            return ml_fail(
                err, ML_ENOMEM, "out of memory for routing records: %.1f MiB",
                (double)ml_routing_record_bytes(s, o, n_page * n_group, n_token) / 0x1p20);
        }
    }
    return ML_OK;
}

void ml_routing_record_close(ml_routing_record *r) {
    for (int i = 0; i < ML_N_ROUTING; i++) {
        free(r->of[i].step);
        free(r->of[i].page);
        free(r->of[i].report);
    }
    *r = (ml_routing_record){ 0 };
}

void ml_routing_record_bind(const ml_routing_record *r, ml_run *run) {
    for (int i = 0; i < ML_N_ROUTING; i++) {
        run->chosen[i] = r->of[i].step;
        if (r->of[i].step) /* layers without routing write nothing */
            memset(r->of[i].step, 0,
                   (size_t)(width_of(r, i) * run->rows->n_token) * sizeof(int32_t));
    }
}

void ml_routing_record_copy_page(ml_routing_record *r, int32_t group, int32_t to,
                                 int32_t from) {
    for (int i = 0; i < ML_N_ROUTING; i++) {
        int64_t width = width_of(r, i) * ML_PAGE, first = (int64_t)group * r->n_page;
        if (r->of[i].page)
            memcpy(r->of[i].page + (first + to) * width,
                   r->of[i].page + (first + from) * width,
                   (size_t)width * sizeof *r->of[i].page);
    }
}

/* Transposes one row of the step: [n_layer][row][top_k] to [n_layer][top_k]. */
static void gather(const ml_routing_record *r, int route, int64_t row, int64_t n_token,
                   int32_t *to) {
    int64_t k = r->of[route].top_k;
    for (int64_t layer = 0; layer < r->of[route].n_layer; layer++)
        memcpy(to + layer * k, r->of[route].step + (layer * n_token + row) * k,
               (size_t)k * sizeof *to);
}

void ml_routing_record_store(ml_routing_record *r, const ml_rows *rows) {
    for (int i = 0; i < ML_N_ROUTING; i++)
        for (int32_t seq = 0; r->of[i].page && seq < rows->n_seq; seq++)
            for (int64_t row = rows->seq_start[seq]; row < rows->seq_start[seq + 1];
                 row++) {
                int32_t pos = rows->pos[row];
                int64_t page = rows->page[rows->page_start[seq] + pos / ML_PAGE];
                gather(r, i, row, rows->n_token,
                       r->of[i].page + (page * ML_PAGE + pos % ML_PAGE) * width_of(r, i));
            }
}

void ml_routing_record_report(ml_routing_record *r, const ml_request *q, ml_gen_update *u) {
    for (int i = 0; i < ML_N_ROUTING; i++) {
        int64_t width = width_of(r, i);
        int32_t *to = r->of[i].report;
        int64_t first = (int64_t)q->group * r->n_page;
        if (!q->params.routed[i] || !to)
            continue;
        u->routed[i] = (ml_routing){ .row = to, .width = width };
        for (int32_t t = q->params.routed_from; t < q->n_token - 1; t++, to += width) {
            size_t bytes = (size_t)width * sizeof *to;
            u->routed[i].n++;
            if (t < q->n_kv)
                memcpy(to,
                       r->of[i].page +
                           ((first + q->page[t / ML_PAGE]) * ML_PAGE + t % ML_PAGE) * width,
                       bytes);
            else
                memset(to, 0xff, bytes);
        }
    }
}
