/* sha256.h - SHA-256 (FIPS 180-4).
 *
 * thread: any. */
#ifndef ML_BASE_SHA256_H
#define ML_BASE_SHA256_H

#include <stdint.h>

#include "base/str.h"

enum { ML_SHA256_BYTES = 32 };

void ml_sha256(uint8_t out[ML_SHA256_BYTES], ml_str data);

#endif
