#include "base/checksum.h"

#include <stdint.h>
#include <stdio.h>
#include <xxhash.h>
#include <zlib.h>

#include "base/blake3.h"

const char *const ml_checksum_name[ML_N_CHECKSUM + 1] = { "xxh3-128", "blake3", "adler32" };

bool ml_checksum_find(ml_checksum *out, ml_str name) {
    for (int i = 0; i < ML_N_CHECKSUM; i++)
        if (ml_str_is(name, ml_checksum_name[i])) {
            *out = (ml_checksum)i;
            return true;
        }
    return false;
}

static void write_blake3(char *out, const void *bytes, size_t n) {
    uint8_t hash[ML_BLAKE3_BYTES];

    ml_blake3(hash, bytes, n);
    for (int i = 0; i < ML_BLAKE3_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

void ml_checksum_write(char out[ML_CHECKSUM_TEXT], ml_checksum how, const void *bytes,
                       size_t n) {
    XXH128_hash_t h;

    switch (how) {
    case ML_CHECKSUM_BLAKE3: write_blake3(out, bytes, n); return;
    case ML_CHECKSUM_ADLER32:
        snprintf(out, ML_CHECKSUM_TEXT, "%08x", (unsigned)adler32_z(1, bytes, n));
        return;
    case ML_CHECKSUM_XXH3:
    case ML_N_CHECKSUM: break;
    }
    h = XXH3_128bits(bytes, n);
    snprintf(out, ML_CHECKSUM_TEXT, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
}
