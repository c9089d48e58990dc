#include "tests/support/train_fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/philox.h"
#include "tests/support/test.h"

static void must(ml_status st, const ml_err *err) {
    if (st == ML_OK)
        return;
    ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
    exit(1);
}

static void add_sample(ml_train_fixture *t, const ml_st_tensor *ids, bool whole) {
    int32_t n = (int32_t)ids->shape[0], i = t->n_sample;
    int32_t n_response = whole ? n - 1 : n / 2;
    uint8_t *mask = ML_NEW(&t->arena, uint8_t, n_response);

    for (int32_t k = 0; k < n_response; k++)
        mask[k] = (7 * k + i) % 3 != 0;
    t->sample[t->n_sample++] = (ml_train_sample){ .token = ids->data,
                                                  .n_token = n,
                                                  .n_response = n_response,
                                                  .mask = whole ? NULL : mask,
                                                  .rollout = i };
}

static void read_samples(ml_train_fixture *t, const char *dir, bool whole) {
    char path[256], name[32];
    ml_err err = { 0 };
    const ml_st_tensor *ids;

    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    must(ml_st_open(&t->golden, path, &err), &err);
    for (int i = 0;; i++) {
        snprintf(name, sizeof name, "tokens.%d", i);
        ids = ml_st_find(t->golden, ml_str_of(name));
        if (!ids || t->n_sample == ML_TRAIN_FIXTURE_SAMPLES)
            break;
        if (ids->shape[0] >= 4)
            add_sample(t, ids, whole);
    }
    CHECK(t->n_sample >= 3);
}

ml_trainer_opts ml_train_fixture_defaults(void) {
    return (ml_trainer_opts){
        .optimizer = { .rule = { .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8 },
                       .clip_grad = 1.0 },
        .lr = { .train_iters = 1000,
                .global_batch_size = 1,
                .lr = 1e-3,
                .start_weight_decay = 0.1,
                .end_weight_decay = 0.1 },
        .batch = { .global_batch_size = 3, .dynamic = true, .max_tokens = 256 },
        .stop_on_bad = true,
    };
}

void ml_fill_lora(ml_lora *l) {
    float row[512];

    for (int32_t i = 0; i < l->n_site; i++) {
        int32_t b = l->link[i].b;
        const ml_param *p = b == ML_NONE ? NULL : &l->spec.param[b];
        CHECK(!p || p->shape[1] <= 512);
        for (int32_t e = 0; p && e < p->n_stack; e++)
            for (int64_t y = 0; y < p->shape[0]; y++) {
                for (int64_t x = 0; x < p->shape[1]; x++)
                    row[x] = (float)(0.1 * (ml_philox_uniform(7, (uint64_t)(b * 64 + e),
                                                              (uint64_t)(y * 512 + x)) -
                                            0.5));
                ml_weights_pack(&l->weights, b, e, y, 1, row);
            }
    }
}

/* The adapter's ops in the spec, before stages are known. */
static void add_lora(ml_train_fixture *t, const ml_train_fixture_opts *o) {
    bool *wanted;
    ml_err err = { 0 };

    must(ml_lora_new(&t->lora, &t->spec, t->checkpoint, o->lora, &t->be, &err), &err);
    ml_fill_lora(&t->lora);
    wanted = ML_NEW(&t->arena, bool, t->lora.n_site);
    ml_lora_mark(&t->lora, wanted);
    ml_spec_lora_insert(&t->spec, wanted, t->lora.max_rank);
    CHECK(o->dropout == 0 || ml_spec_lora_dropout(&t->spec, (float)o->dropout));
}

static void divide_lora(ml_train_fixture *t, ml_trainer_opts *o) {
    ml_err err = { 0 };

    if (o->mesh)
        must(ml_lora_divide(&t->lora, &t->spec, &o->mesh->sizes, o->mesh->rank, o->stage,
                            &err),
             &err);
    t->site = t->lora.site;
    t->table = (ml_lora_table){ .adapter = &t->site, .n_adapter = 1, .all = true };
    t->weights.lora = &t->table;
    o->lora = &t->lora;
}

static const int32_t *stages_of(ml_train_fixture *t, const ml_stage_opts *o) {
    int32_t *stage = ML_NEW(&t->arena, int32_t, t->spec.n_node);
    ml_err err = { 0 };

    must(ml_stage_of_nodes(stage, &t->spec, o, &err), &err);
    return stage;
}

