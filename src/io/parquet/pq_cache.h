/* pq_cache.h - the pages of a parquet file that were decoded last.
 *
 * A column chunk's pages are found when a row of them is first read: their headers follow
 * each other in the file.  Decoded pages stay in memory up to a budget, which several files
 * share; the page that was not used for the longest time is dropped first.  A page in use
 * stays, so that memory is the budget and one page for each column of each reader.
 *
 * thread: any; calls on files that share a cache take turns, also while a page is decoded. */
#ifndef ML_IO_PARQUET_PQ_CACHE_H
#define ML_IO_PARQUET_PQ_CACHE_H

#include <pthread.h>

#include "io/parquet/pq_page.h"

typedef struct ml_pq_cache {
    pthread_mutex_t lock;
    size_t used, max;            /* bytes of decoded pages */
    ml_pq_page *newest, *oldest; /* pages without a user */
    struct ml_zst_decoder *zstd;
} ml_pq_cache;

void ml_pq_cache_init(ml_pq_cache *c, size_t max_bytes);
void ml_pq_cache_release(ml_pq_cache *c); /* after all its files */

typedef struct ml_pq_place {
    size_t offset; /* of the page's header */
    int64_t first_row;
    ml_pq_page *page; /* NULL: not decoded now */
} ml_pq_place;

/* A column chunk, with the pages found so far. */
typedef struct ml_pq_chunk {
    ml_pq_place *place; /* [n_place] */
    int32_t n_place, cap;
    size_t next; /* offset of the first header not yet read; 0: nothing is read */
    int64_t n_row, n_entry; /* of the pages found */
    size_t dictionary_at;   /* offset of its header; 0: none found */
    ml_pq_page *dictionary;
    const ml_file *file;
} ml_pq_chunk;

/* Where a chunk is: what messages need, and what decoding does. */
typedef struct ml_pq_where {
    ml_pq_cache *cache;
    const ml_file *file;
    const ml_pq_meta *meta;
    int32_t group, leaf;
} ml_pq_where;

/* The page in which row `row` of the row group begins.  The caller's use of it ends with
 * ml_pq_page_done. */
ml_status ml_pq_page_of_row(ml_pq_page **out, const ml_pq_where *at, ml_pq_chunk *c,
                            int64_t row, ml_err *err);
/* Page `number` of the chunk; *out is NULL after the last page. */
ml_status ml_pq_page_number(ml_pq_page **out, const ml_pq_where *at, ml_pq_chunk *c,
                            int32_t number, ml_err *err);
void ml_pq_page_done(ml_pq_cache *cache, ml_pq_page *p); /* NULL is allowed */

/* Drops the chunk's pages, which have no user, and what is known of them. */
void ml_pq_chunk_release(ml_pq_cache *cache, ml_pq_chunk *c);

#endif
