/* pq_page.h - a page of a column chunk, decoded.
 *
 * A page has entries: a value, a null, or the place of an empty list, each with its levels.
 * Values are dense: an entry has one if its definition level is the leaf's maximum.  Byte
 * arrays are views of the page's memory, or of the mapped file if it is not compressed.
 *
 * thread: immutable after decoding. */
#ifndef ML_IO_PARQUET_PQ_PAGE_H
#define ML_IO_PARQUET_PQ_PAGE_H

#include "base/file.h"
#include "io/parquet/pq_meta.h"

struct ml_zst_decoder;

typedef struct ml_pq_page {
    int32_t n_entry, n_value;
    int32_t n_row;            /* rows that begin in it */
    int64_t first_row;        /* in the row group */
    const uint8_t *rep, *def; /* [n_entry]; NULL: all 0 */
    const int32_t *row;       /* [n_row] first entry of each row; NULL: entry = row */
    const int32_t *value_at;  /* [n_entry] values before an entry; NULL: as many */
    const uint8_t *fixed;     /* values of a fixed width, little-endian */
    const ml_str *bytes;      /* values of type BYTE_ARRAY */
    const uint32_t *index;    /* instead of both: positions in the dictionary */
    struct ml_pq_page *dictionary;

    size_t offset;    /* in the file, of its header */
    size_t data, end; /* in the file, of its bytes */
    size_t memory;    /* bytes allocated or mapped, without the dictionary's */
    void *mem[8];
    int n_mem;

    /* Of the cache. */
    int n_user;                       /* readers, and data pages that use a dictionary */
    struct ml_pq_page *newer, *older; /* in order of use, while n_user is 0 */
    struct ml_pq_chunk *chunk;
    int32_t number; /* in the chunk; -1: its dictionary */
} ml_pq_page;

/* What decoding needs to know. */
typedef struct ml_pq_source {
    const ml_file *file;
    const ml_pq_node *leaf;
    const char *what; /* begins messages: file, row group and column */
    int codec;
    struct ml_zst_decoder **zstd;
} ml_pq_source;

/* A data page that refers to a dictionary needs it; the caller counts its use. */
ml_status ml_pq_page_decode(ml_pq_page **out, const ml_pq_source *from,
                            const ml_pq_page_head *head, size_t offset,
                            ml_pq_page *dictionary, ml_err *err);
void ml_pq_page_free(ml_pq_page *p); /* not its dictionary */

static inline bool ml_pq_uses_dictionary(const ml_pq_page_head *h) {
    return h->encoding == ML_PQ_ENC_PLAIN_DICTIONARY ||
           h->encoding == ML_PQ_ENC_RLE_DICTIONARY;
}

/* The value's bytes; k < n_value. */
static inline ml_str ml_pq_value(const ml_pq_page *p, int32_t width, int32_t k) {
    if (p->index) {
        k = (int32_t)p->index[k];
        p = p->dictionary;
    }
    return width      ? (ml_str){ (const char *)p->fixed + (size_t)k * (size_t)width,
                                  (size_t)width }
           : p->bytes ? p->bytes[k]
                      : (ml_str){ "", 0 };
}

#endif
