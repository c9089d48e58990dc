#include "base/sha256.h"

#include <openssl/sha.h>

void ml_sha256(uint8_t out[ML_SHA256_BYTES], ml_str data) {
    SHA256((const unsigned char *)data.ptr, data.len, out);
}
