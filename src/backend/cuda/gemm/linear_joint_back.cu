/* linear_joint_back.cu - backward of LINEARs with one input, in bf16, by cuBLASLt. */
#include "backend/cuda/gemm/linear_joint_back.cuh"

#include "backend/cuda/fuse.cuh"
#include "backend/cuda/gemm/gemm.cuh"

static bool is_after(const ml_tensor *a, const ml_tensor *b) {
    return (char *)a->data + ml_tensor_bytes(a) == (char *)b->data;
}

/* Does b, which runs before a, have the input of a, and the weight gradient after that of a? */
static bool is_next(const ml_op_args *a, const ml_op_args *b) {
    return a->in[0].data == b->in[0].data && a->din[0].data == b->din[0].data &&
           a->din_add[0] && a->dw[0].data && a->dw_write[0] == b->dw_write[0] &&
           a->scratch == b->scratch && is_after(&a->dw[0], &b->dw[0]);
}

ml_joint_back ml_joint_back_of(const ml_op_call *call, int n) {
    ml_joint_back j = {};

    if (n > ML_JOINT_BACK)
        return j;
    for (int i = 0; i < n; i++) {
        if (i > 0 && !is_next(&call[i].args, &call[i - 1].args))
            return {};
        j.linear[n - 1 - i] = &call[i].args;
        j.n += call[i].args.w[0].shape[0];
    }
    j.n_linear = n;
    return j;
}

bool ml_joint_back_feeds(const ml_op_args *a, int k, const ml_op_args *linear) {
    return a->din[k].data == linear->dout[0].data && !a->din_add[k] && !linear->dw[1].data;
}

bool ml_joint_back_takes(const ml_joint_back *j) {
    for (int i = 0; i < j->n_linear; i++) {
        const ml_op_args *a = j->linear[i];
        if (a->w[0].dtype != ML_BF16 || a->in[0].dtype != ML_BF16 ||
            a->dout[0].dtype != ML_BF16 || a->dout[0].shape[0] == 0 ||
            (i > 0 && !is_after(&j->linear[i - 1]->w[0], &a->w[0])))
            return false;
    }
    return j->n_linear > 0;
}

bf16 *ml_joint_back_dy(const ml_joint_back *j) {
    return (bf16 *)((char *)j->linear[0]->scratch + ml_cuda_joint_back_at());
}

/* The first LINEAR to run knows whether dx has other parts already. */
static void back_input(ml_cuda_stream *s, const ml_joint_back *j) {
    const ml_op_args *first = j->linear[0];
    ml_gemm g =
        ml_gemm_shape(first->in[0].shape[0], first->w[0].shape[1], j->n, false, true);

    g.a = ml_joint_back_dy(j);
    g.b = first->w[0].data;
    g.c = first->din[0].data;
    g.in = ML_BF16;
    g.out = first->din[0].dtype;
    g.add = j->linear[j->n_linear - 1]->din_add[0];
    ml_gemm_any(s, &g);
}

static void back_weight(ml_cuda_stream *s, const ml_joint_back *j) {
    const ml_op_args *first = j->linear[0];
    ml_gemm g =
        ml_gemm_shape(j->n, first->w[0].shape[1], first->in[0].shape[0], true, true);

    g.a = ml_joint_back_dy(j);
    g.b = first->in[0].data;
    g.c = first->dw[0].data;
    g.in = ML_BF16;
    g.out = ML_F32;
    g.add = !first->dw_write[0];
    ml_gemm_any(s, &g);
}

void ml_joint_back_run(ml_cuda_stream *s, const ml_joint_back *j) {
    back_input(s, j);
    back_weight(s, j);
}

bool ml_joint_back_gated(ml_cuda_stream *s, const ml_op_args *glu, const ml_op_call *call) {
    const ml_joint_back j = ml_joint_back_of(call, 2);

    if (!ml_joint_back_takes(&j) || glu->attr->glu.fused || glu->dout[0].dtype != ML_BF16 ||
        !ml_joint_back_feeds(glu, 0, j.linear[0]) ||
        !ml_joint_back_feeds(glu, 1, j.linear[1]))
        return false;
    ml_cuda_glu_back_joint(s, glu, ml_joint_back_dy(&j));
    ml_joint_back_run(s, &j);
    return true;
}
