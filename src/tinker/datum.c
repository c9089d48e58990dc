#include "tinker/datum.h"

#include <string.h>

#include "base/proto.h"

const char *const ml_datum_input[ML_DATUM_INPUTS] = { "weights", "logprobs", "advantages" };

/* Numbers of fields, from tinker_public.proto. */
enum { REQUEST_MODEL = 1, REQUEST_SEQ, REQUEST_DATA, REQUEST_LOSS, REQUEST_CONFIG };
enum { REQUEST_FORWARD_ONLY = 6, REQUEST_CONFIG2 = 7 };
enum { ENTRY_KEY = 1, ENTRY_VALUE = 2 };
enum { DATUM_INPUT = 1, DATUM_TENSORS = 2 };
enum { CHUNK_TEXT = 1 };
enum { TENSOR_DENSE = 1, TENSOR_SPARSE, TENSOR_DTYPE, TENSOR_SHAPE };
enum { SPARSE_VALUES = 1, SPARSE_ROWS, SPARSE_COLS };
enum { DTYPE_F32 = 1, DTYPE_I64, DTYPE_I32 };
enum { OUTPUT_TYPE = 1, OUTPUT_RECORDS, OUTPUT_METRICS };
enum { RECORD_TYPE = 1, RECORD_FIELDS, RECORD_DATUMS };
enum { BATCHED_DATA = 1, BATCHED_OFFSETS, BATCHED_DTYPE, BATCHED_TRAILING };

#define MAX_VALUES (1 << 26) /* of a tensor, all columns together */

static ml_status malformed(const char *what, ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "%s is not a valid Protocol Buffers message", what);
}

/* --- tensors -------------------------------------------------------------------- */

typedef struct tensor {
    ml_str values, rows, cols; /* rows, cols: of a sparse one, in compressed rows */
    bool sparse;
    uint64_t dtype;
    int64_t shape[2];
    int n_dim;
} tensor;

static bool read_shape(tensor *t, const ml_proto_field *f) {
    ml_proto list = { .left = f->bytes };
    uint64_t v = f->value;

    if (!f->bytes.ptr) {
        if (t->n_dim < 2)
            t->shape[t->n_dim] = (int64_t)v;
        t->n_dim++;
        return true;
    }
    while (ml_proto_varint(&list, &v)) {
        if (t->n_dim < 2)
            t->shape[t->n_dim] = (int64_t)v;
        t->n_dim++;
    }
    return !list.bad;
}

static bool read_sparse(tensor *t, ml_str bytes) {
    ml_proto p = { .left = bytes };
    ml_proto_field f;

    t->sparse = true;
    while (ml_proto_next(&p, &f)) {
        if (f.number == SPARSE_VALUES)
            t->values = f.bytes;
        else if (f.number == SPARSE_ROWS)
            t->rows = f.bytes;
        else if (f.number == SPARSE_COLS)
            t->cols = f.bytes;
    }
    return !p.bad;
}

static bool read_tensor(tensor *t, ml_str bytes) {
    ml_proto p = { .left = bytes };
    ml_proto_field f;
    bool ok = true;

    *t = (tensor){ 0 };
    while (ok && ml_proto_next(&p, &f)) {
        if (f.number == TENSOR_DENSE)
            t->values = f.bytes;
        else if (f.number == TENSOR_SPARSE)
            ok = read_sparse(t, f.bytes);
        else if (f.number == TENSOR_DTYPE)
            t->dtype = f.value;
        else if (f.number == TENSOR_SHAPE)
            ok = read_shape(t, &f);
    }
    return ok && !p.bad;
}

static size_t size_of(uint64_t dtype) {
    return dtype == DTYPE_I64 ? 8 : dtype == DTYPE_F32 || dtype == DTYPE_I32 ? 4 : 0;
}

static int64_t i64_at(ml_str s, int64_t i) {
    int64_t v;
    memcpy(&v, s.ptr + 8 * i, sizeof v);
    return v;
}

/* Element i of the values, as f64: exact for f32 and for ids. */
static double value_at(const tensor *t, int64_t i) {
    float f;
    int32_t v;

    if (t->dtype == DTYPE_I64)
        return (double)i64_at(t->values, i);
    if (t->dtype == DTYPE_I32) {
        memcpy(&v, t->values.ptr + 4 * i, sizeof v);
        return v;
    }
    memcpy(&f, t->values.ptr + 4 * i, sizeof f);
    return (double)f;
}

