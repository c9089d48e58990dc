#include "run/speeds.h"

#include <math.h>
#include <string.h>

#include "base/bug.h"
#include "base/file.h"
#include "base/json.h"

/* --- files ------------------------------------------------------------------ */

__asm__(".pushsection .rodata\n"
        ".global ml_speeds_h200_text\n"
        ".hidden ml_speeds_h200_text\n"
        "ml_speeds_h200_text:\n"
        ".incbin \"share/speeds/h200.json\"\n"
        ".byte 0\n"
        ".popsection\n");

extern const char ml_speeds_h200_text[];

static const struct {
    const char *kind, *text;
} kinds[] = { { "h200", ml_speeds_h200_text } };
enum { N_KIND = sizeof kinds / sizeof *kinds };

typedef struct reader {
    const char *path;
    ml_err *err;
    ml_status st;
} reader;

/* A positive number of an object; 0, and the reader fails, if it has none. */
static double number(reader *r, const ml_json *obj, const char *key) {
    const ml_json *v = ml_json_get(obj, key);
    double x = 0;

    if (r->st == ML_OK && (!v || !ml_json_f64(v, &x) || !(x > 0)))
        r->st = ml_fail(r->err, ML_EFORMAT,
                        "%s: expected a positive number for \"%s\"%s; compare "
                        "share/speeds/h200.json",
                        r->path, key, v ? "" : ", which is missing");
    return r->st == ML_OK ? x : 0;
}

static double number_or(const ml_json *obj, const char *key, double otherwise) {
    double x = otherwise;
    return ml_json_f64(ml_json_get(obj, key), &x) && x >= 0 ? x : otherwise;
}

static ml_op_speed speed_of(const ml_json *o, ml_op_speed otherwise) {
    return (ml_op_speed){
        .flops = 1e12 * number_or(o, "tflops", otherwise.flops / 1e12),
        .bytes = 1e9 * number_or(o, "gb_s", otherwise.bytes / 1e9),
        .k_overhead = number_or(o, "k_overhead", otherwise.k_overhead),
        .row_cost = number_or(o, "row_cost", otherwise.row_cost),
    };
}

static void read_ops(reader *r, ml_speeds *s, const ml_json *ops) {
    static const char *const pass[2] = { "forward", "backward" };
    const ml_json *other = ml_json_get(ops, "other");

    for (int k = 0; k < 2; k++) {
        const ml_json *o = ml_json_get(other, pass[k]);
        ml_op_speed all = { .flops = 1e12 * number(r, o, "tflops"),
                            .bytes = 1e9 * number(r, o, "gb_s") };
        for (int i = 0; i < ML_OP_COUNT; i++)
            s->op[i][k] =
                speed_of(ml_json_get(ml_json_get(ops, ml_op_infos[i].name), pass[k]), all);
    }
}

static void read_text(char out[64], const ml_json *v) {
    ml_str_copy(out, 64, v && v->type == ML_JSON_STRING ? v->text : ml_str_of("?"));
}

static void read_links(reader *r, ml_speeds *s, const ml_json *links) {
    static const char *const name[ML_LINKS] = { "nvlink", "network" };

    for (int i = 0; i < ML_LINKS; i++) {
        const ml_json *l = ml_json_get(links, name[i]);
        s->link[i].bytes = 1e9 * number(r, l, "gb_s");
        s->link[i].latency_s = 1e-6 * number(r, l, "latency_us");
    }
    s->overlap = ml_json_get(links, "overlap") &&
                 ml_json_get(links, "overlap")->type == ML_JSON_TRUE;
}

ml_status ml_speeds_parse(ml_speeds *out, ml_str text, const char *path, ml_err *err) {
    reader r = { .path = path, .err = err };
    const ml_json *doc;
    ml_arena a;

    *out = (ml_speeds){ 0 };
    ml_arena_init(&a, "speeds");
    r.st = ml_json_parse(&doc, &a, text, path, err);
    if (r.st == ML_OK) {
        read_text(out->kind, ml_json_get(doc, "kind"));
        read_text(out->name, ml_json_get(doc, "name"));
        out->memory_bytes = number(&r, doc, "memory_bytes");
        out->base_bytes = number(&r, doc, "base_bytes");
        out->comm_bytes = number(&r, doc, "comm_bytes");
        out->n_sm = number(&r, doc, "sm");
        out->tile = number(&r, doc, "tile");
        out->launch_s = 1e-6 * number(&r, doc, "launch_us");
        out->micro_s = 1e-6 * number(&r, doc, "micro_batch_us");
        out->step_s = 1e-6 * number(&r, doc, "step_us");
        out->optimizer_bytes = 1e9 * number(&r, doc, "optimizer_gb_s");
        read_ops(&r, out, ml_json_get(doc, "ops"));
        read_links(&r, out, ml_json_get(doc, "links"));
    }
    ml_arena_release(&a);
    return r.st;
}

