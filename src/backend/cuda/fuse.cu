/* fuse.cu - fuses consecutive op calls of a plan.
 *
 *     function         calls                               rows  becomes
 *     run_products     [RMSNORM] LINEAR [ADD]            16, 512  one skinny GEMM
 *                      [RMSNORM] LINEAR x 2 [GLU]        16, 512  one skinny GEMM
 *                      [RMSNORM] LINEAR x 3              16, 512  one skinny GEMM
 *     run_decode_heads the calls of run_heads after these    16  one kernel, in decode
 *     run_joint_heads  LINEAR x 3, calls of run_heads       512  QKV GEMM, then run_heads
 *     run_swiglu       LINEAR x 2 of FP8 inputs, GLU    from 65  one GEMM with SwiGLU and its FP8 codes
 *                                                                as the epilogue, then their reader
 *     run_gated        LINEAR x 2, GLU                      512  gate-up GEMM, run_gate
 *     run_rounded      LINEAR x 1 to 3 of FP8 inputs         any  inputs are rounded once
 *     run_adapted      LINEAR x 1 to 3, LORA x 1 to 3       512  one GEMM, adapters of all
 *                      LINEAR x 2, LORA x 2, GLU            512  the same, with the GLU
 *     run_coded_norm   [ADD] RMSNORM, then one of the        any  a norm that also writes
 *                      three of FP8 inputs                        FP8 codes, then these
 *     run_gate         GLU [the same]                       any  the same of GLU
 *     run_attn         ATTN [the same], after run_heads     any  the same of ATTN, in decode
 *     run_adapters     LORA x 1 to 3                        512  adapters of all
 *     run_heads        [RMSNORM x 2] ROPE x 2, ATTN         any  QK norm + RoPE + KV, ATTN
 *     run_sum_norm     ADD, RMSNORM                         any  one norm kernel
 *
 * In backward, run_heads_back makes ROPE x 2, RMSNORM x 2 a kernel for k and one for q, and run_qkv_back these and
 * LINEAR x 3 the same kernels, a copy and two products.
 *
 * The first pattern that matches is used.  [ ] is optional; rows is the maximum (a
 * skinny GEMM takes 8 with a norm; with quantized weights and no norm 512 on Hopper, 32 on
 * other cards; it needs sm_90).  The match is by the tensors that
 * the calls read and write.  A fused kernel leaves the same bits as the single calls;
 * it does not write an intermediate that no later call reads, or that a later output
 * overwrites.  Blocks of a kernel do not synchronize with each other, so no block may
 * write where another reads: calls whose memory overlaps are not fused. */
#include "backend/cuda/gemm/gemm_skinny.cuh"
#include "backend/cuda/fp8/fp8.cuh"
#include "backend/cuda/fuse.cuh"
#include "backend/cuda/gemm/gemm.cuh"
#include "backend/cuda/gemm/linear_joint_back.cuh"
#include "backend/cuda/lora_decode.cuh"
#include "backend/cuda/attn/qk_norm_rope_kv.cuh"

/* ---- memory ---- */

static bool same(const ml_tensor *a, const ml_tensor *b) {
    return a->data == b->data;
}

static bool apart(const ml_tensor *a, const ml_tensor *b) {
    const char *x = (const char *)a->data, *y = (const char *)b->data;
    return x + ml_tensor_bytes(a) <= y || y + ml_tensor_bytes(b) <= x;
}

/* Disjoint, or element by element in place. */
static bool apart_or_same(const ml_tensor *a, const ml_tensor *b) {
    return same(a, b) || apart(a, b);
}

static bool is(const ml_op_call *c, int n, int at, ml_op_id op) {
    return at < n && c[at].op == op;
}

/* ---- skinny GEMM: a norm, products of it, an add or a GLU ---- */

enum { MOST_CALLS = ML_SKINNY_PARTS + 2 };

/* A matched run of calls. */
typedef struct products {
    const ml_op_args *norm, *linear[ML_SKINNY_PARTS], *add, *glu;
    int n_linear, n_call;
    const ml_op_call *call;
} products;

