/* random, deterministic_random and zero: rewards without a learning signal. */
#include <string.h>

#include "base/philox.h"
#include "rl/builtins.h"
#include "rl/reward/label.h"
#include "base/sha256.h"

#define COIN_STREAM 0x636f696eU /* separates these random numbers from the sampler's */

static int run_random(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    (void)err;
    out->reward =
        (double)(ml_philox_at((uint64_t)in->seed, (uint64_t)in->index, COIN_STREAM)
                     .word[0] &
                 1);
    return 0;
}

/* The first byte of SHA-256 over "[1, 2, 3]" and the raw response, as in Miles. */
static int run_hash(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    ml_text text = { 0 };
    uint8_t digest[ML_SHA256_BYTES];

    (void)err;
    ml_text_printf(&text, "[");
    for (int64_t i = 0; i < in->n_token; i++)
        ml_text_printf(&text, "%s%lld", i ? ", " : "", (long long)in->token[i]);
    ml_text_printf(&text, "]");
    ml_text_add(&text, ml_raw_response(in).ptr, ml_raw_response(in).len);
    ml_sha256(digest, (ml_str){ text.ptr, text.len });
    out->reward = (double)(digest[0] % 2);
    ml_text_release(&text);
    return 0;
}

static int run_zero(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    (void)in, (void)err;
    out->reward = 0.0;
    return 0;
}

const miles_reward ml_reward_zero = {
    { sizeof ml_reward_zero, MILES_REWARD, "zero", NULL,
      "always 0, for runs that learn from a teacher only" },
    run_zero,
};

const miles_reward ml_reward_random = {
    { sizeof ml_reward_random, MILES_REWARD, "random", NULL,
      "random 0 or 1, the same in every run with the same seed" },
    run_random,
};

const miles_reward ml_reward_deterministic_random = {
    { sizeof ml_reward_deterministic_random, MILES_REWARD, "deterministic_random", NULL,
      "0 or 1 by a hash of tokens and response" },
    run_hash,
};
