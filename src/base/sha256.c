#define OPENSSL_SUPPRESS_DEPRECATED /* SHA256() allocates, and may fail without a word */

#include "base/sha256.h"

#include <openssl/sha.h>

void ml_sha256(uint8_t out[ML_SHA256_BYTES], ml_str data) {
    SHA256_CTX c;

    SHA256_Init(&c);
    SHA256_Update(&c, data.ptr, data.len);
    SHA256_Final(out, &c);
}