static products find_products(const ml_op_call *c, int n) {
    products p = {};
    const ml_tensor *x = &c[0].args.in[0];
    int at = 0;

    if (is(c, n, 0, ML_OP_RMSNORM)) {
        p.norm = &c[at++].args;
        x = &p.norm->out[0];
    }
    while (p.n_linear < ML_SKINNY_PARTS && is(c, n, at, ML_OP_LINEAR) &&
           same(&c[at].args.in[0], x))
        p.linear[p.n_linear++] = &c[at++].args;
    if (p.n_linear == 2 && is(c, n, at, ML_OP_GLU) && !c[at].args.attr->glu.fused &&
        same(&c[at].args.in[0], &p.linear[0]->out[0]) &&
        same(&c[at].args.in[1], &p.linear[1]->out[0]))
        p.glu = &c[at++].args;
    else if (p.n_linear == 1 && is(c, n, at, ML_OP_ADD) &&
             same(&c[at].args.in[0], &p.linear[0]->out[0]) !=
                 same(&c[at].args.in[1], &p.linear[0]->out[0]))
        p.add = &c[at++].args;
    p.n_call = at;
    p.call = c;
    return p;
}

/* Does a call after the first n read the output of call `at`? */
static bool is_wanted(const ml_op_call *c, int n, int at) {
    return at + c[at].reader[0] >= n;
}

static const ml_tensor *addend_of(const products *p) {
    return &p->add->in[same(&p->add->in[0], &p->linear[0]->out[0]) ? 1 : 0];
}

/* Can one kernel do it all: does no block write where another one reads or writes? */
static bool products_fit(const products *p) {
    const ml_tensor *x = p->norm ? &p->norm->in[0] : &p->linear[0]->in[0];
    const ml_tensor *out[MOST_CALLS];
    int n = 0;

    if (p->norm)
        out[n++] = &p->norm->out[0];
    for (int i = 0; i < p->n_linear; i++)
        out[n++] = &p->linear[i]->out[0];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (!apart(out[i], out[j]))
                return false;
    if (p->add || p->glu)
        out[n++] = p->add ? &p->add->out[0] : &p->glu->out[0];
    for (int i = 0; i < n; i++)
        if (!apart(out[i], x) || !apart_or_same(out[i], out[n - 1]) ||
            (p->add && !(i == n - 1 ? apart_or_same : apart)(out[i], addend_of(p))))
            return false;
    return !p->norm || apart(&p->norm->out[0], out[n - 1]);
}

/* Are all rows bf16, and all weights of one kind? */
static bool is_bf16(const products *p, ml_dtype weights) {
    for (int i = 0; i < p->n_linear; i++) {
        const ml_op_args *a = p->linear[i];
        if (a->w[0].dtype != weights || a->out[0].dtype != ML_BF16 ||
            a->in[0].dtype != ML_BF16)
            return false;
    }
    return true;
}

static ml_skinny_gemm skinny_of(const products *p) {
    const ml_tensor *last = p->add ? &p->add->out[0] : p->glu ? &p->glu->out[0] : NULL;
    ml_skinny_gemm f = {};

    for (int i = 0; i < p->n_linear; i++)
        ml_skinny_gemm_add(&f, p->linear[i],
                           is_wanted(p->call, p->n_call, i + (p->norm ? 1 : 0)));
    if (p->norm) {
        f.x = (const bf16 *)p->norm->in[0].data;
        f.norm = (const float *)p->norm->w[0].data;
        f.normed = is_wanted(p->call, p->n_call, 0) ? (bf16 *)p->norm->out[0].data : NULL;
        f.eps = p->norm->attr->norm.eps;
        f.plus_one = p->norm->attr->norm.plus_one;
    }
    if (p->add) {
        f.addend = (const bf16 *)addend_of(p)->data;
        f.sum = (bf16 *)last->data;
    }
    if (p->glu) {
        f.gated = (bf16 *)last->data;
        f.act = p->glu->attr->glu.act;
        f.limit = p->glu->attr->glu.limit;
    }
    return f;
}

/* ---- more rows: products of the same rows as one GEMM ---- */

/* Adjacent weights are one matrix, of codes if they have whole panels; no later call may read the single
 * products. */
static bool is_adjacent(ml_cuda_stream *s, const products *p, int n_call) {
    const ml_dtype kind = p->n_linear ? p->linear[0]->w[0].dtype : ML_BF16;
    const ml_tensor *before = NULL;

    if (p->norm || p->add || p->n_linear < 2 || !is_bf16(p, kind) ||
        (kind != ML_BF16 && !ml_fp8_takes(s, kind)))
        return false;
    for (int i = 0; i < p->n_linear; i++) {
        const ml_tensor *w = &p->linear[i]->w[0];
        if (p->linear[i]->w[1].data || is_wanted(p->call, n_call, i) ||
            w->shape[0] > p->linear[0]->w[0].shape[0] ||
            (kind != ML_BF16 && w->shape[0] % ML_LANES))
            return false;
        if (i > 0 && (const char *)before->data + ml_tensor_bytes(before) != w->data)
            return false;
        before = w;
    }
    return true;
}