/* [n][k] values, zeros where a sparse tensor has none; false: rows and columns do not fit. */
static bool spread(double *out, const tensor *t, int64_t n, int64_t k) {
    int64_t nnz = (int64_t)(t->values.len / size_of(t->dtype));

    if (!t->sparse) {
        for (int64_t i = 0; i < n * k; i++)
            out[i] = value_at(t, i);
        return true;
    }
    if (t->rows.len != (size_t)(n + 1) * 8 || t->cols.len != (size_t)nnz * 8 ||
        i64_at(t->rows, 0) != 0 || i64_at(t->rows, n) != nnz)
        return false;
    for (int64_t r = 0; r < n; r++) {
        int64_t at = i64_at(t->rows, r), end = i64_at(t->rows, r + 1);
        if (at > end || end > nnz)
            return false;
        for (; at < end; at++) {
            int64_t c = i64_at(t->cols, at);
            if (c < 0 || c >= k)
                return false;
            out[r * k + c] = value_at(t, at);
        }
    }
    return true;
}

/* --- a datum -------------------------------------------------------------------- */

typedef struct reader {
    ml_pass_request *pass;
    ml_arena *arena;
    int32_t datum; /* its number, for messages */
    int32_t *token;
    int32_t n;
    tensor target, input[ML_DATUM_INPUTS];
    bool has_target, has[ML_DATUM_INPUTS];
} reader;

/* Appends the tokens of a chunk. */
static ml_status read_chunk(reader *r, ml_str bytes, ml_err *err) {
    ml_proto p = { .left = bytes }, text;
    ml_proto_field f, t;
    int32_t *all;

    while (ml_proto_next(&p, &f)) {
        if (f.number != CHUNK_TEXT)
            return ml_fail(err, ML_EUNSUP,
                           "datum %d: model_input has a chunk that is no text; this "
                           "server trains language models without images and audio",
                           r->datum);
        text = (ml_proto){ .left = f.bytes };
        while (ml_proto_next(&text, &t)) {
            size_t n = t.bytes.len / 4;
            if (t.number != 1 || t.bytes.len % 4 || n > (size_t)(INT32_MAX - r->n))
                return malformed("a chunk of tokens", err);
            if (!n)
                continue;
            all = ML_NEW(r->arena, int32_t, (size_t)r->n + n);
            if (r->n)
                memcpy(all, r->token, (size_t)r->n * sizeof *all);
            memcpy(all + r->n, t.bytes.ptr, t.bytes.len);
            r->token = all;
            r->n += (int32_t)n;
        }
        if (text.bad)
            return malformed("a chunk of tokens", err);
    }
    return p.bad ? malformed("model_input", err) : ML_OK;
}

static ml_status read_entry(reader *r, ml_str bytes, ml_err *err) {
    ml_proto p = { .left = bytes };
    ml_proto_field f;
    ml_str key = { 0 }, value = { 0 };

    while (ml_proto_next(&p, &f)) {
        if (f.number == ENTRY_KEY)
            key = f.bytes;
        else if (f.number == ENTRY_VALUE)
            value = f.bytes;
    }
    if (p.bad)
        return malformed("loss_fn_inputs", err);
    if (ml_str_is(key, "target_tokens")) {
        r->has_target = true;
        return read_tensor(&r->target, value) ? ML_OK : malformed("target_tokens", err);
    }
    for (int i = 0; i < ML_DATUM_INPUTS; i++)
        if (ml_str_is(key, ml_datum_input[i])) {
            r->has[i] = true;
            return read_tensor(&r->input[i], value) ? ML_OK
                                                    : malformed(ml_datum_input[i], err);
        }
    return ml_fail(err, ML_EUSAGE,
                   "datum %d: loss_fn_inputs has \"%.*s\"; the losses of this server read "
                   "target_tokens, weights, logprobs and advantages",
                   r->datum, (int)(key.len < 80 ? key.len : 80), key.ptr);
}

