#include "comm/mesh.h"

#include <limits.h>

#include "base/bug.h"
#include "comm/device/device_comm.h"

static const char *const group_names[ML_MESH_GROUPS] = {
    [ML_GROUP_TP] = "tp",
    [ML_GROUP_CP] = "cp",
    [ML_GROUP_PP] = "pp",
    [ML_GROUP_DATA] = "data",
    [ML_GROUP_REDUCE] = "reduce",
    [ML_GROUP_EXPERT] = "ep",
    [ML_GROUP_EXPERT_DATA] = "expert data",
    [ML_GROUP_EXPERT_GATHER] = "etp",
    [ML_GROUP_EXPERT_SAME] = "same experts",
    [ML_GROUP_GATHER] = "gather",
    [ML_GROUP_REPLICA] = "replica",
};

/* Directions in which the ranks of a group differ. */
#define IN(dim) (1u << (dim))
static const unsigned group_dims[ML_MESH_GROUPS] = {
    [ML_GROUP_TP] = IN(ML_MESH_TP),
    [ML_GROUP_CP] = IN(ML_MESH_CP),
    [ML_GROUP_PP] = IN(ML_MESH_PP),
    [ML_GROUP_DATA] = IN(ML_MESH_TP) | IN(ML_MESH_DP),
    [ML_GROUP_REDUCE] = IN(ML_MESH_TP) | IN(ML_MESH_CP) | IN(ML_MESH_DP),
    [ML_GROUP_EXPERT] = IN(ML_MESH_TP) | IN(ML_MESH_CP) | IN(ML_MESH_DP),
    [ML_GROUP_EXPERT_DATA] = IN(ML_MESH_TP) | IN(ML_MESH_CP) | IN(ML_MESH_DP),
    [ML_GROUP_EXPERT_GATHER] = IN(ML_MESH_TP) | IN(ML_MESH_CP) | IN(ML_MESH_DP),
    [ML_GROUP_EXPERT_SAME] = IN(ML_MESH_TP) | IN(ML_MESH_CP) | IN(ML_MESH_DP),
    [ML_GROUP_GATHER] = IN(ML_MESH_TP) | IN(ML_MESH_DP),
    [ML_GROUP_REPLICA] = IN(ML_MESH_TP) | IN(ML_MESH_CP) | IN(ML_MESH_DP),
};

static int32_t stage_size(const ml_mesh_sizes *m) {
    return m->size[ML_MESH_TP] * m->size[ML_MESH_CP] * m->size[ML_MESH_DP];
}

int32_t ml_mesh_world(const ml_mesh_sizes *m) {
    return stage_size(m) * m->size[ML_MESH_PP];
}

int32_t ml_mesh_data_size(const ml_mesh_sizes *m) {
    return m->size[ML_MESH_TP] * m->size[ML_MESH_DP];
}

static ml_status check_size(const char *flag, int32_t value, ml_err *err) {
    if (value >= 0)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE, "%s is %d; it must be at least 1", flag, (int)value);
}

static ml_status check_whole(const ml_mesh_sizes *m, ml_err *err) {
    const char *flag = m->ep * m->etp > 1        ? "--expert-model-parallel-size"
                       : m->size[ML_MESH_TP] > 1 ? "--tensor-model-parallel-size"
                       : m->gather > 1           ? "--train-backend fsdp"
                                                 : NULL;
    if (!m->whole || !flag)
        return ML_OK;
    return ml_fail(
        err, ML_EUSAGE,
        "--optimizer muon and adafactor update whole matrices, but %s divides "
        "their weights over ranks: use data, context and pipeline parallel ranks, "
        "or --optimizer adam",
        flag);
}

/* Tensor parallel ranks divide the weights; with FSDP all data places do. */
static ml_status size_gather(ml_mesh_sizes *out, ml_mesh_opts o, ml_err *err) {
    int32_t data = ml_mesh_data_size(out), copies = o.replicate ? o.replicate : 1;

    out->gather = o.fsdp ? data / copies : out->size[ML_MESH_TP];
    if (!o.fsdp && copies > 1)
        return ml_fail(err, ML_EUSAGE,
                       "--dp-replicate-size %d needs --train-backend fsdp, which divides "
                       "the weights over data parallel ranks",
                       (int)copies);
    if (data % copies || out->gather % out->size[ML_MESH_TP])
        return ml_fail(err, ML_EUSAGE,
                       "--dp-replicate-size %d does not divide the %d data parallel ranks; "
                       "choose a divisor",
                       (int)copies, (int)out->size[ML_MESH_DP]);
    return ML_OK;
}

