/* train48m.h - the training step that benches measure: a 48M-parameter llama shape, 4 sequences
 * of 256 tokens with a loss at every position. */
#ifndef ML_BENCH_TRAIN48M_H
#define ML_BENCH_TRAIN48M_H

#include "train/trainer.h"

enum { N_SEQ = 4, SEQ_LEN = 256, VOCAB = 32000 };

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 512,"
    " \"intermediate_size\": 1536, \"num_hidden_layers\": 10, \"num_attention_heads\": 8,"
    " \"num_key_value_heads\": 4, \"head_dim\": 64, \"tie_word_embeddings\": true}";

/* The mean of -log p. */
static inline ml_status nll(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < io[i].n_response; t++) {
            io[i].loss -= (double)io[i].logprob[t];
            io[i].dlogprob[t] = -1.0f;
        }
    return ML_OK;
}

static inline void make_samples(ml_train_sample *s, int32_t *token) {
    for (int32_t i = 0; i < N_SEQ; i++) {
        for (int32_t k = 0; k < SEQ_LEN; k++)
            token[i * SEQ_LEN + k] = (i * 104729 + k * 7919) % VOCAB;
        s[i] = (ml_train_sample){ .token = token + i * SEQ_LEN,
                                  .n_token = SEQ_LEN,
                                  .n_response = SEQ_LEN - 1,
                                  .rollout = i };
    }
}

/* n_rank: that divide the sequences. */
static inline ml_trainer_opts trainer_opts(int32_t n_rank) {
    return (ml_trainer_opts){
        .optimizer = { .rule = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 },
                       .clip_grad = 1 },
        .lr = { .train_iters = 1000, .global_batch_size = N_SEQ, .lr = 1e-4 },
        .batch = { .global_batch_size = N_SEQ, .micro_batch_size = N_SEQ / n_rank },
        .keep_logits = true,
    };
}

#endif