/* Checks a tensor against the datum's length and number of columns. */
static ml_status check_tensor(const reader *r, const tensor *t, const char *name, int64_t k,
                              ml_err *err) {
    size_t size = size_of(t->dtype);
    int64_t n = !size ? 0 : (int64_t)(t->values.len / size), rows = n, cols = 1;

    if (!size || t->values.len % size || t->n_dim > 2)
        return ml_fail(err, ML_EUSAGE,
                       "datum %d: %s must be a tensor of float32 or int64 with one or two "
                       "dimensions",
                       r->datum, name);
    if (t->n_dim >= 1)
        rows = t->shape[0];
    if (t->n_dim == 2)
        cols = t->shape[1];
    if (rows != r->n)
        return ml_fail(err, ML_EUSAGE,
                       "datum %d: %s has %lld elements, but model_input has %d tokens; "
                       "they must be equal",
                       r->datum, name, (long long)rows, r->n);
    if (cols != k || (!t->sparse && n != rows * cols))
        return ml_fail(err, ML_EUSAGE,
                       "datum %d: %s has %lld values in %lld columns, but target_tokens "
                       "%lld columns for each of %d tokens",
                       r->datum, name, (long long)n, (long long)cols, (long long)k, r->n);
    return ML_OK;
}

/* The values of a tensor, column by column; in the arena. */
static ml_status take_columns(reader *r, const tensor *t, const char *name, int64_t k,
                              double **out, ml_err *err) {
    ml_status st = check_tensor(r, t, name, k, err);
    double *v;

    if (st != ML_OK)
        return st;
    v = *out = ML_NEW(r->arena, double, (int64_t)r->n *k + 1);
    if (!spread(v, t, r->n, k))
        return ml_fail(err, ML_EUSAGE,
                       "datum %d: the sparse tensor %s has rows or columns outside its "
                       "shape",
                       r->datum, name);
    return ML_OK;
}

static ml_status take_targets(reader *r, ml_datum *d, ml_datum_column *c, ml_err *err) {
    double *v;
    ml_status st = take_columns(r, &r->target, "target_tokens", d->k, &v, err);

    for (int32_t j = 0; j < d->k && st == ML_OK; j++) {
        int32_t *id = ML_NEW(r->arena, int32_t, r->n + 1);
        for (int32_t i = 0; i < r->n && st == ML_OK; i++) {
            double x = v[(int64_t)i * d->k + j];
            if (!(x >= 0 && x <= INT32_MAX && x == (double)(int32_t)x))
                st = ml_fail(err, ML_EUSAGE, "datum %d: target_tokens has %g, no token id",
                             r->datum, x);
            else
                id[i] = (int32_t)x;
        }
        c[j].target = id;
    }
    return st;
}

static ml_status take_input(reader *r, ml_datum *d, ml_datum_column *c, int which,
                            ml_err *err) {
    double *v;
    ml_status st = take_columns(r, &r->input[which], ml_datum_input[which], d->k, &v, err);

    for (int32_t j = 0; j < d->k && st == ML_OK; j++) {
        float *x = ML_NEW(r->arena, float, r->n + 1);
        for (int32_t i = 0; i < r->n; i++)
            x[i] = (float)v[(int64_t)i * d->k + j];
        c[j].input[which] = x;
    }
    return st;
}

/* Room for k more columns at the end of the pass's. */
static ml_datum_column *add_columns(reader *r, int32_t k) {
    ml_pass_request *p = r->pass;
    ml_datum_column *all = p->column;

    if (p->n_column + k > p->cap) {
        p->cap = 2 * (p->n_column + k);
        p->column = ML_NEW(r->arena, ml_datum_column, p->cap);
        if (p->n_column)
            memcpy(p->column, all, (size_t)p->n_column * sizeof *all);
    }
    p->n_column += k;
    return p->column + p->n_column - k;
}

static ml_status finish_datum(reader *r, ml_datum *d, ml_err *err) {
    ml_pass_request *p = r->pass;
    ml_datum_column *all;
    ml_status st;

    if (!r->has_target)
        return ml_fail(err, ML_EUSAGE, "datum %d: loss_fn_inputs has no target_tokens",
                       r->datum);
    d->flat = r->target.n_dim < 2;
    d->first = p->n_column;
    if (!d->flat && (r->target.shape[1] < 1 || r->target.shape[1] > 4096))
        return ml_fail(err, ML_EUSAGE,
                       "datum %d: target_tokens has %lld columns; 1 to 4096 are possible",
                       r->datum, (long long)r->target.shape[1]);
    d->k = d->flat ? 1 : (int32_t)r->target.shape[1];
    if ((int64_t)r->n * d->k > MAX_VALUES)
        return ml_fail(err, ML_EUSAGE,
                       "datum %d: %d tokens with %d targets each are more than this server "
                       "takes at a time; divide it",
                       r->datum, r->n, d->k);
    all = add_columns(r, d->k);
    for (int32_t j = 0; j < d->k; j++)
        all[j] = (ml_datum_column){ .token = r->token, .n = r->n };
    st = take_targets(r, d, all, err);
    for (int i = 0; i < ML_DATUM_INPUTS && st == ML_OK; i++)
        if (r->has[i])
            st = take_input(r, d, all, i, err);
    return st;
}

