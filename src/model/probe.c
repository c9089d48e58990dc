#include "model/probe.h"

#include "base/clock.h"
#include "model/plan.h"

enum {
    N_TOKEN = 128,
    N_TURN = 3, /* the best counts */
};

static const size_t copy_bytes = (size_t)64 << 20;

static const char config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
    "\"hidden_size\": 512, \"intermediate_size\": 1536, \"num_hidden_layers\": 1, "
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 64, "
    "\"vocab_size\": 1024, \"max_position_embeddings\": 512, \"hidden_act\": \"silu\", "
    "\"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}";

typedef struct layer {
    ml_arena arena;
    ml_spec spec;
    ml_weights weights;
    ml_plan *plan;
    ml_batch batch;
} layer;

static ml_status layer_open(layer *l, ml_backend *be, ml_err *err) {
    ml_plan_opts opts = { .caps = { N_TOKEN, 1, N_TOKEN, ml_kv_pages_for(N_TOKEN) } };
    int32_t id[N_TOKEN + 1];
    ml_status st;

    ml_arena_init(&l->arena, "probe");
    st = ml_spec_parse(&l->spec, ml_str_of(config), "probe", err);
    if (st == ML_OK)
        st = ml_weights_dummy(&l->weights, &l->spec, ML_WEIGHT_BF16, 1, be, &l->arena, err);
    if (st == ML_OK)
        st = ml_plan_new(&l->plan, &l->spec, be, opts, err);
    if (st == ML_OK)
        st = ml_plan_alloc(l->plan, err);
    if (st != ML_OK)
        return st;
    ml_batch_init(&l->batch, &l->arena, opts.caps);
    for (int32_t i = 0; i <= N_TOKEN; i++)
        id[i] = i * 7919 % (int32_t)l->spec.n_vocab;
    ml_batch_add(&l->batch, id, id + 1, N_TOKEN, 0, NULL);
    return ML_OK;
}

static void layer_close(layer *l) {
    ml_plan_free(l->plan);
    ml_weights_close(&l->weights);
    ml_spec_close(&l->spec);
    ml_arena_release(&l->arena);
}

static double layer_flops(const layer *l) {
    double n = 0;

    for (int32_t i = 0; i < l->spec.n_param; i++)
        if (l->spec.param[i].n_dim == 2)
            n += 2.0 * N_TOKEN * (double)ml_param_count(&l->spec.param[i]);
    return n;
}

static void forward(ml_probe *out, layer *l) {
    ml_run run = { .weights = &l->weights, .rows = &l->batch.rows };
    float result[2 * N_TOKEN];

    for (int i = 0; i < N_TURN; i++) {
        double start = ml_clock_s(), flops;

        ml_plan_forward(l->plan, &run);
        ml_plan_read(l->plan, &l->batch.rows, result, result + N_TOKEN, NULL);
        flops = layer_flops(l) / (ml_clock_s() - start);
        out->flops = flops > out->flops ? flops : out->flops;
    }
    ml_checksum_write(out->hash, ML_CHECKSUM_XXH3, result, sizeof result);
}

static ml_status copy(ml_probe *out, ml_backend *be, ml_err *err) {
    ml_buf from = { 0 }, to = { 0 };
    ml_status st = be->dev->alloc(be->dev, &from, copy_bytes, ML_MEM_SCRATCH, err);

    if (st == ML_OK)
        st = be->dev->alloc(be->dev, &to, copy_bytes, ML_MEM_SCRATCH, err);
    for (int i = 0; i < N_TURN && st == ML_OK; i++) {
        double start = ml_clock_s(), rate;

        be->dev->copy(be->stream, to.ptr, from.ptr, copy_bytes);
        st = be->dev->sync(be->stream, err);
        rate = 2.0 * (double)copy_bytes / (ml_clock_s() - start);
        out->bytes = rate > out->bytes ? rate : out->bytes;
    }
    be->dev->free(&from);
    be->dev->free(&to);
    return st;
}

ml_status ml_probe_run(ml_probe *out, ml_backend *be, ml_err *err) {
    layer l = { 0 };
    ml_status st = layer_open(&l, be, err);

    *out = (ml_probe){ .flops = 0 };
    if (st == ML_OK)
        forward(out, &l);
    if (st == ML_OK)
        st = copy(out, be, err);
    layer_close(&l);
    return st;
}