static bool is_joint(ml_cuda_stream *s, const products *p, int n_call) {
    return is_adjacent(s, p, n_call) && p->linear[0]->in[0].shape[0] <= ML_JOINT_ROWS;
}

/* Where they are in scratch memory. */
static bf16 *joint_out(const products *p) {
    const ml_op_args *first = p->linear[0];
    return (bf16 *)((char *)first->scratch + ml_cuda_dense_bytes(first) +
                    ml_cuda_input_bytes(first));
}

/* Inputs as FP8 codes: those that the kernel before has written (x), or rounded now. */
static ml_fp8_input codes_of(ml_cuda_stream *s, const ml_op_args *a,
                             const ml_fp8_input *x) {
    return x ? *x : ml_fp8_encode(s, a);
}

/* All of them, [m, n] in joint_out; returns n. */
static int64_t run_joint(ml_cuda_stream *s, const products *p, const ml_fp8_input *x) {
    const ml_op_args *first = p->linear[0];
    int64_t n = 0;
    ml_gemm g;

    for (int i = 0; i < p->n_linear; i++)
        n += p->linear[i]->w[0].shape[0];
    if (ml_fp8_takes(s, first->w[0].dtype)) {
        ml_fp8_gemm f = ml_fp8_gemm_of(first, codes_of(s, first, x), n, joint_out(p));
        for (int i = 1; i < p->n_linear; i++)
            f.blocks &= p->linear[i]->w[0].shape[0] % 128 == 0;
        ml_fp8_multiply(s, &f);
        return n;
    }
    g = ml_gemm_shape(first->in[0].shape[0], n, first->w[0].shape[1], false, false);
    g.a = first->in[0].data;
    g.b = first->w[0].data;
    g.c = joint_out(p);
    g.in = g.out = ML_BF16;
    ml_gemm_rows(s, &g);
    return n;
}

/* ---- adapters of linear layers with one input ---- */

/* LORA calls from c on that read the same rows, and write nothing that another one reads. */
static int find_adapters(const ml_op_args **lora, const ml_op_call *c, int n) {
    int k = 0;

    while (k < ML_LORA_LAYERS && is(c, n, k, ML_OP_LORA) &&
           same(&c[k].args.in[0], &c[0].args.in[0])) {
        for (int i = 0; i < k; i++)
            if (!apart(&c[i].args.out[0], &c[k].args.in[1]) ||
                !apart(&c[k].args.out[0], &c[i].args.in[1]))
                return k;
        lora[k] = &c[k].args;
        k++;
    }
    return k;
}

static int run_adapters(ml_cuda_stream *s, const ml_op_call *c, int n) {
    const ml_op_args *lora[ML_LORA_LAYERS];
    int k = find_adapters(lora, c, n);

    if (k < 2 || !ml_cuda_lora_decode_supports(s, lora, k))
        return 0; /* a single one is the op itself */
    ml_cuda_lora_decode(s, lora, k);
    return k;
}

/* The GLU of two adapted layers, c[2] and c[3], that nothing else reads; or NULL. */
static const ml_op_args *gate_after(const ml_op_call *c, int n, const ml_op_args **lora,
                                    int k) {
    const int at = 4, two = 2;
    const ml_op_args *glu = &c[at].args;

    if (k != two || !is(c, n, at, ML_OP_GLU) || glu->attr->glu.fused ||
        !same(&glu->in[0], &lora[0]->out[0]) || !same(&glu->in[1], &lora[1]->out[0]) ||
        is_wanted(c, at + 1, two) || is_wanted(c, at + 1, two + 1) ||
        !ml_cuda_lora_decode_gates(lora))
        return NULL;
    return glu;
}