static ml_status read_datum(ml_pass_request *p, ml_arena *a, int32_t number, ml_str bytes,
                            ml_err *err) {
    reader r = { .pass = p, .arena = a, .datum = number };
    ml_proto m = { .left = bytes };
    ml_proto_field f;
    ml_status st = ML_OK;

    while (st == ML_OK && ml_proto_next(&m, &f)) {
        if (f.number == DATUM_INPUT)
            st = read_chunk(&r, f.bytes, err);
        else if (f.number == DATUM_TENSORS)
            st = read_entry(&r, f.bytes, err);
    }
    if (st == ML_OK && m.bad)
        st = malformed("a datum", err);
    return st == ML_OK ? finish_datum(&r, &p->datum[number], err) : st;
}

/* --- the request ---------------------------------------------------------------- */

ml_status ml_pass_address(ml_str body, ml_str *model_id, int64_t *seq_id, ml_err *err) {
    ml_proto p = { .left = body };
    ml_proto_field f;

    *model_id = (ml_str){ "", 0 };
    *seq_id = 0;
    while (ml_proto_next(&p, &f)) {
        if (f.number == REQUEST_MODEL && f.bytes.ptr)
            *model_id = f.bytes;
        else if (f.number == REQUEST_SEQ)
            *seq_id = (int64_t)f.value;
    }
    return p.bad ? malformed("the request of a pass", err) : ML_OK;
}

static int32_t count_fields(ml_str body, int32_t number) {
    ml_proto p = { .left = body };
    ml_proto_field f;
    int32_t n = 0;

    while (ml_proto_next(&p, &f))
        n += f.number == number;
    return n;
}

/* A number of the configuration of the loss; texts, which no loss here reads, are skipped. */
static void read_setting(ml_pass_request *p, ml_loss_setting *list, ml_str bytes) {
    ml_proto m = { .left = bytes };
    ml_proto_field f;
    ml_loss_setting s = { 0 };
    bool is_number = false;

    while (ml_proto_next(&m, &f)) {
        if (f.number == ENTRY_KEY && f.bytes.ptr)
            s.name = f.bytes;
        if (f.number == ENTRY_VALUE && !f.bytes.ptr) {
            s.value = ml_proto_double(&f);
            is_number = true;
        }
    }
    if (s.name.len && is_number && !m.bad)
        list[p->n_setting++] = s;
}

ml_status ml_pass_read(ml_pass_request *out, ml_arena *a, ml_str body, ml_err *err) {
    ml_proto p = { .left = body };
    ml_loss_setting *list =
        ML_NEW(a, ml_loss_setting, count_fields(body, REQUEST_CONFIG) + 1);
    ml_proto_field f;
    ml_status st = ML_OK;

    *out = (ml_pass_request){ .setting = list,
                              .loss = { "", 0 },
                              .datum = ML_NEW(a, ml_datum,
                                              count_fields(body, REQUEST_DATA) + 1) };
    while (st == ML_OK && ml_proto_next(&p, &f))
        switch (f.number) {
        case REQUEST_MODEL: out->model_id = f.bytes; break;
        case REQUEST_SEQ: out->seq_id = (int64_t)f.value; break;
        case REQUEST_LOSS: out->loss = f.bytes; break;
        case REQUEST_CONFIG: read_setting(out, list, f.bytes); break;
        case REQUEST_FORWARD_ONLY: out->forward_only = f.value != 0; break;
        case REQUEST_DATA:
            st = read_datum(out, a, out->n_datum, f.bytes, err);
            out->n_datum++;
            break;
        default: break;
        }
    if (st == ML_OK && p.bad)
        st = malformed("the request of a pass", err);
    if (st == ML_OK && !out->n_datum)
        st = ml_fail(err, ML_EUSAGE, "the request has no data");
    return st;
}

