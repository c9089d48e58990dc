/* Qwen3 and Qwen3-MoE, whose layers have experts instead of MLPs. */
#include <string.h>

#include "family.h"

typedef struct qwen {
    int32_t window, first_sliding; /* of layers without layer_types */
    bool experts;
    int64_t every; /* layer i has experts if i + 1 is a multiple */
    miles_moe moe;
} qwen;

/* --- configuration ---------------------------------------------------------------- */

static void read_windows(miles_graph *g, const decoder *d, qwen *q, bool from_first) {
    bool use = g->boolean(g, "use_sliding_window", false);
    int64_t window = g->integer(g, "sliding_window", 4096, 1, INT32_MAX);
    int32_t n = g->list_len(g, "layer_types");

    q->window = use ? (int32_t)window : 0;
    q->first_sliding =
        from_first ? 0 : (int32_t)g->integer(g, "max_window_layers", 28, 0, INT32_MAX);
    if (n && n != d->n_layer)
        g->fail(g, "\"layer_types\" must have an entry for each layer");
}

static int32_t window_of(miles_graph *g, const qwen *q, int32_t layer) {
    if (!g->has(g, "layer_types"))
        return layer >= q->first_sliding ? q->window : 0;
    return strcmp(g->list_string(g, "layer_types", layer), "sliding_attention") == 0
               ? q->window
               : 0;
}

static void read_experts(miles_graph *g, const decoder *d, qwen *q) {
    int64_t n = g->integer(g, "num_local_experts", 0, 1, 65536);

    q->moe = (miles_moe){ .size = sizeof(miles_moe),
                          .router = "mlp.gate",
                          .experts = "mlp.experts",
                          .act = d->act };
    n = g->integer(g, "num_experts", n ? n : MILES_REQUIRED, 1, 65536);
    q->moe.n_expert = (int32_t)n;
    q->moe.top_k = (int32_t)g->integer(g, "num_experts_per_tok", 8, 1, n);
    q->moe.n_inner = g->integer(g, "moe_intermediate_size", MILES_REQUIRED, 1, 1 << 20);
    q->moe.renorm = g->boolean(g, "norm_topk_prob", false);
    q->every = g->integer(g, "decoder_sparse_step", 1, 1, INT32_MAX);
}

static bool has_experts(miles_graph *g, const qwen *q, int32_t layer) {
    bool has = q->experts && (layer + 1) % q->every == 0;

    for (int32_t i = 0; has && i < g->list_len(g, "mlp_only_layers"); i++)
        has = g->list_integer(g, "mlp_only_layers", i) != layer;
    return has;
}

/* --- layers ----------------------------------------------------------------------- */

static int32_t mixer(miles_graph *g, const decoder *d, int32_t x, int32_t layer,
                     const void *family) {
    return decoder_attn(g, d, x, window_of(g, family, layer));
}

static int32_t ffn(miles_graph *g, const decoder *d, int32_t x, int32_t layer,
                   const void *family) {
    const qwen *q = family;

    return has_experts(g, q, layer) ? g->moe(g, x, x, &q->moe) : decoder_mlp(g, d, x);
}

static const decoder_layers layers = { mixer, ffn };

static void build_dense(miles_graph *g) {
    decoder d;
    qwen q = { 0 };

    decoder_read(g, &d, &(decoder_defaults){ .head_dim = 128 }, NULL);
    read_windows(g, &d, &q, false);
    decoder_model(g, &d, &layers, &q);
}

static void build_moe(miles_graph *g) {
    decoder d;
    qwen q = { .experts = true };

    decoder_read(g, &d, &(decoder_defaults){ .n_kv = 4 }, NULL);
    read_experts(g, &d, &q);
    read_windows(g, &d, &q, true);
    decoder_model(g, &d, &layers, &q);
}

/* The balance loss belongs to pre-training. */
static const char *const ignored_moe[] = { "output_router_logits", "router_aux_loss_coef",
                                           "max_window_layers", NULL };

const miles_family family_qwen3 = { sizeof(miles_family), "qwen3",     "qwen3",
                                    "Qwen3ForCausalLM",   build_dense, NULL };
const miles_family family_qwen3_moe = { sizeof(miles_family),  "qwen3_moe", "qwen3_moe",
                                        "Qwen3MoeForCausalLM", build_moe,   ignored_moe };