static void start_mtp(ml_train_fixture *t, const char *dir, const char *head,
                      ml_weight_dtype dtype, ml_trainer_opts *o) {
    ml_optimizer_opts optimizer = o->optimizer;
    ml_err err = { 0 };

    optimizer.mesh = o->mesh;
    optimizer.stage = o->stage;
    must(head ? ml_mtp_trainer_open_head(&t->mtp, head, &t->spec, &t->be, &err)
              : ml_mtp_trainer_open(&t->mtp, dir, &t->be, 0.2, &err),
         &err);
    must(ml_mtp_trainer_start(&t->mtp, head ? t->mtp.head : t->checkpoint, dtype, &t->spec,
                              &t->weights, &optimizer, &err),
         &err);
    o->mtp = &t->mtp;
}

void ml_train_fixture_open(ml_train_fixture *t, const ml_train_fixture_opts *o) {
    const char *dir = o->dir ? o->dir : "tests/golden/data/qwen3";
    ml_trainer_opts trainer = o->trainer;
    ml_err err = { 0 };

    *t = (ml_train_fixture){ 0 };
    ml_arena_init(&t->arena, "train fixture");
    must(ml_spec_open_with(&t->spec, dir, &(ml_spec_opts){ .critic = o->critic }, &err),
         &err);
    must(ml_checkpoint_open(&t->checkpoint, dir, &err), &err);
    ml_spec_keep_kv(&t->spec, ml_weights_kv_dtype(&t->spec, t->checkpoint, o->dtype));
    must(ml_backend_cpu_open(&t->be, o->n_thread ? o->n_thread : 1, o->level, &err), &err);
    if (o->lora)
        add_lora(t, o);
    if (o->stages.n_stage > 1)
        trainer.stage = stages_of(t, &o->stages);
    must(ml_weights_load_part(&t->weights, &t->spec, t->checkpoint, o->dtype,
                              ml_trainer_parts(&t->arena, &t->spec, trainer.mesh,
                                               trainer.stage, t->be.linear),
                              &t->be, &t->arena, &err),
         &err);
    if (o->lora)
        divide_lora(t, &trainer);
    if (o->mtp)
        start_mtp(t, dir, o->head, o->dtype, &trainer);
    trainer.dropout = o->dropout > 0;
    must(ml_trainer_open(&t->trainer, &t->spec, &t->weights, &t->be, &trainer, &err), &err);
    read_samples(t, dir, o->whole);
}

void ml_train_fixture_close(ml_train_fixture *t) {
    ml_trainer_close(t->trainer);
    ml_mtp_trainer_close(&t->mtp);
    ml_st_close(t->golden);
    ml_weights_close(&t->weights);
    ml_lora_close(&t->lora);
    ml_backend_close(&t->be);
    ml_checkpoint_close(t->checkpoint);
    ml_spec_close(&t->spec);
    ml_arena_release(&t->arena);
}

ml_bins ml_train_fixture_bins(ml_train_fixture *t, int64_t max_tokens) {
    ml_bins b = { .bin = ML_NEW(&t->arena, ml_bin, t->n_sample) };
    int64_t n = 0;

    for (int32_t i = 0; i < t->n_sample; i++) {
        ml_bin *bin;
        if (b.n == 0 || n + t->sample[i].n_token > max_tokens) {
            b.bin[b.n++].item = ML_NEW(&t->arena, int32_t, t->n_sample);
            n = 0;
        }
        bin = &b.bin[b.n - 1];
        bin->item[bin->n++] = i;
        n += t->sample[i].n_token;
    }
    return b;
}

ml_status ml_train_fixture_nll(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t i = 0; i < n; i++) {
        int32_t count = 0;
        for (int32_t t = 0; t < io[i].n_response; t++)
            count += !io[i].mask || io[i].mask[t];
        for (int32_t t = 0; t < io[i].n_response; t++) {
            if (io[i].mask && !io[i].mask[t])
                continue;
            io[i].loss -= (double)io[i].logprob[t] / count;
            io[i].dlogprob[t] = -1.0f / (float)count;
        }
    }
    return ML_OK;
}

ml_step_result ml_train_fixture_step(ml_train_fixture *t, int64_t max_tokens) {
    ml_bins bins = ml_train_fixture_bins(t, max_tokens);
    ml_step step = { .sample = t->sample,
                     .micro = &bins,
                     .n_rollout = t->n_sample,
                     .denominator = t->n_sample,
                     .loss = ml_train_fixture_nll };
    ml_step_result r;
    ml_err err = { 0 };

    must(ml_trainer_step(t->trainer, &step, &r, &err), &err);
    return r;
}