/* The same with the layers: several are one GEMM. */
static int run_adapted(ml_cuda_stream *s, const ml_op_call *c, int n) {
    const ml_op_args *lora[ML_LORA_LAYERS];
    const ml_op_args *glu;
    const bf16 *joint = NULL;
    cudaGraphNode_t low;
    products p;
    int k;

    if (c->op != ML_OP_LINEAR)
        return 0;
    p = find_products(c, n);
    k = p.n_linear;
    for (int i = 0; i < k; i++) {
        if (!is(c, n, k + i, ML_OP_LORA) ||
            !same(&c[k + i].args.in[1], &p.linear[i]->out[0]) ||
            !same(&c[k + i].args.in[0], &p.linear[i]->in[0]))
            return 0;
        lora[i] = &c[k + i].args;
    }
    /* In a CUDA graph the product begins before the kernel in front of the adapter's has ended, which
     * may still read the scratch memory that a quantized weight is dequantized to. */
    if (p.norm || ml_dtype_codes(p.linear[0]->w[0].dtype) ||
        (k > 1 && !is_joint(s, &p, 2 * k)) || !ml_cuda_lora_decode_supports(s, lora, k))
        return 0;
    low = ml_cuda_lora_decode_low(s, lora, k);
    if (k > 1) {
        run_joint(s, &p, NULL);
        joint = joint_out(&p);
    } else {
        ml_cuda_linear_forward(&s->base, p.linear[0]);
    }
    glu = gate_after(c, n, lora, k);
    ml_cuda_lora_decode_add(s, lora, k, joint, glu, low);
    return 2 * k + (glu ? 1 : 0);
}

/* ---- QK norm, RoPE, KV write, attention ---- */

static bool norm_fits(const ml_op_args *norm, const ml_op_args *rope) {
    return same(&norm->out[0], &rope->in[0]) &&
           norm->attr->norm.width == rope->attr->rope.head_dim &&
           norm->w[0].shape[0] == norm->attr->norm.width;
}

static bool rope_fits(const ml_op_args *rope, int d) {
    return rope->attr->rope.head_dim == d && rope->attr->rope.dim == d &&
           !rope->attr->rope.interleaved && !rope->attr->rope.inverse;
}

static ml_qk_norm_rope_side side_of(const ml_op_args *norm, const ml_op_args *rope) {
    ml_qk_norm_rope_side s = {};

    s.x = (const bf16 *)(norm ? norm : rope)->in[0].data;
    s.ld = rope->in[0].shape[1];
    s.rotated = (bf16 *)rope->out[0].data;
    if (norm) {
        s.norm = (const float *)norm->w[0].data;
        s.normed = same(&norm->out[0], &rope->out[0]) ? NULL : (bf16 *)norm->out[0].data;
        s.eps = norm->attr->norm.eps;
        s.plus_one = norm->attr->norm.plus_one;
    }
    return s;
}

/* Outputs of one side (q or k) may overwrite its own input, and nothing else. */
static bool sides_fit(const ml_op_args *const (&norm)[2],
                      const ml_op_args *const (&rope)[2], const ml_tensor *v) {
    for (int i = 0; i < 2; i++) {
        const ml_tensor *own = &(norm[i] ? norm[i] : rope[i])->in[0];
        const ml_tensor *other = &(norm[1 - i] ? norm[1 - i] : rope[1 - i])->in[0];
        const ml_tensor *out[2] = { &rope[i]->out[0],
                                    &(norm[i] ? norm[i] : rope[i])->out[0] };
        for (int k = 0; k < 2; k++)
            if (!apart_or_same(out[k], own) || !apart(out[k], other) || !apart(out[k], v) ||
                !apart(out[k], &rope[1 - i]->out[0]))
                return false;
    }
    return true;
}

/* A matched run that ends with ATTN; norms are optional. */
typedef struct heads {
    const ml_op_args *norm[2], *rope[2], *attn;
    int n_call;
} heads;

static bool find_qk_norm_rope(heads *h, const ml_op_call *c, int n) {
    int at = is(c, n, 0, ML_OP_RMSNORM) && is(c, n, 1, ML_OP_RMSNORM) ? 2 : 0;
    int d;

    if (!is(c, n, at, ML_OP_ROPE) || !is(c, n, at + 1, ML_OP_ROPE) ||
        !is(c, n, at + 2, ML_OP_ATTN))
        return false;
    for (int i = 0; i < 2; i++) {
        h->norm[i] = at ? &c[i].args : NULL;
        h->rope[i] = &c[at + i].args;
    }
    h->attn = &c[at + 2].args;
    h->n_call = at + 3;
    d = h->attn->attr->attn.head_dim;
    if (h->attn->in[0].dtype != ML_BF16 || d % 16 != 0 || d > 128 ||
        h->attn->attr->attn.value_dim != d || !h->attn->out[3].data ||
        !same(&h->rope[0]->in[1], &h->rope[1]->in[1]))
        return false;
    for (int i = 0; i < 2; i++)
        if (!same(&h->rope[i]->out[0], &h->attn->in[i]) || !rope_fits(h->rope[i], d) ||
            (at && !norm_fits(h->norm[i], h->rope[i])))
            return false;
    return sides_fit(h->norm, h->rope, &h->attn->in[2]);
}

