#include "base/crc32c.h"

uint32_t ml_crc32c(const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    uint32_t crc = ~0u;

    for (; n; n--, p++) {
        crc ^= *p;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
    }
    return ~crc;
}