static bool is_path(const char *kind) {
    size_t n = strlen(kind);
    return strchr(kind, '/') || (n > 5 && strcmp(kind + n - 5, ".json") == 0);
}

ml_status ml_speeds_open(ml_speeds *out, const char *kind, ml_err *err) {
    ml_file f = { 0 };
    ml_status st;

    for (int i = 0; i < N_KIND; i++)
        if (strcmp(kind, kinds[i].kind) == 0)
            return ml_speeds_parse(out, ml_str_of(kinds[i].text), kind, err);
    if (!is_path(kind))
        return ml_fail(err, ML_EUSAGE,
                       "--device-kind '%s' is not known: use %s, or the path of a JSON "
                       "file with the speeds of the GPU (compare share/speeds/h200.json)",
                       kind, kinds[0].kind);
    st = ml_file_map(&f, kind, err);
    if (st == ML_OK)
        st = ml_speeds_parse(out, f.bytes, kind, err);
    ml_file_unmap(&f);
    return st;
}

/* --- work ------------------------------------------------------------------- */

static double bytes_of(const ml_tensor *t) {
    return t->n_dim ? (double)ml_tensor_bytes(t) : 0;
}

static double rows_of(const ml_tensor *t) {
    return (double)t->shape[0];
}

static void add_product(ml_op_work *w, double m, double n, double k, double groups) {
    ML_BUG_IF(w->n_product == 3);
    w->product[w->n_product].m = m;
    w->product[w->n_product].n = n;
    w->product[w->n_product].k = k;
    w->product[w->n_product++].groups = groups;
}

/* y [m, n] = x [m, k] w', and with backward dx and dw. */
static void add_linear(ml_op_work *w, const ml_op_args *a, bool backward, double m,
                       double n, double k, double groups) {
    if (!backward) {
        add_product(w, m, n, k, groups);
        return;
    }
    if (a->din[0].n_dim)
        add_product(w, m, k, n, groups);
    /* dw sums over the rows: each expert's over its own. */
    add_product(w, groups * n, k, m / groups, 1);
    w->bytes += 8 * groups * n * k; /* f32 sums are read and written */
}

/* Keys of a row of a causal sequence, on the average. */
static double keys_of(const ml_op_attr *attr, double seq_len) {
    double window = attr->attn.window ? attr->attn.window : seq_len;
    double half = (seq_len + 1) / 2;

    if (attr->attn.chunk && attr->attn.chunk < seq_len)
        half = (attr->attn.chunk + 1) / 2.0;
    if (window >= seq_len)
        return half;
    return window - window * (window - 1) / (2 * seq_len);
}

/* Keys that are compressed from `ratio` rows each; 0: one. */
static double compressed(int32_t ratio, double n_row) {
    return ratio ? n_row / ratio : n_row;
}

/* The same for selected keys, besides those of a window. */
static double chosen_keys(const ml_op_args *a, double seq_len) {
    double keys = compressed(a->attr->attn.ratio, (seq_len + 1) / 2);

    if (a->in[2].n_dim)
        keys = fmin((double)a->in[2].shape[1], keys);
    return a->attr->attn.ratio ? keys + keys_of(a->attr, seq_len) : keys;
}

/* Scores, values; backward without atomics computes scores and their gradients twice. */
static void add_attention(ml_op_work *w, const ml_op_args *a, bool backward, double keys) {
    double n = rows_of(&a->in[0]), heads = a->attr->attn.n_head;
    double d = a->attr->attn.head_dim;
    double e = a->attr->attn.value_dim ? a->attr->attn.value_dim : d;

    w->keys = keys;
    w->flops += 2 * n * heads * keys * (backward ? 4 * d + 3 * e : d + e);
}

/* The logits are read once more for their statistics; backward reads them and writes
 * their gradients; without kept logits it computes them again. */
static void add_lmhead(ml_op_work *w, const ml_op_args *a, bool backward) {
    double m = a->rows->n_loss, n = rows_of(&a->w[0]), k = (double)a->w[0].shape[1];
    bool kept = a->out[3].n_dim != 0;

    if (!backward || !kept)
        add_product(w, m, n, k, 1);
    if (backward) {
        add_product(w, m, k, n, 1);
        add_product(w, n, k, m, 1);
    }
    w->bytes += m * n * 4;
    if (backward)
        w->bytes += m * n * 2 + 8 * n * k;
}

