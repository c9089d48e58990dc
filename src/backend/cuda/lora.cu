/* lora.cu - LORA: low-rank adapters on the outputs of linear layers; in f32, and in bf16 with
 * widths that tensor cores do not take.  See lora_mma.cu for the others, and lora_decode.cu for
 * few rows of them.
 *
 * The rows of a tile may have different adapters, and be of different experts.  For every
 * pair of them in the tile, a block computes the product of all rows, and keeps the rows of
 * the pair.  An output is one FMA chain of its own row, or a few of them that depend on its
 * width only, so that a mixed batch has the bits of each row alone.  A gradient of A or B has
 * one writer, which loops over the rows in order.  Adapters are f32, and so are all products. */
#include "backend/cuda/lora_decode.cuh"

enum {
    ROWS = 64, /* of a tile */
    COLS = 32,
    DEEP = 32, /* numbers of a product in shared memory at a time */
    EACH = 4,  /* a thread has EACH x EACH outputs */
    ACROSS = COLS / EACH,
    THREADS = ROWS / EACH * ACROSS
};

template <class T>
__global__ void drop_kernel(float *y, const T *x, row_map m, drop_rule d, int64_t width) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / width;

    if (i < m.n_row * width)
        y[i] = drop(m, d, row, expert_of(m, row), i % width, ml_f32(x[i]));
}

/* ---- products ---- */

struct tile {
    float a[DEEP][ROWS + 1], b[DEEP][COLS + 1];
};

/* sum[i][j] += the product over k of a(row, k) and b(column, k), for the rows
 * y EACH + i and the columns x EACH + j of a tile.  A_K, B_K: neighbours in k are neighbours
 * in memory; otherwise neighbours in row or column are. */
template <bool A_K, bool B_K, class A, class B>
__device__ static void multiply(float (&sum)[EACH][EACH], tile &t, int64_t k, A a, B b) {
    int id = (int)threadIdx.x, x = id % ACROSS, y = id / ACROSS;

    for (int64_t k0 = 0; k0 < k; k0 += DEEP) {
        for (int e = id; e < ROWS * DEEP; e += THREADS) {
            int r = A_K ? e / DEEP : e % ROWS, d = A_K ? e % DEEP : e / ROWS;
            t.a[d][r] = k0 + d < k ? a(r, k0 + d) : 0.0f;
        }
        for (int e = id; e < COLS * DEEP; e += THREADS) {
            int c = B_K ? e / DEEP : e % COLS, d = B_K ? e % DEEP : e / COLS;
            t.b[d][c] = k0 + d < k ? b(c, k0 + d) : 0.0f;
        }
        __syncthreads();
        for (int d = 0; d < DEEP; d++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(t.a[d][y * EACH + i], t.b[d][x * EACH + j], sum[i][j]);
        __syncthreads();
    }
}

/* Rows times the transpose of their adapters' matrices: y = scale x w' (low), without the
 * scale where it is in parts, or y + x w'. */
template <class X, class Y> struct product {
    const X *x; /* [n_row, n_head, x_ld] of which a product uses the first k */
    Y *y;       /* [n_row, n_head, y_ld] */
    int64_t x_ld, y_ld;
    int64_t n, k; /* 0: the rank of the adapter */
    int n_head;
    int64_t segment; /* y are parts, of so much of k each; 0: it is whole.  One head only */
    bool use_b;      /* the matrix is B, not A */
    bool transposed; /* w (column, k) is at k n + column */
    bool add;        /* adds, without a scale */
    bool drop;       /* masks what is added */
    drop_rule dropping;
};

template <class X, class Y>
__device__ static void put_outputs(const product<X, Y> &p, const row_map &m, const site &s,
                                   const tile_rows<ROWS> &r, int lead, int64_t row0,
                                   int64_t n0, int64_t n, const float (&sum)[EACH][EACH]) {
    int x = (int)threadIdx.x % ACROSS, y = (int)threadIdx.x / ACROSS;
    int64_t head = p.segment ? 0 : blockIdx.z;
    Y *out = p.y + (p.segment ? blockIdx.z * m.n_row * p.y_ld : 0);

    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int at = y * EACH + i;
            int64_t col = n0 + x * EACH + j, row = row0 + at;
            Y *to = out + (row * p.n_head + head) * p.y_ld + col;
            float v = sum[i][j];
            if (!r.is_alike(at, lead) || col >= n)
                continue;
            if (p.drop)
                v = drop(m, p.dropping, row, expert_of(m, row), head * p.y_ld + col, v);
            *to = ml_as<Y>(p.add ? ml_f32(*to) + v : p.segment ? v : v * s.scale);
        }
}