ml_status ml_mesh_size(ml_mesh_sizes *out, int32_t world, ml_mesh_opts o, ml_err *err) {
    const struct {
        const char *flag;
        int32_t value;
    } sizes[] = { { "--tensor-model-parallel-size", o.tp },
                  { "--context-parallel-size", o.cp },
                  { "--pipeline-model-parallel-size", o.pp },
                  { "--expert-model-parallel-size", o.ep },
                  { "--expert-tensor-parallel-size", o.etp } };
    int64_t model = 1;
    int32_t stage;
    ml_status st;

    ML_BUG_IF(world < 1);
    for (int i = 0; i < 5; i++) {
        st = check_size(sizes[i].flag, sizes[i].value, err);
        if (st != ML_OK)
            return st;
        if (i < 3 && sizes[i].value > 1)
            model = model > INT_MAX ? model : model * sizes[i].value;
        if (i < 3 && world % model)
            return ml_fail(
                err, ML_EUSAGE,
                "%s %d does not fit %d rank%s: the product of the tensor, context "
                "and pipeline parallel sizes must divide the number of ranks; "
                "choose another size, or start the job with a multiple of %lld ranks",
                sizes[i].flag, (int)sizes[i].value, (int)world, world == 1 ? "" : "s",
                (long long)model);
    }
    *out = (ml_mesh_sizes){ { o.tp ? o.tp : 1, o.cp ? o.cp : 1, world / (int32_t)model,
                              o.pp ? o.pp : 1 },
                            o.ep ? o.ep : 1,
                            o.etp ? o.etp : 1,
                            1 };
    stage = stage_size(out);
    if (stage % out->ep)
        return ml_fail(err, ML_EUSAGE,
                       "--expert-model-parallel-size %d does not divide the %d rank%s of a "
                       "pipeline stage; choose a divisor of %d",
                       (int)out->ep, (int)stage, stage == 1 ? "" : "s", (int)stage);
    if (stage % ((int64_t)out->ep * out->etp))
        return ml_fail(err, ML_EUSAGE,
                       "--expert-tensor-parallel-size %d does not fit: its product with "
                       "--expert-model-parallel-size %d must divide the %d rank%s of a "
                       "pipeline stage; choose a divisor of %d",
                       (int)out->etp, (int)out->ep, (int)stage, stage == 1 ? "" : "s",
                       (int)(stage / out->ep));
    out->whole = o.whole;
    st = size_gather(out, o, err);
    return st == ML_OK ? check_whole(out, err) : st;
}

void ml_mesh_at(int32_t at[ML_MESH_DIMS], const ml_mesh_sizes *m, int32_t rank) {
    for (int d = 0; d < ML_MESH_DIMS; d++) {
        at[d] = rank % m->size[d];
        rank /= m->size[d];
    }
}

int32_t ml_mesh_rank(const ml_mesh_sizes *m, const int32_t at[ML_MESH_DIMS]) {
    int32_t rank = 0;

    for (int d = ML_MESH_DIMS - 1; d >= 0; d--)
        rank = rank * m->size[d] + at[d];
    return rank;
}

int32_t ml_mesh_at_ep(const ml_mesh_sizes *m, int32_t rank) {
    return rank / m->etp % m->ep; /* etp ep divides a stage */
}

int32_t ml_mesh_at_data(const ml_mesh_sizes *m, int32_t rank) {
    int32_t at[ML_MESH_DIMS];

    ml_mesh_at(at, m, rank);
    return at[ML_MESH_TP] + m->size[ML_MESH_TP] * at[ML_MESH_DP];
}

