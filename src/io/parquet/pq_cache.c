#include "io/parquet/pq_cache.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/bug.h"
#include "io/parquet/pq_codec.h"
#include "io/zst.h"

void ml_pq_cache_init(ml_pq_cache *c, size_t max_bytes) {
    *c = (ml_pq_cache){ .max = max_bytes };
    pthread_mutex_init(&c->lock, NULL);
}

void ml_pq_cache_release(ml_pq_cache *c) {
    ML_BUG_IF(c->newest);
    ml_zst_decoder_free(c->zstd);
    pthread_mutex_destroy(&c->lock);
}

/* --- pages in memory, under the lock ------------------------------------------------ */

static void unlink_page(ml_pq_cache *c, ml_pq_page *p) {
    *(p->newer ? &p->newer->older : &c->newest) = p->older;
    *(p->older ? &p->older->newer : &c->oldest) = p->newer;
    p->newer = p->older = NULL;
}

static void link_page(ml_pq_cache *c, ml_pq_page *p) {
    p->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = p;
    c->newest = p;
}

static void use(ml_pq_cache *c, ml_pq_page *p) {
    if (p->n_user++ == 0)
        unlink_page(c, p);
}

static void end_use(ml_pq_cache *c, ml_pq_page *p) {
    ML_BUG_IF(p->n_user < 1);
    if (--p->n_user == 0)
        link_page(c, p);
}

/* The page has no user. */
static void drop(ml_pq_cache *c, ml_pq_page *p) {
    unlink_page(c, p);
    if (p->number < 0)
        p->chunk->dictionary = NULL;
    else
        p->chunk->place[p->number].page = NULL;
    if (p->dictionary)
        end_use(c, p->dictionary);
    c->used -= p->memory;
    ml_file_forget(p->chunk->file, p->data, p->end - p->data);
    ml_pq_page_free(p);
}

static void make_room(ml_pq_cache *c) {
    while (c->used > c->max && c->oldest)
        drop(c, c->oldest);
}

void ml_pq_chunk_release(ml_pq_cache *cache, ml_pq_chunk *c) {
    pthread_mutex_lock(&cache->lock);
    for (int32_t i = 0; i < c->n_place; i++)
        if (c->place[i].page)
            drop(cache, c->place[i].page);
    if (c->dictionary)
        drop(cache, c->dictionary);
    pthread_mutex_unlock(&cache->lock);
    free(c->place);
    *c = (ml_pq_chunk){ 0 };
}

/* --- decoding ------------------------------------------------------------------------ */

enum { WHAT = 1000 };

static void say_where(const ml_pq_where *at, char out[WHAT]) {
    char leaf[256];

    ml_pq_leaf_name(at->meta, at->leaf, leaf);
    snprintf(out, WHAT, "%s: column %s of row group %d", at->file->path, leaf, at->group);
}

static const ml_pq_chunk_meta *meta_of(const ml_pq_where *at) {
    return &at->meta->group[at->group].chunk[at->leaf];
}

static ml_status read_head(ml_pq_page_head *h, const ml_pq_where *at, size_t offset,
                           ml_err *err) {
    char what[WHAT];

    say_where(at, what);
    return ml_pq_page_head_read(h, at->file, offset, at->meta->data_end, what, err);
}

/* Decodes a page, which then has one user. */
static ml_status decode(ml_pq_page **out, const ml_pq_where *at, ml_pq_chunk *c,
                        const ml_pq_page_head *h, size_t offset, int32_t number,
                        ml_err *err) {
    char what[WHAT];
    ml_pq_source from = { .file = at->file,
                          .leaf = &at->meta->node[at->meta->leaf[at->leaf]],
                          .what = what,
                          .codec = meta_of(at)->codec,
                          .zstd = &at->cache->zstd };
    ml_status st;

    say_where(at, what);
    if (!ml_pq_codec_name(from.codec))
        return ml_fail(err, ML_EUNSUP,
                       "%s: the compression codec %d is not supported; expected snappy, "
                       "gzip, brotli, zstd, lz4 or none",
                       what, from.codec);
    st = ml_pq_page_decode(out, &from, h, offset, c->dictionary, err);
    if (st)
        return st;
    (*out)->chunk = c;
    (*out)->number = number;
    (*out)->n_user = 1;
    at->cache->used += (*out)->memory;
    if ((*out)->dictionary)
        use(at->cache, (*out)->dictionary);
    if (from.codec != ML_PQ_UNCOMPRESSED)
        ml_file_forget(at->file, h->data, h->end - h->data);
    return ML_OK;
}