template <class X, class Y>
__global__ void __launch_bounds__(THREADS)
    product_kernel(product<X, Y> p, row_map m, const __grid_constant__ sites s) {
    __shared__ tile t;
    __shared__ tile_rows<ROWS> r;
    int64_t row0 = (int64_t)blockIdx.x * ROWS, n0 = (int64_t)blockIdx.y * COLS;
    int head = p.segment ? 0 : (int)blockIdx.z;
    int64_t from = p.segment * blockIdx.z;

    find_rows(r, m, s, row0, head, p.n_head);
    for (int i = 0; i < r.n_lead; i++) {
        int lead = r.lead[i];
        float sum[EACH][EACH] = {};
        const X *x = p.x + (row0 * p.n_head + head) * p.x_ld;
        int64_t step = p.n_head * p.x_ld, n, k, some;
        const float *w;
        site own;
        own = s.at[r.adapter[lead]];
        n = p.n ? p.n : own.rank;
        k = p.k ? p.k : own.rank;
        w = p.use_b ? (const float *)own.b + r.group[lead] * own.b_group
                    : (const float *)own.a + r.group[lead] * own.a_group;
        if (n0 >= n)
            continue;
        some = p.segment && p.segment < k - from ? p.segment : k - from;
        auto row = [&](int i, int64_t d) {
            return r.adapter[i] == r.adapter[lead] ? ml_f32(x[i * step + from + d]) : 0.0f;
        };
        if (p.transposed)
            multiply<true, false>(sum, t, some, row, [=](int c, int64_t d) {
                return n0 + c < n ? w[(from + d) * n + n0 + c] : 0.0f;
            });
        else
            multiply<true, true>(sum, t, some, row, [=](int c, int64_t d) {
                return n0 + c < n ? w[(n0 + c) * k + from + d] : 0.0f;
            });
        put_outputs(p, m, own, r, lead, row0, n0, n, sum);
    }
}

/* low = scale times the sum of its parts, in order. */
__global__ static void sum_kernel(float *low, const float *part, int n_part, int width,
                                  row_map m, const __grid_constant__ sites s) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = m.n_row * width;
    int adapter = i < n ? adapter_of(m, i / width) - s.first : -1;
    float sum = 0.0f;

    if (adapter < 0 || adapter >= s.n || i % width >= s.at[adapter].rank)
        return;
    for (int k = 0; k < n_part; k++)
        sum += part[k * n + i];
    low[i] = sum * s.at[adapter].scale;
}

/* dw [groups, m, n] += the sums over the rows of an adapter of u(row, m) v(row, n). */
template <class U, class V> struct gradient {
    float *dw;
    const U *u; /* [n_row, n_head, u_ld] */
    const V *v;
    int64_t u_ld, v_ld, m, n;
    int n_head, adapter;
};