int32_t ml_mesh_reporter(const ml_mesh_sizes *m, int32_t data_place) {
    const int32_t at[ML_MESH_DIMS] = {
        [ML_MESH_TP] = data_place % m->size[ML_MESH_TP],
        [ML_MESH_DP] = data_place / m->size[ML_MESH_TP],
        [ML_MESH_PP] = m->size[ML_MESH_PP] - 1,
    };
    return ml_mesh_rank(m, at);
}

static bool together(const ml_mesh_sizes *m, int32_t a, int32_t b, ml_mesh_group g) {
    int32_t at_a[ML_MESH_DIMS], at_b[ML_MESH_DIMS];
    int32_t data_a = ml_mesh_at_data(m, a), data_b = ml_mesh_at_data(m, b);

    ml_mesh_at(at_a, m, a);
    ml_mesh_at(at_b, m, b);
    for (int d = 0; d < ML_MESH_DIMS; d++)
        if (at_a[d] != at_b[d] && !(group_dims[g] & IN(d)))
            return false;
    switch (g) {
    case ML_GROUP_EXPERT:
        return a / (m->etp * m->ep) == b / (m->etp * m->ep) && a % m->etp == b % m->etp;
    case ML_GROUP_EXPERT_DATA: return a % (m->etp * m->ep) == b % (m->etp * m->ep);
    case ML_GROUP_EXPERT_GATHER: return a / m->etp == b / m->etp;
    case ML_GROUP_EXPERT_SAME: return ml_mesh_at_ep(m, a) == ml_mesh_at_ep(m, b);
    case ML_GROUP_GATHER: return data_a / m->gather == data_b / m->gather;
    case ML_GROUP_REPLICA: return data_a % m->gather == data_b % m->gather;
    default: return true;
    }
}

int32_t ml_mesh_members(int32_t *out, const ml_mesh_sizes *m, int32_t rank,
                        ml_mesh_group g) {
    int32_t n = 0;

    for (int32_t r = 0; r < ml_mesh_world(m); r++)
        if (together(m, rank, r, g))
            out[n++] = r;
    return n;
}

static int32_t first_member(const ml_mesh_sizes *m, int32_t rank, ml_mesh_group g) {
    int32_t r = 0;

    while (!together(m, rank, r, g))
        r++;
    return r;
}

ml_status ml_mesh_open(ml_mesh *m, ml_comm *world, ml_comm *device, ml_mesh_opts o,
                       ml_err *err) {
    ml_comm *base = device ? device : world;
    ml_status st;

    *m = (ml_mesh){ .world = world, .rank = world->rank };
    ML_BUG_IF(base->size != world->size || base->rank != world->rank);
    st = ml_mesh_size(&m->sizes, world->size, o, err);
    if (st != ML_OK)
        return st;
    ml_mesh_at(m->at, &m->sizes, m->rank);
    m->at_ep = ml_mesh_at_ep(&m->sizes, m->rank);
    for (int g = 0; g < ML_MESH_GROUPS && st == ML_OK; g++) {
        ml_mesh_group which = (ml_mesh_group)g;
        int32_t color = first_member(&m->sizes, m->rank, which);

        st = base->split(base, &m->group[g], color, m->rank, err);
        if (st == ML_OK && m->group[g]->size > 1)
            m->group[g]->group = group_names[g];
    }
    if (st != ML_OK)
        ml_mesh_close(m);
    return st;
}

void ml_mesh_close(ml_mesh *m) {
    for (int g = 0; g < ML_MESH_GROUPS; g++)
        if (m->group[g])
            m->group[g]->close(m->group[g]);
    *m = (ml_mesh){ 0 };
}

ml_status ml_mesh_attach(const ml_mesh *m, ml_stream *s, ml_err *err) {
    ml_status st = ML_OK;

    if (m->world)
        st = ml_comm_device_attach(m->world, s, err);
    for (int g = 0; g < ML_MESH_GROUPS && st == ML_OK; g++)
        if (m->group[g])
            st = ml_comm_device_attach(m->group[g], s, err);
    return st;
}

void ml_mesh_detach(const ml_mesh *m) {
    if (m->world)
        ml_comm_device_detach(m->world);
    for (int g = 0; g < ML_MESH_GROUPS; g++)
        if (m->group[g])
            ml_comm_device_detach(m->group[g]);
}