static ml_qk_norm_rope qk_norm_rope_of(const heads *h) {
    ml_qk_norm_rope r = {};

    r.q = side_of(h->norm[0], h->rope[0]);
    r.k = side_of(h->norm[1], h->rope[1]);
    r.cs = (const float *)h->rope[0]->in[1].data;
    r.to = ml_attn_call(h->attn);
    r.v_ld = h->attn->in[2].shape[1];
    return r;
}

/* Are these the products that the heads are computed from? */
static bool makes_heads(const products *p, const heads *h) {
    const int three = 3;

    if (p->n_linear != three || !same(&p->linear[2]->out[0], &h->attn->in[2]))
        return false;
    for (int i = 0; i < 2; i++)
        if (!same(&p->linear[i]->out[0], &(h->norm[i] ? h->norm[i] : h->rope[i])->in[0]))
            return false;
    return true;
}

/* Attention's outputs are where no block reads q, k or v, before their norms or after. */
static bool attn_fits(const products *p, const heads *h) {
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < p->n_linear; i++)
            if (!apart(&h->attn->out[k], &p->linear[i]->out[0]) ||
                !apart(&h->attn->out[k], &h->attn->in[i]))
                return false;
    return true;
}

/* After a skinny GEMM of q, k and v. */
static int run_decode_heads(ml_cuda_stream *s, const ml_op_call *c, int n,
                            const products *p) {
    ml_qk_norm_rope r;
    heads h;

    if (!find_qk_norm_rope(&h, c, n) || !makes_heads(p, &h) || !attn_fits(p, &h))
        return 0;
    r = qk_norm_rope_of(&h);
    if (!ml_attn_decode_fused_supports(s, &r))
        return 0;
    ml_attn_decode_fused(s, &r);
    return h.n_call;
}

static int run_products(ml_cuda_stream *s, const ml_op_call *c, int n) {
    products p;
    ml_skinny_gemm f;

    if (!s->early || (c->op != ML_OP_RMSNORM && c->op != ML_OP_LINEAR))
        return 0;
    p = find_products(c, n);
    if (p.n_linear == 0 || !ml_skinny_gemm_reads(p.linear[0]->w[0].dtype) ||
        !is_bf16(&p, p.linear[0]->w[0].dtype) || !products_fit(&p) ||
        (p.norm && (p.norm->w[0].shape[0] != p.linear[0]->w[0].shape[1] ||
                    p.norm->attr->norm.width > ML_NORM_WIDE)))
        return 0;
    f = skinny_of(&p);
    if (!ml_skinny_gemm_supports(s, &f))
        return 0;
    ml_skinny_gemm_run(s, &f);
    return p.n_call + run_decode_heads(s, c + p.n_call, n - p.n_call, &p);
}

/* ATTN, the first call, whose keys and values are in their KV pages, and LINEARs that read its output as FP8
 * codes. */
static int run_attn(ml_cuda_stream *s, const ml_op_call *c, int n);

static int run_qk_norm_rope(ml_cuda_stream *s, const ml_op_call *c, int n) {
    ml_qk_norm_rope r;
    heads h;
    int at;

    if (!find_qk_norm_rope(&h, c, n))
        return 0;
    r = qk_norm_rope_of(&h);
    ml_qk_norm_rope_run(s, &r);
    at = h.n_call - 1;
    return at + run_attn(s, c + at, n - at);
}

/* The same, after one QKV GEMM. */
static int run_joint_qk_norm_rope(ml_cuda_stream *s, const ml_op_call *c, int n,
                                  const ml_fp8_input *x) {
    const int three = 3;
    ml_qk_norm_rope r;
    products p;
    heads h;
    int at;

    if (c->op != ML_OP_LINEAR)
        return 0;
    p = find_products(c, n);
    if (p.n_linear != three || !find_qk_norm_rope(&h, c + three, n - three) ||
        !is_joint(s, &p, three + h.n_call) || !makes_heads(&p, &h))
        return 0;
    r = qk_norm_rope_of(&h);
    r.q.ld = r.k.ld = r.v_ld = run_joint(s, &p, x);
    r.q.x = joint_out(&p);
    r.k.x = r.q.x + p.linear[0]->w[0].shape[0];
    r.to.v = r.k.x + p.linear[1]->w[0].shape[0];
    ml_qk_norm_rope_run(s, &r);
    at = three + h.n_call - 1;
    return at + run_attn(s, c + at, n - at);
}