template <class U, class V>
__global__ void __launch_bounds__(THREADS) gradient_kernel(gradient<U, V> g, row_map m) {
    __shared__ tile t;
    int64_t m0 = (int64_t)blockIdx.x * ROWS, n0 = (int64_t)blockIdx.y * COLS;
    int64_t group = blockIdx.z, head = g.n_head > 1 ? group : 0;
    int64_t first = m.start ? m.start[group] : 0;
    int64_t rows = (m.start ? m.start[group + 1] : m.n_row) - first;
    const U *u = g.u + (first * g.n_head + head) * g.u_ld;
    const V *v = g.v + (first * g.n_head + head) * g.v_ld;
    int x = (int)threadIdx.x % ACROSS, y = (int)threadIdx.x / ACROSS;
    float sum[EACH][EACH] = {};

    multiply<false, false>(
        sum, t, rows,
        [&](int i, int64_t d) {
            bool there = m0 + i < g.m && adapter_of(m, first + d) == g.adapter;
            return there ? ml_f32(u[d * g.n_head * g.u_ld + m0 + i]) : 0.0f;
        },
        [&](int i, int64_t d) {
            bool there = n0 + i < g.n && adapter_of(m, first + d) == g.adapter;
            return there ? ml_f32(v[d * g.n_head * g.v_ld + n0 + i]) : 0.0f;
        });
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int64_t row = m0 + y * EACH + i, col = n0 + x * EACH + j;
            if (row < g.m && col < g.n)
                g.dw[(group * g.m + row) * g.n + col] += sum[i][j];
        }
}

/* ---- the op ---- */

lora_call lora_open(ml_stream *s, const ml_op_args *a) {
    lora_call l = {};

    l.s = ml_cuda(s);
    l.a = a;
    l.n_head = a->attr->lora.n_head;
    l.rank = a->attr->lora.max_rank;
    l.n_in = a->in[0].shape[1] / l.n_head;
    l.n_out = a->in[1].shape[1] / l.n_head;
    l.map.adapter = a->rows->adapter;
    l.map.lists = a->rows->by_adapter;
    l.map.start = (const int32_t *)a->in[2].data;
    l.map.key = a->rows->dropout_key;
    l.map.n_row = a->in[0].shape[0];
    l.map.n_expert = a->attr->moe.n_expert;
    l.map.top_k = a->attr->moe.top_k;
    l.map.all = a->lora && a->lora->all;
    l.any = a->lora && (l.map.adapter || l.map.all) && l.map.n_row;
    l.n_group = l.map.start ? l.map.n_expert : l.n_head;
    l.dropped = a->attr->lora.dropout > 0.0f && l.map.key;
    l.dropping.layer = (uint32_t)a->attr->lora.site;
    l.dropping.first_group = a->attr->lora.first_group;
    l.dropping.below = (uint32_t)((double)a->attr->lora.dropout * 0x1p32);
    l.dropping.gain = 1.0f / (1.0f - a->attr->lora.dropout);
    return l;
}

/* T: of activations; the adapters' inputs are X: f32 after dropout. */
template <class T> struct lora : lora_call {
    float *low, *dlow;  /* scale A x, and its gradient */
    float *part, *kept; /* part: of a low; kept: inputs after dropout, or NULL */

    lora(const lora_call &l) : lora_call(l) {
        int64_t n_low = map.n_row * n_head * rank;
        int64_t x = ml_cuda_lora_parts(n_in), y = ml_cuda_lora_parts(n_out);

        low = (float *)a->scratch;
        dlow = low + n_low;
        part = dlow + n_low;
        kept = dropped ? part + (n_head > 1 ? 0 : x > y ? x : y) * n_low : NULL;
    }
};

/* Of a stack of matrices. */
static int64_t group_stride(const ml_tensor *t) {
    return t->shape[0] > 1 ? t->shape[1] * t->shape[2] : 0;
}

bool lora_has(const ml_op_args *a, ml_dtype type) {
    for (int i = 0; i < a->lora->n_adapter; i++)
        if (site_of(a, i) && site_of(a, i)->a.dtype == type)
            return true;
    return false;
}

