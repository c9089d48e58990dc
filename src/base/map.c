#include "base/map.h"

#include <string.h>

struct ml_map_slot {
    ml_str key;
    uint64_t hash; /* 0: the slot is free */
    int64_t value;
};

/* Eight bytes per iteration: a tokenizer looks up every piece of every text. */
static uint64_t hash_of(ml_str key) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ key.len;
    const char *p = key.ptr;
    size_t left = key.len;

    while (left) {
        uint64_t word = 0;
        size_t n = left < sizeof word ? left : sizeof word;
        memcpy(&word, p, n);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        p += n;
        left -= n;
    }
    h *= 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    return h ? h : 1;
}

/* The key's slot, or the free slot for it. */
static ml_map_slot *place(const ml_map *m, ml_str key, uint64_t hash) {
    uint64_t mask = (uint64_t)m->n_slot - 1;
    for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
        ml_map_slot *s = &m->slot[i];
        if (!s->hash || (s->hash == hash && ml_str_eq(s->key, key)))
            return s;
    }
}

static void resize(ml_map *m, int64_t n_slot) {
    ml_map_slot *old = m->slot;
    int64_t n_old = m->n_slot;

    /* The old table stays in the arena: all old tables together are no larger than the
     * current one. */
    m->slot = ML_NEW(m->arena, ml_map_slot, n_slot);
    m->n_slot = n_slot;
    for (int64_t i = 0; i < n_old; i++)
        if (old[i].hash)
            *place(m, old[i].key, old[i].hash) = old[i];
}

void ml_map_init(ml_map *m, ml_arena *a, int64_t n_expected) {
    int64_t n_slot = 8;

    while (n_slot / 2 < n_expected)
        n_slot *= 2;
    *m = (ml_map){ .arena = a };
    resize(m, n_slot);
}

bool ml_map_add(ml_map *m, ml_str key, int64_t value) {
    uint64_t hash = hash_of(key);
    ml_map_slot *s;

    if (m->n >= m->n_slot / 2)
        resize(m, m->n_slot * 2);
    s = place(m, key, hash);
    if (s->hash)
        return false;
    *s = (ml_map_slot){ key, hash, value };
    m->n++;
    return true;
}

int64_t ml_map_get(const ml_map *m, ml_str key, int64_t absent) {
    const ml_map_slot *s;

    if (!m->n)
        return absent;
    s = place(m, key, hash_of(key));
    return s->hash ? s->value : absent;
}
