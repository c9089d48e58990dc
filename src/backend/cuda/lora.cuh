/* lora.cuh - shared by the kernels of LORA: which adapter and which matrices a row has. */
#ifndef ML_BACKEND_CUDA_LORA_CUH
#define ML_BACKEND_CUDA_LORA_CUH

#include "backend/cuda/common.cuh"

enum {
    ADAPTERS = 64,     /* of a launch */
    ML_LORA_LAYERS = 3 /* with one input, of a launch for few rows */
};

/* Which adapter a row has, and which matrices of it: those of its expert, or of the head. */
struct row_map {
    const int32_t *adapter; /* [n_token], or NULL: see all */
    const int32_t *lists;   /* ml_rows_by_adapter, or NULL */
    const int32_t *start;   /* MoE: the table of experts' rows, or NULL */
    const uint64_t *key;    /* dropout: [n_token] */
    int64_t n_row;
    int n_expert, top_k;
    bool all;
};

struct site {
    const void *a, *b;        /* f32, or all bf16; NULL: this layer is not adapted */
    int64_t a_group, b_group; /* stride between groups; 0: they share the matrix */
    float scale;
    int rank;
};

/* Adapters first .. first + n - 1. */
struct sites {
    int first, n;
    site at[ADAPTERS];
};

__device__ static inline int64_t token_of(const row_map &m, int64_t row) {
    return m.start ? m.start[m.n_expert + 1 + row] / m.top_k : row;
}

__device__ static inline int adapter_of(const row_map &m, int64_t row) {
    return m.adapter ? m.adapter[token_of(m, row)] : m.all ? 0 : -1;
}

/* The last expert that starts at or before the row; experts without rows come before it. */
__device__ static inline int expert_of(const row_map &m, int64_t row) {
    int low = 0, high = m.start ? m.n_expert : 1;

    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (m.start[mid] <= row)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* ---- dropout ---- */

/* Philox4x32-10, as base/philox.c. */
__device__ static inline uint4 philox(uint64_t seed, uint64_t sample, uint64_t position) {
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    uint4 c = make_uint4((uint32_t)sample, (uint32_t)(sample >> 32), (uint32_t)position,
                         (uint32_t)(position >> 32));

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c.x, b = (uint64_t)0xCD9E8D57u * c.z;
        c = make_uint4((uint32_t)(b >> 32) ^ c.y ^ key0, (uint32_t)b,
                       (uint32_t)(a >> 32) ^ c.w ^ key1, (uint32_t)a);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

struct drop_rule {
    uint32_t below, layer; /* words below it are dropped */
    int first_group;       /* MoE: the first expert's number among those of all ranks */
    float gain;
};

/* x, or 0, divided by the probability that an element is kept: depends on the row's key, the
 * layer, the expert and the column. */
__device__ static inline float drop(const row_map &m, const drop_rule &d, int64_t row,
                                    int expert, int64_t col, float x) {
    uint4 four = philox(m.key[token_of(m, row)],
                        (uint64_t)d.layer | (uint64_t)(expert + d.first_group) << 32,
                        (uint64_t)(col / 4));
    const uint32_t word[4] = { four.x, four.y, four.z, four.w };

    return word[col % 4] < d.below ? 0.0f : x * d.gain;
}

/* ---- the rows of a tile ---- */

/* What a row needs: adapter, minus the first of the launch; expert or head; -1: nothing. */
template <int ROWS> struct tile_rows {
    int adapter[ROWS], group[ROWS];
    bool first[ROWS]; /* of the tile with its adapter and group */
    int lead[ROWS];   /* [n_lead] those that are */
    int n_lead;

    __device__ bool is_alike(int i, int k) const {
        return adapter[i] == adapter[k] && group[i] == group[k];
    }
};

template <int ROWS>
__device__ static void find_rows(tile_rows<ROWS> &r, const row_map &m, const sites &s,
                                 int64_t row0, int head, int n_head) {
    for (int i = (int)threadIdx.x; i < ROWS; i += (int)blockDim.x) {
        int64_t row = row0 + i;
        int adapter = row < m.n_row ? adapter_of(m, row) - s.first : -1;
        if (adapter >= s.n || (adapter >= 0 && !s.at[adapter].a))
            adapter = -1;
        r.adapter[i] = adapter;
        r.group[i] = adapter < 0 ? 0 : n_head > 1 ? head : expert_of(m, row);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < ROWS; i += (int)blockDim.x) {
        bool first = r.adapter[i] >= 0 && !(i && r.is_alike(i, i - 1));
        for (int k = 0; first && k < i; k++)
            first = !r.is_alike(i, k);
        r.first[i] = first;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        int lane = (int)threadIdx.x, n = 0;
        for (int i = lane; i < ROWS; i += 32) {
            unsigned found = __ballot_sync(0xffffffffu, r.first[i]);
            if (r.first[i])
                r.lead[n + __popc(found & ((1u << lane) - 1))] = i;
            n += __popc(found);
        }
        if (lane == 0)
            r.n_lead = n;
    }
    __syncthreads();
}

/* ---- the op ---- */

/* A call; its scratch memory is divided by the kernels that take it. */
struct lora_call {
    ml_cuda_stream *s;
    const ml_op_args *a;
    int64_t n_in, n_out; /* of a head */
    int n_head, rank, n_group;
    row_map map;
    drop_rule dropping;
    bool any;     /* whether a row may have an adapter */
    bool dropped; /* whether inputs are dropped */
};

/* NULL: there is no such adapter, or it does not adapt this layer. */
static inline const ml_lora_site *site_of(const ml_op_args *a, int adapter) {
    const ml_lora_site *all = a->lora->adapter[adapter];
    return all && all[a->attr->lora.site].a.data ? &all[a->attr->lora.site] : NULL;
}

lora_call lora_open(ml_stream *s, const ml_op_args *a); /* lora.cu */

/* Those of ADAPTERS from `first` on whose matrices have this type; lora.cu */
sites lora_sites(const ml_op_args *a, int first, ml_dtype type);
bool lora_has(const ml_op_args *a, ml_dtype type); /* whether an adapter has */

/* bf16 on tensor cores, where ml_cuda_lora_on_tensor_cores; lora_mma.cu */
void lora_mma_forward(const lora_call &l);
void lora_mma_backward(const lora_call &l); /* din[1] has its gradient */

#endif
