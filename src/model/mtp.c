#include "model/mtp.h"

#include "base/bug.h"

ml_status ml_mtp_open(ml_spec *out, const char *dir, ml_err *err) {
    return ml_spec_open_with(out, dir, &(ml_spec_opts){ .mtp = true }, err);
}

const ml_shard_range *ml_mtp_parts(const ml_spec *m, ml_layout linear, ml_arena *a) {
    ml_shard_range *range = ML_NEW(a, ml_shard_range, m->n_param);

    for (int32_t i = 0; i < m->n_param; i++) {
        ml_tensor t = ml_weights_tensor(&m->param[i], ML_F32, linear);
        range[i] = m->param[i].of_trunk ? (ml_shard_range){ 0 } : ml_shard_range_whole(&t);
    }
    return range;
}

int32_t ml_mtp_trunk_param(const ml_spec *m, int32_t i, const ml_spec *trunk) {
    int32_t member, theirs = ml_spec_find(trunk, ml_str_of(m->param[i].name), &member);

    ML_BUG_IF(theirs == ML_NONE);
    return theirs;
}

void ml_mtp_share(ml_weights *w, const ml_spec *m, const ml_spec *trunk,
                  const ml_weights *of) {
    for (int32_t i = 0; i < m->n_param; i++)
        if (m->param[i].of_trunk)
            w->t[i] = of->t[ml_mtp_trunk_param(m, i, trunk)];
    w->version = of->version;
}

ml_status ml_mtp_load(ml_weights *out, const ml_spec *m, const ml_checkpoint *c,
                      ml_weight_dtype dtype, const ml_spec *trunk, const ml_weights *of,
                      ml_backend *be, ml_arena *a, ml_err *err) {
    ml_status st =
        ml_weights_load_part(out, m, c, dtype, ml_mtp_parts(m, be->linear, a), be, a, err);
    if (st == ML_OK)
        ml_mtp_share(out, m, trunk, of);
    return st;
}

void ml_mtp_keep(ml_plan_opts *o, const ml_spec *m, const ml_spec *trunk) {
    o->hidden = !m->module.n_layer;
    o->n_keep = m->module.n_layer;
    for (int32_t i = 0; i < o->n_keep; i++)
        o->keep[i] = ml_spec_layer_input(trunk, m->module.layer[i]);
}

void ml_mtp_take(const ml_plan *module, const ml_rows *rows, int32_t to,
                 const ml_tensor *hidden, int32_t from, int32_t n, ml_backend *be) {
    ml_tensor port[ML_PORTS];
    size_t row = ml_dtype_bytes(hidden->dtype) * (size_t)hidden->shape[1];
    int32_t n_port = ml_plan_port(module, ML_PORT_IN, rows, 0, port);

    ML_BUG_IF(n_port != 1 || port[0].dtype != hidden->dtype);
    be->dev->copy(be->stream, (unsigned char *)port[0].data + (size_t)to * row,
                  (const unsigned char *)hidden->data + (size_t)from * row,
                  (size_t)n * row);
}

/* Columns of the port from row `to` on: rows of x from row `from` on. */
static void take_columns(ml_tensor port, int32_t to, size_t column, const ml_tensor *x,
                         int32_t from, int32_t n, ml_backend *be) {
    size_t each = ml_dtype_bytes(x->dtype), row = each * (size_t)x->shape[1];
    unsigned char *at = (unsigned char *)port.data + column * each;

    ML_BUG_IF(port.dtype != x->dtype);
    for (int32_t i = 0; i < n; i++)
        be->dev->copy(be->stream, at + (size_t)(to + i) * each * (size_t)port.shape[1],
                      (const unsigned char *)x->data + (size_t)(from + i) * row, row);
}

void ml_mtp_take_trunk(const ml_plan *module, const ml_spec *m, const ml_rows *rows,
                       int32_t to, ml_trunk_rows of, int32_t from, int32_t n,
                       ml_backend *be) {
    ml_tensor port[ML_PORTS], x;

    if (!m->module.n_layer) {
        x = ml_plan_hidden(of.plan, of.rows);
        ml_mtp_take(module, rows, to, &x, from, n, be);
        return;
    }
    ml_plan_port(module, ML_PORT_IN, rows, 0, port);
    for (int32_t i = 0; i < m->module.n_layer; i++) {
        x = ml_plan_kept(of.plan, of.rows,
                         ml_spec_layer_input(of.spec, m->module.layer[i]));
        take_columns(port[0], to, (size_t)(i * m->module.n_hidden), &x, from, n, be);
    }
}