/* The dictionary, in memory and used by the caller; *out is NULL if there is none. */
static ml_status load_dictionary(ml_pq_page **out, const ml_pq_where *at, ml_pq_chunk *c,
                                 ml_err *err) {
    ml_pq_page_head h;
    ml_status st;

    *out = c->dictionary;
    if (c->dictionary)
        use(at->cache, c->dictionary);
    if (c->dictionary || !c->dictionary_at)
        return ML_OK;
    st = read_head(&h, at, c->dictionary_at, err);
    if (!st)
        st = decode(out, at, c, &h, c->dictionary_at, -1, err);
    c->dictionary = st ? NULL : *out;
    return st;
}

static ml_status load(ml_pq_page **out, const ml_pq_where *at, ml_pq_chunk *c,
                      int32_t number, ml_err *err) {
    ml_pq_place *place = &c->place[number];
    ml_pq_page *dictionary = NULL;
    ml_pq_page_head h;
    ml_status st;

    *out = place->page;
    if (place->page) {
        use(at->cache, place->page);
        return ML_OK;
    }
    st = read_head(&h, at, place->offset, err);
    if (!st && ml_pq_uses_dictionary(&h))
        st = load_dictionary(&dictionary, at, c, err);
    if (!st)
        st = decode(out, at, c, &h, place->offset, number, err);
    if (dictionary)
        end_use(at->cache, dictionary);
    if (!st)
        (*out)->first_row = place->first_row;
    place->page = st ? NULL : *out;
    make_room(at->cache);
    return st;
}

/* --- finding pages -------------------------------------------------------------------- */

static ml_status add_place(const ml_pq_where *at, ml_pq_chunk *c, size_t offset,
                           ml_err *err) {
    int32_t cap = c->cap ? c->cap * 2 : 4;
    ml_pq_place *p;

    if (c->n_place == c->cap) {
        p = cap > 0 ? realloc(c->place, (size_t)cap * sizeof *p) : NULL;
        if (!p)
            return ml_fail(err, ML_ENOMEM, "%s: out of memory for an index of %d pages",
                           at->file->path, cap);
        c->place = p;
        c->cap = cap;
    }
    c->place[c->n_place++] = (ml_pq_place){ .offset = offset, .first_row = c->n_row };
    return ML_OK;
}

/* The number of rows that begin in the last page found: without lists it is in the header,
 * else, except in pages of version 2, in the levels. */
static ml_status count_rows(int64_t *out, const ml_pq_where *at, ml_pq_chunk *c,
                            const ml_pq_page_head *h, ml_err *err) {
    const ml_pq_node *leaf = &at->meta->node[at->meta->leaf[at->leaf]];
    ml_pq_page *p;
    ml_status st;

    *out = h->n_entry;
    if (leaf->max_rep == 0)
        return ML_OK;
    *out = h->n_row;
    if (h->type == ML_PQ_PAGE_DATA_V2)
        return ML_OK;
    st = load(&p, at, c, c->n_place - 1, err);
    if (st)
        return st;
    *out = p->n_row;
    end_use(at->cache, p);
    return ML_OK;
}

/* Fails if the chunk has n_entry values so far, in n_row rows, and may not. */
static ml_status check_totals(const ml_pq_where *at, int64_t n_entry, int64_t n_row,
                              ml_err *err) {
    int64_t all = meta_of(at)->n_entry, rows = at->meta->group[at->group].n_row;
    char what[WHAT];

    if (n_entry < all || (n_entry == all && n_row == rows))
        return ML_OK;
    say_where(at, what);
    return ml_fail(err, ML_EFORMAT,
                   "%s: its pages have %lld values or more, in %lld rows; expected %lld in "
                   "%lld",
                   what, (long long)n_entry, (long long)n_row, (long long)all,
                   (long long)rows);
}