/* ---- products of FP8 codes (fp8.cuh) ---- */

/* LINEARs of codes with the same rows; n_linear 0: none. */
typedef struct rounded {
    products p;
    const ml_op_args *largest; /* by the weight */
} rounded;

static rounded find_rounded(ml_cuda_stream *s, const ml_op_call *c, int n) {
    rounded r = {}, none = {};

    if (!is(c, n, 0, ML_OP_LINEAR))
        return none;
    r.p = find_products(c, n);
    r.largest = r.p.linear[0];
    for (int i = 0; i < r.p.n_linear; i++) {
        const ml_op_args *a = r.p.linear[i];
        if (!ml_fp8_takes(s, a->w[0].dtype) || a->scratch != c->args.scratch ||
            !apart(&a->out[0], &c->args.in[0]))
            return none;
        if (ml_cuda_dense_bytes(a) > ml_cuda_dense_bytes(r.largest))
            r.largest = a;
    }
    return r;
}

/* The codes are behind the memory of the largest weight, where a product may gather scales. */
static int run_rounded(ml_cuda_stream *s, const ml_op_call *c, int n,
                       const ml_fp8_input *x) {
    const rounded r = find_rounded(s, c, n);
    ml_fp8_input codes;

    if (r.p.n_linear == 0)
        return 0;
    codes = codes_of(s, r.largest, x);
    for (int i = 0; i < r.p.n_linear; i++)
        ml_cuda_linear_of_codes(s, r.p.linear[i], codes);
    return r.p.n_linear;
}

/* The LINEARs that read the output of the first call as codes, if it can write them. */
static rounded find_readers(ml_cuda_stream *s, const ml_op_call *c, int n) {
    rounded r = find_rounded(s, c + 1, n - 1), none = {};
    const ml_tensor *y = &c->args.out[0];

    if (r.p.n_linear == 0 || !same(y, &r.largest->in[0]) || y->dtype != ML_BF16 ||
        y->shape[1] % ML_FP8_GROUP)
        return none;
    return r;
}

/* The output of the first call, without memory where these LINEARs alone read it. */
static ml_tensor output_beside_codes(const ml_op_call *c, const rounded *r) {
    ml_tensor y = c->args.out[0];

    if (!is_wanted(c, 1 + r->p.n_linear, 0))
        y.data = NULL;
    return y;
}

/* LINEARs and what is fused with them.  x: their input as codes, if the kernel before has written it. */
static int run_linears_of(ml_cuda_stream *s, const ml_op_call *c, int n,
                          const ml_fp8_input *x);

static int run_linears_of_codes(ml_cuda_stream *s, const ml_op_call *c, int n,
                                const ml_fp8_out &codes) {
    const ml_fp8_input x = { codes.code, codes.scale };

    return run_linears_of(s, c, n, &x);
}

static int run_attn(ml_cuda_stream *s, const ml_op_call *c, int n) {
    const rounded r = find_readers(s, c, n);
    ml_op_args args = c->args;
    ml_fp8_out codes;

    if (r.p.n_linear == 0 || !ml_cuda_attn_writes_codes(&args)) {
        ml_cuda_attn_read(s, &args, {});
        return 1;
    }
    codes = ml_fp8_out_of(r.largest);
    args.out[0] = output_beside_codes(c, &r);
    ml_cuda_attn_read(s, &args, codes);
    return 1 + run_linears_of_codes(s, c + 1, n - 1, codes);
}

/* GLU, the first call, with other arguments.  room: for codes that must not overlap its inputs. */
static int run_gate_as(ml_cuda_stream *s, const ml_op_call *c, int n, ml_op_args glu,
                       void *room) {
    const rounded r = find_readers(s, c, n);
    ml_fp8_out codes;

    if (r.p.n_linear == 0) {
        ml_cuda_glu(s, &glu, {});
        return 1;
    }
    codes = room ? ml_fp8_out_at(room, glu.out[0].shape[0], glu.out[0].shape[1])
                 : ml_fp8_out_of(r.largest);
    glu.out[0] = output_beside_codes(c, &r);
    ml_cuda_glu(s, &glu, codes);
    return 1 + run_linears_of_codes(s, c + 1, n - 1, codes);
}

