/* weight_link.h - weights over TCP: the connection of an engine to the process that trains.
 *
 * The trainer listens (gen/weight_source.h); SGLang's /init_weights_update_group tells an
 * engine where.  Both prove that they know the key of the group, without sending it.  Then
 * the engine asks for tensors of a version by name, and gets their bytes with checksums.
 * All numbers are little-endian:
 *
 *     engine   "MILESWT1", u32 rank, u32 world, u32 n, group name [n], nonce [32]
 *     trainer  nonce [32], proof [32]
 *     engine   proof [32]
 *     trainer  u8 1
 *   then, any number of times:
 *     engine   u32 n, u64 bytes, a version and n names, each with a final NUL
 *     trainer  n times: u8 0, u64 bytes, XXH3-128 [32 hexadecimal digits], the bytes;
 *              or u8 1, u32 n, a sentence [n], which ends the answer
 *
 * A proof is SHA-256 of: key, "engine" or "trainer", group name, each with a final NUL, the
 * engine's nonce, the trainer's.
 *
 * thread: one owner. */
#ifndef ML_GEN_WEIGHT_LINK_H
#define ML_GEN_WEIGHT_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/sha256.h"
#include "net/tcp.h"

#define ML_WEIGHT_MAGIC "MILESWT1"
enum {
    ML_WEIGHT_NONCE = 32,
    ML_WEIGHT_SUM = 32,         /* digits of a checksum */
    ML_WEIGHT_MAX_GROUP = 255,  /* bytes of a group's name */
    ML_WEIGHT_MAX_ASK = 1 << 28 /* bytes of names in one request */
};

typedef struct ml_weight_link_opts {
    const char *host, *group, *key;
    int port;
    int32_t rank, world; /* as the trainer counts; for its messages */
    double timeout_s;    /* of a wait for the trainer */
} ml_weight_link_opts;

typedef struct ml_weight_link {
    ml_tcp tcp;
} ml_weight_link;

/* ML_EPEER: the trainer is not there, or has another key. */
ml_status ml_weight_link_open(ml_weight_link *out, const ml_weight_link_opts *o,
                              ml_err *err);
void ml_weight_link_close(ml_weight_link *l);

/* Asks for n tensors; their bytes are then taken in the same order.  After an error the link
 * can only be closed. */
ml_status ml_weight_link_ask(ml_weight_link *l, const char *version,
                             const char *const *name, int32_t n, ml_err *err);
/* ML_EFORMAT: it has another size.  ML_EPEER: its bytes do not match their checksum. */
ml_status ml_weight_link_take(ml_weight_link *l, const char *name, void *out, size_t bytes,
                              ml_err *err);

/* What either side proves with. */
void ml_weight_proof(uint8_t out[ML_SHA256_BYTES], const char *key, const char *role,
                     const char *group, const uint8_t engine[ML_WEIGHT_NONCE],
                     const uint8_t trainer[ML_WEIGHT_NONCE]);
ml_status ml_weight_nonce(uint8_t out[ML_WEIGHT_NONCE], ml_err *err);
/* Constant time. */
bool ml_weight_proof_is(const uint8_t *a, const uint8_t *b);

#endif