sites lora_sites(const ml_op_args *a, int first, ml_dtype type) {
    sites s = {};

    s.first = first;
    s.n =
        a->lora->n_adapter - first < ADAPTERS ? a->lora->n_adapter - first : (int)ADAPTERS;
    for (int i = 0; i < s.n; i++) {
        const ml_lora_site *from = site_of(a, first + i);
        if (!from || from->a.dtype != type)
            continue;
        s.at[i] = { from->a.data,           from->b.data, group_stride(&from->a),
                    group_stride(&from->b), from->scale,  (int)from->a.shape[1] };
    }
    return s;
}

/* widest: the most columns of the output; n_part: parts of it, or 1. */
template <class T, class X, class Y>
static void multiply_rows(const lora<T> &l, product<X, Y> p, int64_t widest,
                          int64_t n_part) {
    dim3 grid(ml_cuda_blocks(l.map.n_row, ROWS), ml_cuda_blocks(widest, COLS),
              (unsigned)(l.n_head * n_part));

    p.n_head = l.n_head;
    p.dropping = l.dropping;
    for (int first = 0; first < l.a->lora->n_adapter; first += ADAPTERS)
        product_kernel<<<grid, THREADS, 0, l.s->stream>>>(p, l.map,
                                                          lora_sites(l.a, first, ML_F32));
    ml_cuda_launched(l.s, "lora");
}

/* low = scale A x, or scale B' x; of gradients: scale B' dz, or scale A dz. */
template <class T, class X>
static void make_low(const lora<T> &l, float *low, const X *x, int64_t width, bool use_b) {
    int64_t n_part = l.n_head > 1 ? 1 : ml_cuda_lora_parts(width);
    product<X, float> p = {};

    p.x = x;
    p.y = n_part > 1 ? l.part : low;
    p.x_ld = p.k = width;
    p.y_ld = l.rank;
    p.segment = n_part > 1 ? ml_cuda_lora_segment(width) : 0;
    p.use_b = p.transposed = use_b;
    multiply_rows(l, p, l.rank, n_part);
    for (int first = 0; n_part > 1 && first < l.a->lora->n_adapter; first += ADAPTERS)
        sum_kernel<<<ml_cuda_blocks(l.map.n_row * l.rank, THREADS), THREADS, 0,
                     l.s->stream>>>(low, l.part, (int)n_part, l.rank, l.map,
                                    lora_sites(l.a, first, ML_F32));
}

/* y += B low, or A' low; masked: with dropout. */
template <class T>
static void add_product(const lora<T> &l, T *y, const float *low, int64_t width, bool use_b,
                        bool masked) {
    product<float, T> p = {};

    p.x = low;
    p.y = y;
    p.x_ld = l.rank;
    p.y_ld = p.n = width;
    p.use_b = use_b;
    p.transposed = !use_b;
    p.add = true;
    p.drop = masked;
    multiply_rows(l, p, width, 1);
}

/* The inputs of the adapters, after dropout, times A. */
template <class T> static void low_of_inputs(const lora<T> &l) {
    const T *x = (const T *)l.a->in[0].data;
    int64_t width = l.n_head * l.n_in, n = l.map.n_row * width;
    bool swapped = l.a->attr->lora.transposed;

    if (!l.kept) {
        make_low(l, l.low, x, l.n_in, swapped);
        return;
    }
    drop_kernel<T><<<ml_cuda_blocks(n, THREADS), THREADS, 0, l.s->stream>>>(
        l.kept, x, l.map, l.dropping, width);
    make_low(l, l.low, (const float *)l.kept, l.n_in, swapped);
}

template <class T> static void plain_forward(const lora_call &call) {
    lora<T> l(call);

    low_of_inputs(l);
    add_product(l, (T *)l.a->out[0].data, l.low, l.n_out, !l.a->attr->lora.transposed,
                false);
}