static ml_status find_data_page(const ml_pq_where *at, ml_pq_chunk *c,
                                const ml_pq_page_head *h, ml_err *err) {
    int64_t n_entry = c->n_entry + h->n_entry, n_row;
    ml_status st = n_entry > meta_of(at)->n_entry ? check_totals(at, n_entry, c->n_row, err)
                                                  : add_place(at, c, c->next, err);

    if (st)
        return st;
    st = count_rows(&n_row, at, c, h, err);
    if (!st)
        st = check_totals(at, n_entry, c->n_row + n_row, err);
    if (st) {
        if (c->place[c->n_place - 1].page)
            drop(at->cache, c->place[c->n_place - 1].page);
        c->n_place--;
        return st;
    }
    c->n_row += n_row;
    c->n_entry = n_entry;
    c->next = h->end;
    return ML_OK;
}

/* Reads the header of the next page; *found is false when there are no more pages. */
static ml_status find_page(bool *found, const ml_pq_where *at, ml_pq_chunk *c,
                           ml_err *err) {
    ml_pq_page_head h;
    ml_status st;

    c->file = at->file;
    if (!c->next)
        c->next = meta_of(at)->offset;
    *found = c->n_entry < meta_of(at)->n_entry;
    if (!*found)
        return ML_OK;
    st = read_head(&h, at, c->next, err);
    if (st)
        return st;
    if (h.type == ML_PQ_PAGE_DATA || h.type == ML_PQ_PAGE_DATA_V2)
        return find_data_page(at, c, &h, err);
    if (h.type == ML_PQ_PAGE_DICTIONARY && !c->n_place && !c->dictionary_at)
        c->dictionary_at = c->next;
    c->next = h.end;
    return ML_OK;
}

static ml_status find_row(int32_t *out, const ml_pq_where *at, ml_pq_chunk *c, int64_t row,
                          ml_err *err) {
    int32_t low = 0, high;
    bool found = true;
    ml_status st;

    while (c->n_row <= row) {
        st = find_page(&found, at, c, err);
        if (st)
            return st;
        if (!found)
            return ml_fail(err, ML_EFORMAT, "%s: row group %d has no row %lld",
                           at->file->path, at->group, (long long)row);
    }
    for (high = c->n_place; high - low > 1;) {
        int32_t middle = low + (high - low) / 2;
        *(c->place[middle].first_row <= row ? &low : &high) = middle;
    }
    *out = low;
    return ML_OK;
}

ml_status ml_pq_page_of_row(ml_pq_page **out, const ml_pq_where *at, ml_pq_chunk *c,
                            int64_t row, ml_err *err) {
    int32_t number = 0;
    ml_status st;

    pthread_mutex_lock(&at->cache->lock);
    st = find_row(&number, at, c, row, err);
    if (!st)
        st = load(out, at, c, number, err);
    pthread_mutex_unlock(&at->cache->lock);
    return st;
}

ml_status ml_pq_page_number(ml_pq_page **out, const ml_pq_where *at, ml_pq_chunk *c,
                            int32_t number, ml_err *err) {
    bool found = true;
    ml_status st = ML_OK;

    *out = NULL;
    pthread_mutex_lock(&at->cache->lock);
    while (!st && found && c->n_place <= number)
        st = find_page(&found, at, c, err);
    if (!st && c->n_place > number)
        st = load(out, at, c, number, err);
    pthread_mutex_unlock(&at->cache->lock);
    return st;
}

void ml_pq_page_done(ml_pq_cache *cache, ml_pq_page *p) {
    if (!p)
        return;
    pthread_mutex_lock(&cache->lock);
    end_use(cache, p);
    make_room(cache);
    pthread_mutex_unlock(&cache->lock);
}
