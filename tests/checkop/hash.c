/* hash.c - tests/checkop/hashes.txt: one line per case, "name hash", in case order. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/checkop/checkop.h"

typedef struct line {
    char name[120];
    uint64_t hash;
    struct line *next;
} line;

struct ck_hashes {
    ml_arena *arena;
    line *first, **end;
};

void ck_hashes_set(ck_hashes *h, const char *name, uint64_t hash) {
    line *l = ML_NEW(h->arena, line, 1);
    snprintf(l->name, sizeof l->name, "%s", name);
    l->hash = hash;
    *h->end = l;
    h->end = &l->next;
}

ck_hashes *ck_hashes_read(ml_arena *a, const char *path) {
    ck_hashes *h = ML_NEW(a, ck_hashes, 1);
    FILE *f = path ? fopen(path, "r") : NULL;
    char name[120];
    uint64_t hash;

    h->arena = a;
    h->end = &h->first;
    while (f && fscanf(f, "%119s %" SCNx64, name, &hash) == 2)
        ck_hashes_set(h, name, hash);
    if (f)
        fclose(f);
    return h;
}

static const line *find(const ck_hashes *h, const char *name) {
    const line *l = h->first;
    while (l && strcmp(l->name, name) != 0)
        l = l->next;
    return l;
}

void ck_hashes_keep(ck_hashes *h, const ck_hashes *from, const char *name) {
    const line *l = find(from, name);
    if (l)
        ck_hashes_set(h, name, l->hash);
}

void ck_hashes_check(ck_env *e, const ck_hashes *h, const char *name, uint64_t hash) {
    const line *l = find(h, name);
    if (!l)
        ck_fail(e, "no committed hash; checkop --write-hashes adds it");
    else if (l->hash != hash)
        ck_fail(e, "hash %016" PRIx64 " instead of the committed %016" PRIx64, hash,
                l->hash);
}

bool ck_hashes_write(const ck_hashes *h, const char *path) {
    FILE *f = fopen(path, "w");
    bool ok = f != NULL;
    for (const line *l = h->first; ok && l; l = l->next)
        ok = fprintf(f, "%s %016" PRIx64 "\n", l->name, l->hash) > 0;
    return f && fclose(f) == 0 && ok;
}
