#include "base/checksum.h"

#include <lzma.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>

#include "base/background.h"

/* --- BLAKE3 --------------------------------------------------------------- */

/* Chunks of 1 KiB are the leaves of a binary tree; a chunk is a chain of blocks, a parent
 * is one block made of its two children. */

enum { CHUNK = 1024, BLOCK = 64, WORDS = 8, ROUNDS = 7, DEEPEST = 54, BLAKE3_BYTES = 32 };
enum { CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8 };

static const uint32_t start[WORDS] = { 0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                       0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19 };

typedef struct node {
    uint32_t value[WORDS];
} node;

/* The last compression uses another flag if it is the root; so it is deferred. */
typedef struct last_block {
    node chain;
    uint8_t block[BLOCK];
    uint64_t counter;
    uint32_t n, flags;
} last_block;

static uint32_t turn(uint32_t v, int n) {
    return v >> n | v << (32 - n);
}

static void quarter(uint32_t s[16], int a, int b, int c, int d, uint32_t x, uint32_t y) {
    s[a] += s[b] + x;
    s[d] = turn(s[d] ^ s[a], 16);
    s[c] += s[d];
    s[b] = turn(s[b] ^ s[c], 12);
    s[a] += s[b] + y;
    s[d] = turn(s[d] ^ s[a], 8);
    s[c] += s[d];
    s[b] = turn(s[b] ^ s[c], 7);
}

/* Columns, then diagonals. */
static void stir(uint32_t s[16], const uint32_t m[16]) {
    for (int i = 0; i < 4; i++)
        quarter(s, i, 4 + i, 8 + i, 12 + i, m[2 * i], m[2 * i + 1]);
    for (int i = 0; i < 4; i++)
        quarter(s, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[8 + 2 * i],
                m[9 + 2 * i]);
}

static void shuffle(uint32_t m[16]) {
    static const uint8_t from[16] = {
        2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8
    };
    uint32_t old[16];

    memcpy(old, m, sizeof old);
    for (int i = 0; i < 16; i++)
        m[i] = old[from[i]];
}

static node compress_block(const last_block *b) {
    uint32_t m[16], s[16] = { 0 };
    node out;

    memcpy(m, b->block, sizeof m); /* little-endian machines only, like all our targets */
    memcpy(s, b->chain.value, sizeof b->chain.value);
    memcpy(s + 8, start, 4 * sizeof *start);
    s[12] = (uint32_t)b->counter;
    s[13] = (uint32_t)(b->counter >> 32);
    s[14] = b->n;
    s[15] = b->flags;
    for (int r = 0; r < ROUNDS; r++) {
        stir(s, m);
        shuffle(m);
    }
    for (int i = 0; i < WORDS; i++)
        out.value[i] = s[i] ^ s[i + 8];
    return out;
}

static last_block end_of_chunk(const uint8_t *p, size_t n, uint64_t counter) {
    last_block b = { .counter = counter, .flags = CHUNK_START };

    memcpy(b.chain.value, start, sizeof start);
    for (b.n = BLOCK; n > BLOCK; p += BLOCK, n -= BLOCK) {
        memcpy(b.block, p, BLOCK);
        b.chain = compress_block(&b);
        b.flags = 0;
    }
    memset(b.block, 0, BLOCK);
    if (n)
        memcpy(b.block, p, n);
    b.n = (uint32_t)n;
    b.flags |= CHUNK_END;
    return b;
}

static last_block parent_of(const node *left, const node *right) {
    last_block b = { .n = BLOCK, .flags = PARENT };

    memcpy(b.chain.value, start, sizeof start);
    memcpy(b.block, left, sizeof *left);
    memcpy(b.block + sizeof *left, right, sizeof *right);
    return b;
}

/* A stack holds the complete subtrees to the left, one for each bit of the number of
 * chunks; at the end the last chunk is merged with all of them. */
static void blake3(uint8_t out[BLAKE3_BYTES], const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    node stack[DEEPEST], root;
    int depth = 0;
    uint64_t i = 0;
    last_block b;

    for (; n > CHUNK; p += CHUNK, n -= CHUNK) {
        b = end_of_chunk(p, CHUNK, i++);
        root = compress_block(&b);
        for (uint64_t done = i; depth > 0 && !(done & 1); done >>= 1) {
            b = parent_of(&stack[--depth], &root);
            root = compress_block(&b);
        }
        stack[depth++] = root;
    }
    b = end_of_chunk(p, n, i);
    while (depth > 0) {
        root = compress_block(&b);
        b = parent_of(&stack[--depth], &root);
    }
    b.flags |= ROOT;
    root = compress_block(&b);
    memcpy(out, root.value, BLAKE3_BYTES);
}

/* --- CRC ------------------------------------------------------------------ */

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

uint64_t ml_crc64(uint64_t crc, const void *bytes, size_t n) {
    return lzma_crc64(bytes, n, crc);
}

/* A CRC is a polynomial over GF(2): of two strings together, that of the first times
 * x^(8n), plus that of the second.  The reversed bits make bit 63 the constant term. */
#define CRC64_POLYNOMIAL 0xC96C5795D7870F42u

static uint64_t crc64_times(uint64_t a, uint64_t b) {
    uint64_t sum = 0;

    for (int i = 63; i >= 0; i--) {
        sum ^= b & (0 - (a >> i & 1));
        b = b >> 1 ^ (CRC64_POLYNOMIAL & (0 - (b & 1)));
    }
    return sum;
}

uint64_t ml_crc64_join(uint64_t first, uint64_t second, size_t n) {
    uint64_t power = (uint64_t)1 << 55; /* x^8 */

    for (; n; n >>= 1) {
        if (n & 1)
            first = crc64_times(first, power);
        power = crc64_times(power, power);
    }
    return first ^ second;
}

/* Threads compute the parts of a long string. */
enum { SUM_PARTS = 4 };
#define SUM_BYTES ((size_t)1 << 24)

typedef struct sum_part {
    ml_str bytes;
    uint64_t crc;
    ml_background job;
} sum_part;

static ml_status sum_bytes(void *ud, ml_err *err) {
    sum_part *p = ud;

    (void)err;
    p->crc = ml_crc64(0, p->bytes.ptr, p->bytes.len);
    return ML_OK;
}

uint64_t ml_crc64_of(ml_str bytes) {
    size_t step = bytes.len >= SUM_BYTES ? bytes.len / SUM_PARTS + 1 : bytes.len;
    sum_part part[SUM_PARTS] = { 0 };
    uint64_t crc = 0;

    for (int i = 0; i < SUM_PARTS && bytes.len; i++) {
        part[i].bytes = (ml_str){ bytes.ptr, bytes.len < step ? bytes.len : step };
        bytes.ptr += part[i].bytes.len;
        bytes.len -= part[i].bytes.len;
        if (!bytes.len || ml_background_start(&part[i].job, sum_bytes, &part[i], NULL))
            sum_bytes(&part[i], NULL);
    }
    for (int i = 0; i < SUM_PARTS; i++) {
        ml_background_wait(&part[i].job, NULL);
        crc = ml_crc64_join(crc, part[i].crc, part[i].bytes.len);
    }
    return crc;
}

/* --- checksums by name ---------------------------------------------------- */

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
    uint8_t hash[BLAKE3_BYTES];

    blake3(hash, bytes, n);
    for (int i = 0; i < BLAKE3_BYTES; i++)
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