static int run_gate(ml_cuda_stream *s, const ml_op_call *c, int n) {
    return c->op == ML_OP_GLU ? run_gate_as(s, c, n, c->args, NULL) : 0;
}

/* Gate and up projection with SwiGLU as the epilogue (fp8.cuh).  Its codes are written to the memory of its output,
 * which nothing else reads, since scratch memory has the codes of the input. */
static int run_swiglu(ml_cuda_stream *s, const ml_op_call *c, int n, const products *p,
                      const ml_fp8_input *x) {
    const int at = p->n_call - 1;
    const ml_op_args *gate = p->linear[0];
    const ml_tensor *y = &p->glu->out[0];
    const rounded r = find_readers(s, c + at, n - at);
    ml_fp8_gemm g;

    if (!ml_fp8_takes(s, gate->w[0].dtype) || r.p.n_linear == 0 ||
        output_beside_codes(c + at, &r).data || p->glu->attr->glu.act != ML_ACT_SILU ||
        p->glu->attr->glu.limit != 0.0f ||
        gate->w[0].shape[0] != p->linear[1]->w[0].shape[0] || !is_adjacent(s, p, p->n_call))
        return 0;
    g = ml_fp8_gemm_of(gate, {}, y->shape[1], NULL);
    if (!ml_fp8_fuses_swiglu(s, &g))
        return 0;
    g.x = codes_of(s, gate, x);
    g.gated = ml_fp8_out_at(y->data, y->shape[0], y->shape[1]);
    ml_fp8_multiply(s, &g);
    return at + 1 + run_linears_of_codes(s, c + at + 1, n - at - 1, g.gated);
}

/* Gate and up projection, then GLU.  Its codes are behind the joint product: there is memory for one of three
 * LINEARs. */
static int run_gated(ml_cuda_stream *s, const ml_op_call *c, int n, const ml_fp8_input *x) {
    products p;
    ml_op_attr attr;
    ml_op_args glu;
    int at;

    if (c->op != ML_OP_LINEAR)
        return 0;
    p = find_products(c, n);
    at = p.glu ? run_swiglu(s, c, n, &p, x) : 0;
    if (at)
        return at;
    if (!p.glu || !is_joint(s, &p, p.n_call))
        return 0;
    attr = *p.glu->attr;
    attr.glu.fused = true;
    glu = *p.glu;
    glu.attr = &attr;
    glu.in[0].data = joint_out(&p);
    glu.in[0].shape[1] = run_joint(s, &p, x);
    at = p.n_call - 1;
    return at +
           run_gate_as(s, c + at, n - at, glu, joint_out(&p) + ml_tensor_count(&glu.in[0]));
}

static int run_linears_of(ml_cuda_stream *s, const ml_op_call *c, int n,
                          const ml_fp8_input *x) {
    int took = run_joint_qk_norm_rope(s, c, n, x);

    if (took == 0)
        took = run_gated(s, c, n, x);
    return took ? took : run_rounded(s, c, n, x);
}

static int run_linears(ml_cuda_stream *s, const ml_op_call *c, int n) {
    return run_linears_of(s, c, n, NULL);
}

/* ---- residual add and norm ---- */

static bool is_sum_norm(const ml_op_call *c, int n) {
    const ml_op_args *add = &c[0].args, *norm = &c[1].args;

    if (!is(c, n, 0, ML_OP_ADD) || !is(c, n, 1, ML_OP_RMSNORM) ||
        !same(&add->out[0], &norm->in[0]))
        return false;
    for (int i = 0; i < 2; i++)
        if (!apart_or_same(&add->in[i], &add->out[0]) ||
            !apart_or_same(&add->in[i], &norm->out[0]))
            return false;
    return true;
}

/* A norm of whole rows that its readers get as codes.  In narrow ones half a warp has two rows. */
static int run_coded_norm(ml_cuda_stream *s, const ml_op_call *c, int n) {
    const int at = is_sum_norm(c, n) ? 1 : 0;
    const ml_op_call *norm = c + at;
    ml_op_args args;
    ml_fp8_out codes;
    rounded r;

    if (norm->op != ML_OP_RMSNORM || norm->args.attr->norm.width <= ML_NORM_NARROW ||
        norm->args.attr->norm.width != norm->args.out[0].shape[1])
        return 0;
    r = find_readers(s, norm, n - at);
    if (r.p.n_linear == 0)
        return 0;
    codes = ml_fp8_out_of(r.largest);
    args = norm->args;
    args.out[0] = output_beside_codes(norm, &r);
    if (at)
        ml_cuda_sum_norm(s, &c->args, &args, codes);
    else
        ml_cuda_norm(s, &args, codes);
    return at + 1 + run_linears_of_codes(s, norm + 1, n - at - 1, codes);
}