ml_status ml_pass_check(const ml_pass_request *p, int64_t n_vocab, int32_t context,
                        ml_err *err) {
    for (int32_t d = 0; d < p->n_datum; d++)
        for (int32_t j = 0; j < p->datum[d].k; j++) {
            const ml_datum_column *c = &p->column[p->datum[d].first + j];
            if (c->n < 1 || c->n > context)
                return ml_fail(err, ML_EUSAGE,
                               "datum %d: model_input has %d tokens; this server trains "
                               "on 1 to %d",
                               d, c->n, context);
            for (int32_t i = 0; i < c->n; i++)
                if (c->token[i] < 0 || c->token[i] >= n_vocab || c->target[i] >= n_vocab)
                    return ml_fail(err, ML_EUSAGE,
                                   "datum %d, position %d: token %d or target %d is not "
                                   "below %lld, the model's vocabulary size",
                                   d, i, c->token[i], c->target[i], (long long)n_vocab);
        }
    return ML_OK;
}

/* --- the reply ------------------------------------------------------------------ */

static bool same_form(const ml_datum *a, const ml_datum *b) {
    return a->flat == b->flat && a->k == b->k;
}

/* The log-probs of datums with the same form, as one tensor with offsets. */
static void put_tensor(ml_text *out, const ml_pass_request *p, int32_t first, int32_t end,
                       float *const *logprob) {
    int64_t total = 0, at = 0;
    ml_text offsets = { 0 };
    char *room;

    for (int32_t d = first; d <= end; d++) {
        int64_t bytes = total * (int64_t)sizeof(float);
        ml_text_add(&offsets, (const char *)&bytes, sizeof bytes);
        if (d < end)
            total += (int64_t)p->column[p->datum[d].first].n * p->datum[d].k;
    }
    room = ml_proto_room(out, BATCHED_DATA, (size_t)total * sizeof(float));
    for (int32_t d = first; d < end; d++) {
        const ml_datum *x = &p->datum[d];
        for (int32_t i = 0; i < p->column[x->first].n; i++)
            for (int32_t j = 0; j < x->k; j++, at++)
                memcpy(room + at * 4, &logprob[x->first + j][i], 4);
    }
    ml_proto_put_bytes(out, BATCHED_OFFSETS, (ml_str){ offsets.ptr, offsets.len });
    ml_proto_put_int(out, BATCHED_DTYPE, DTYPE_F32);
    if (!p->datum[first].flat)
        ml_proto_put_int(out, BATCHED_TRAILING, (uint64_t)p->datum[first].k);
    ml_text_release(&offsets);
}

static void put_record(ml_text *out, const ml_pass_request *p, int32_t first, int32_t end,
                       float *const *logprob) {
    ml_text values = { 0 }, entry = { 0 }, record = { 0 };

    put_tensor(&values, p, first, end, logprob);
    ml_proto_put_bytes(&entry, ENTRY_KEY, ml_str_of("logprobs"));
    ml_proto_put_bytes(&entry, ENTRY_VALUE, (ml_str){ values.ptr, values.len });
    ml_proto_put_bytes(&record, RECORD_TYPE, ml_str_of("ArrayRecord"));
    ml_proto_put_bytes(&record, RECORD_FIELDS, (ml_str){ entry.ptr, entry.len });
    ml_proto_put_int(&record, RECORD_DATUMS, (uint64_t)(end - first));
    ml_proto_put_bytes(out, OUTPUT_RECORDS, (ml_str){ record.ptr, record.len });
    ml_text_release(&values);
    ml_text_release(&entry);
    ml_text_release(&record);
}

void ml_pass_reply(ml_text *out, const ml_pass_request *p, float *const *logprob,
                   double loss) {
    ml_text metric = { 0 };

    ml_proto_put_bytes(out, OUTPUT_TYPE, ml_str_of("ArrayRecord"));
    for (int32_t d = 0, end; d < p->n_datum; d = end) {
        for (end = d + 1; end < p->n_datum; end++)
            if (!same_form(&p->datum[d], &p->datum[end]))
                break;
        put_record(out, p, d, end, logprob);
    }
    ml_proto_put_bytes(&metric, ENTRY_KEY, ml_str_of("loss:sum"));
    ml_proto_put_double(&metric, ENTRY_VALUE, loss);
    ml_proto_put_bytes(out, OUTPUT_METRICS, (ml_str){ metric.ptr, metric.len });
    ml_text_release(&metric);
}
