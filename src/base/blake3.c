#include "base/blake3.h"

#include <string.h>

/* Chunks of 1 KiB are the leaves of a binary tree; a chunk is a chain of blocks, a parent
 * is one block made of its two children. */

enum { CHUNK = 1024, BLOCK = 64, WORDS = 8, ROUNDS = 7, DEEPEST = 54 };
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

static node compress(const last_block *b) {
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
        b.chain = compress(&b);
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
void ml_blake3(uint8_t out[ML_BLAKE3_BYTES], const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    node stack[DEEPEST], root;
    int depth = 0;
    uint64_t i = 0;
    last_block b;

    for (; n > CHUNK; p += CHUNK, n -= CHUNK) {
        b = end_of_chunk(p, CHUNK, i++);
        root = compress(&b);
        for (uint64_t done = i; depth > 0 && !(done & 1); done >>= 1) {
            b = parent_of(&stack[--depth], &root);
            root = compress(&b);
        }
        stack[depth++] = root;
    }
    b = end_of_chunk(p, n, i);
    while (depth > 0) {
        root = compress(&b);
        b = parent_of(&stack[--depth], &root);
    }
    b.flags |= ROOT;
    root = compress(&b);
    memcpy(out, root.value, ML_BLAKE3_BYTES);
}