static int run_sum_norm(ml_cuda_stream *s, const ml_op_call *c, int n) {
    if (!is_sum_norm(c, n))
        return 0;
    ml_cuda_sum_norm(s, &c[0].args, &c[1].args, {});
    return 2;
}

/* ---- backward of RoPE and QK norm ---- */

static bool norm_rope_back_fits(const ml_op_args *norm, const ml_op_args *rope) {
    int d = norm->attr->norm.width;

    return norm->dout[0].dtype == ML_BF16 && d == ML_NORM_NARROW && rope_fits(rope, d) &&
           same(&norm->dout[0], &rope->din[0]) && !rope->din_add[0] && norm->w[0].data &&
           norm->w[0].shape[0] == d;
}

enum { SIDES = 2 /* k and q, in the order of backward */, HEADS_BACK = 2 * SIDES };

/* Calls: ROPE of k and of q, RMSNORM of k and of q. */
static int run_heads_back(ml_cuda_stream *s, const ml_op_call *c) {
    for (int i = 0; i < SIDES; i++) {
        const ml_tensor *dx = &c[SIDES + i].args.din[0];
        if (!norm_rope_back_fits(&c[SIDES + i].args, &c[i].args))
            return 0;
        for (int k = 0; dx->data && k < SIDES; k++)
            if (!apart(dx, &c[k].args.dout[0]))
                return 0;
    }
    for (int i = 0; i < SIDES; i++) {
        const ml_op_args *norm = &c[SIDES + i].args;
        ml_cuda_norm_rope_back(s, norm, &c[i].args, norm->in[0].shape[1]);
    }
    return HEADS_BACK;
}

/* The gradients of q, k and v side by side: the norms write those of q and k, that of v is copied. */
static void join_heads(ml_cuda_stream *s, const ml_op_call *c, const ml_joint_back *j) {
    bf16 *dy = ml_joint_back_dy(j);

    for (int i = 0; i < SIDES; i++) { /* q is linear[0], the last of the calls */
        ml_op_args norm = c[HEADS_BACK - 1 - i].args;
        norm.din[0].data = dy;
        ml_cuda_norm_rope_back(s, &norm, &c[SIDES - 1 - i].args, j->n);
        dy += norm.in[0].shape[1];
    }
    ml_cuda_put_columns(s, dy, j->n, &j->linear[2]->dout[0]);
}

/* After these calls: LINEAR of v, of k and of q. */
static int run_qkv_back(ml_cuda_stream *s, const ml_op_call *c) {
    const ml_joint_back j = ml_joint_back_of(c + HEADS_BACK, ML_JOINT_BACK);

    if (!ml_joint_back_takes(&j) || j.linear[2]->dw[1].data || j.n % ml_wide<bf16>::n != 0)
        return 0;
    for (int i = 0; i < SIDES; i++) {
        const ml_op_args *norm = &c[SIDES + i].args;
        if (!norm_rope_back_fits(norm, &c[i].args) ||
            !ml_joint_back_feeds(norm, 0, j.linear[SIDES - 1 - i]))
            return 0;
    }
    join_heads(s, c, &j);
    ml_joint_back_run(s, &j);
    return HEADS_BACK + ML_JOINT_BACK;
}

int ml_cuda_together_back(ml_stream *s, const ml_op_call *c, int n) {
    if (c->op != ML_OP_ROPE)
        return ml_cuda_linear_together_back(s, c, n);
    return n > HEADS_BACK ? run_qkv_back(ml_cuda(s), c) : run_heads_back(ml_cuda(s), c);
}

/* ---- */

int ml_cuda_together(ml_stream *s, const ml_op_call *c, int n) {
    static int (*const ways[])(ml_cuda_stream *, const ml_op_call *,
                               int) = { run_products,     run_linears, run_adapted,
                                        run_coded_norm,   run_gate,    run_adapters,
                                        run_qk_norm_rope, run_sum_norm };

    for (int (*way)(ml_cuda_stream *, const ml_op_call *, int) : ways) {
        int took = way(ml_cuda(s), c, n);
        if (took)
            return took;
    }
    return 0;
}