void ml_cuda_lora_forward(ml_stream *s, const ml_op_args *a) {
    lora_call l = lora_open(s, a);

    if (ml_cuda_lora_decode_supports(l.s, &a, 1)) {
        ml_cuda_lora_decode(l.s, &a, 1);
        return;
    }
    if (a->out[0].data != a->in[1].data)
        ml_cuda_note(l.s,
                     cudaMemcpyAsync(a->out[0].data, a->in[1].data,
                                     ml_tensor_bytes(&a->out[0]), cudaMemcpyDeviceToDevice,
                                     l.s->stream),
                     "lora");
    if (l.any && ml_cuda_lora_on_tensor_cores(a))
        lora_mma_forward(l);
    else if (l.any)
        ML_CUDA_TYPED(a->out[0].dtype, plain_forward<T>(l));
}

/* dw [groups, u, v] += of one adapter. */
template <class T, class U, class V>
static void add_gradient(const lora<T> &l, const ml_tensor *dw, int adapter, const U *u,
                         int64_t u_ld, const V *v, int64_t v_ld) {
    gradient<U, V> g = {
        (float *)dw->data, u, v, u_ld, v_ld, dw->shape[1], dw->shape[2], l.n_head, adapter,
    };
    dim3 grid(ml_cuda_blocks(g.m, ROWS), ml_cuda_blocks(g.n, COLS), (unsigned)l.n_group);

    if (dw->data)
        gradient_kernel<U, V><<<grid, THREADS, 0, l.s->stream>>>(g, l.map);
    ml_cuda_launched(l.s, "lora gradient");
}

/* X: of the inputs. */
template <class T, class X> static void add_gradients(const lora<T> &l, const X *x) {
    const T *dz = (const T *)l.a->dout[0].data;

    for (int i = 0; i < l.a->lora->n_adapter; i++) {
        const ml_lora_site *site = site_of(l.a, i);
        if (!site)
            continue;
        if (l.a->attr->lora.transposed) {
            add_gradient(l, &site->da, i, l.low, l.rank, dz, l.n_out);
            add_gradient(l, &site->db, i, x, l.n_in, l.dlow, l.rank);
        } else {
            add_gradient(l, &site->da, i, l.dlow, l.rank, x, l.n_in);
            add_gradient(l, &site->db, i, dz, l.n_out, l.low, l.rank);
        }
    }
}

/* That of x is added to, or to zeros. */
static void begin_dx(const lora_call &l) {
    const ml_tensor *dx = &l.a->din[0];

    if (dx->data && !l.a->din_add[0])
        ml_cuda_note(l.s, cudaMemsetAsync(dx->data, 0, ml_tensor_bytes(dx), l.s->stream),
                     "lora backward");
}

template <class T> static void plain_backward(const lora_call &call) {
    lora<T> l(call);
    const ml_op_args *a = l.a;
    bool swapped = a->attr->lora.transposed;

    begin_dx(l);
    low_of_inputs(l);
    make_low(l, l.dlow, (const T *)a->dout[0].data, l.n_out, !swapped);
    if (a->din[0].data)
        add_product(l, (T *)a->din[0].data, l.dlow, l.n_in, swapped, l.kept != NULL);
    if (l.kept)
        add_gradients(l, (const float *)l.kept);
    else
        add_gradients(l, (const T *)a->in[0].data);
}

void ml_cuda_lora_backward(ml_stream *s, const ml_op_args *a) {
    lora_call l = lora_open(s, a);
    ml_op_args pass = {};

    pass.din[0] = a->din[1]; /* the gradient of y is that of z */
    pass.din_add[0] = a->din_add[1];
    pass.dout[0] = a->dout[0];
    ml_cuda_add_backward(s, &pass);
    if (!l.any)
        begin_dx(l);
    else if (ml_cuda_lora_on_tensor_cores(a))
        lora_mma_backward(l);
    else
        ML_CUDA_TYPED(a->dout[0].dtype, plain_backward<T>(l));
}