/* An op that reads its inputs and writes its outputs, once. */
static void add_moved(ml_op_work *w, ml_op_id op, const ml_op_args *a, bool backward) {
    const ml_op_info *info = &ml_op_infos[op];

    for (int i = 0; i < ML_OP_IN; i++) {
        if (!backward || (info->save_in >> i & 1))
            w->bytes += bytes_of(&a->in[i]);
        w->bytes += bytes_of(&a->din[i]) * (a->din_add[i] ? 2 : 1);
    }
    for (int i = 0; i < ML_OP_OUT; i++) {
        if (!backward || (info->save_out >> i & 1))
            w->bytes += bytes_of(&a->out[i]);
        w->bytes += bytes_of(&a->dout[i]);
    }
}

static void add_rnn(ml_op_work *w, const ml_op_args *a, bool backward) {
    double n = rows_of(&a->in[0]), heads = a->attr->linear_rnn.n_head;
    double state = (double)a->attr->linear_rnn.key_dim * a->attr->linear_rnn.value_dim;

    w->flops += (backward ? 3 : 1) * n * heads * state * 8;
}

ml_op_work ml_op_work_of(ml_op_id op, ml_plan_pass pass, const ml_op_args *a,
                         double seq_len) {
    ml_op_work w = { 0 };
    bool back = pass == ML_PASS_BACKWARD;
    double m = rows_of(&a->in[0]), n_w = (double)a->w[0].shape[0];

    switch (op) {
    case ML_OP_LINEAR: add_linear(&w, a, back, m, n_w, (double)a->w[0].shape[1], 1); break;
    case ML_OP_MOE_LINEAR:
        add_linear(&w, a, back, m, (double)a->w[0].shape[1], (double)a->w[0].shape[2], n_w);
        break;
    case ML_OP_HEAD_LINEAR: /* a product of its own for each head */
        add_linear(&w, a, back, m * n_w, (double)a->w[0].shape[1], (double)a->w[0].shape[2],
                   n_w);
        break;
    case ML_OP_LMHEAD: add_lmhead(&w, a, back); break;
    case ML_OP_ATTN: add_attention(&w, a, back, keys_of(a->attr, seq_len)); break;
    case ML_OP_ATTN_CHOSEN: add_attention(&w, a, back, chosen_keys(a, seq_len)); break;
    case ML_OP_INDEX:
        w.flops = 2 * m * a->attr->index.n_head * a->attr->index.head_dim *
                  compressed(a->attr->index.ratio, (seq_len + 1) / 2);
        break;
    case ML_OP_LINEAR_RNN: add_rnn(&w, a, back); break;
    case ML_OP_EMBED: /* rows of the table, and their gradients */
        w.bytes = bytes_of(&a->out[0]) + bytes_of(&a->dout[0]) * 4;
        break;
    default: add_moved(&w, op, a, back); break;
    }
    return w;
}

double ml_op_work_flops(const ml_op_work *w) {
    double sum = w->flops;

    for (int i = 0; i < w->n_product; i++)
        sum += 2 * w->product[i].m * w->product[i].n * w->product[i].k;
    return sum;
}

/* --- time ------------------------------------------------------------------- */

/* The share of multiprocessors that have a tile, over all waves of tiles. */
static double waves(const ml_speeds *s, double m, double n) {
    double tiles = ceil(m / s->tile) * ceil(n / s->tile);
    return tiles / (s->n_sm * ceil(tiles / s->n_sm));
}

static double product_seconds(const ml_speeds *s, const ml_op_speed *v, const ml_op_work *w,
                              int i) {
    double m = w->product[i].m, n = w->product[i].n, k = w->product[i].k;
    double groups = w->product[i].groups, useful = k / (k + v->k_overhead);
    double bytes = 2 * (m * k + groups * n * k + m * n);

    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    if (groups > 1) /* a group's last tile of rows is half full, on the average */
        useful *= m / groups / (m / groups + s->tile / 2);
    else
        useful *= waves(s, m, n);
    return fmax(2 * m * n * k / (v->flops * useful), bytes / v->bytes);
}

double ml_op_seconds(const ml_speeds *s, ml_op_id op, ml_plan_pass pass,
                     const ml_op_work *w) {
    const ml_op_speed *v = &s->op[op][pass == ML_PASS_BACKWARD];
    double rate = v->flops, t = s->launch_s * (w->n_product > 1 ? w->n_product : 1);

    if (w->keys > 0) /* keys of a row are half of its sequence */
        rate *= 2 * w->keys / (2 * w->keys + v->row_cost);
    for (int i = 0; i < w->n_product; i++)
        t += product_seconds(s, v, w, i);
    return t + fmax(w->flops / rate, w->bytes / v->bytes);
}

double ml_link_seconds(const ml_speeds *s, ml_link_kind link, double bytes, double n) {
    return bytes > 0 ? bytes / s->link[link].bytes + n * s->link[link].latency_s : 0;
}
