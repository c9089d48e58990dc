/* pq_meta.h - the metadata of a parquet file: schema, row groups, page headers.
 *
 * The schema is a tree of nodes in preorder.  A leaf is a column; its values in a row group
 * are a column chunk, a sequence of pages.  Definition levels say how many of the optional
 * and repeated nodes on the path to a leaf are present, repetition levels at which repeated
 * node an entry continues a list: Dremel's encoding of nested records.
 *
 * thread: immutable after ml_pq_meta_read. */
#ifndef ML_IO_PARQUET_PQ_META_H
#define ML_IO_PARQUET_PQ_META_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"

typedef enum ml_pq_physical {
    ML_PQ_BOOLEAN,
    ML_PQ_INT32,
    ML_PQ_INT64,
    ML_PQ_INT96,
    ML_PQ_FLOAT,
    ML_PQ_DOUBLE,
    ML_PQ_BYTE_ARRAY,
    ML_PQ_FIXED, /* FIXED_LEN_BYTE_ARRAY */
} ml_pq_physical;

/* What a leaf's values mean, where that changes their JSON. */
typedef enum ml_pq_logical {
    ML_PQ_PLAIN, /* as the physical type says; byte arrays are binary */
    ML_PQ_TEXT,
    ML_PQ_UNSIGNED,
    ML_PQ_DATE,
    ML_PQ_DECIMAL,
    ML_PQ_FLOAT16,
    ML_PQ_UUID,
} ml_pq_logical;

typedef enum ml_pq_group { ML_PQ_STRUCT, ML_PQ_LIST, ML_PQ_MAP } ml_pq_group;

typedef struct ml_pq_node {
    ml_str name;              /* in the arena */
    int32_t parent;           /* -1: the root */
    int32_t end;              /* the node after its subtree; end == index + 1: a leaf */
    int32_t leaf, leaf_end;   /* the leaves at and below it */
    bool optional, repeated;  /* neither: required */
    uint8_t max_def, max_rep; /* levels at which the node is present */
    ml_pq_group group;        /* of an inner node */
    int32_t element;          /* repeated: the node that is an element of the list */
    ml_pq_physical physical;  /* leaves from here on */
    ml_pq_logical logical;
    int32_t width;     /* bytes of a value; 0: BYTE_ARRAY */
    int32_t scale;     /* of a decimal */
    int32_t bit_width; /* of an annotated integer; 0: the physical type's */
} ml_pq_node;

typedef enum ml_pq_codec {
    ML_PQ_UNCOMPRESSED,
    ML_PQ_SNAPPY,
    ML_PQ_GZIP,
    ML_PQ_LZO,
    ML_PQ_BROTLI,
    ML_PQ_LZ4_HADOOP, /* deprecated: LZ4 blocks, each after its two lengths */
    ML_PQ_ZSTD,
    ML_PQ_LZ4_RAW,
} ml_pq_codec;

typedef struct ml_pq_chunk_meta {
    size_t offset;   /* of its first page's header */
    int64_t n_entry; /* values including nulls and empty lists */
    int32_t codec;
} ml_pq_chunk_meta;

typedef struct ml_pq_row_group {
    int64_t first_row, n_row;
    ml_pq_chunk_meta *chunk; /* [n_leaf] */
} ml_pq_row_group;

typedef struct ml_pq_meta {
    ml_pq_node *node; /* [n_node]; node 0 is the root */
    int32_t n_node;
    int32_t *leaf; /* [n_leaf] the nodes of the leaves */
    int32_t n_leaf;
    ml_pq_row_group *group; /* [n_group] */
    int32_t n_group;
    int64_t n_row;
    size_t data_end; /* offset of the footer: pages end before it */
} ml_pq_meta;

/* Reads the footer.  A message names the file and the byte offset or the column. */
ml_status ml_pq_meta_read(ml_pq_meta *out, const ml_file *file, ml_arena *a, ml_err *err);

/* "metadata.deep.x": the path of a leaf, for messages. */
void ml_pq_leaf_name(const ml_pq_meta *m, int32_t leaf, char out[256]);

typedef enum ml_pq_encoding {
    ML_PQ_ENC_PLAIN = 0,
    ML_PQ_ENC_PLAIN_DICTIONARY = 2,
    ML_PQ_ENC_RLE = 3,
    ML_PQ_ENC_BIT_PACKED = 4,
    ML_PQ_ENC_DELTA_BINARY_PACKED = 5,
    ML_PQ_ENC_DELTA_LENGTH_BYTE_ARRAY = 6,
    ML_PQ_ENC_DELTA_BYTE_ARRAY = 7,
    ML_PQ_ENC_RLE_DICTIONARY = 8,
    ML_PQ_ENC_BYTE_STREAM_SPLIT = 9,
} ml_pq_encoding;

typedef enum ml_pq_page_type {
    ML_PQ_PAGE_DATA = 0,
    ML_PQ_PAGE_INDEX = 1,
    ML_PQ_PAGE_DICTIONARY = 2,
    ML_PQ_PAGE_DATA_V2 = 3,
} ml_pq_page_type;

typedef struct ml_pq_page_head {
    size_t data, end; /* file offsets of the page's bytes, as stored */
    int32_t type;     /* ml_pq_page_type */
    int32_t n_byte;   /* when uncompressed */
    int32_t n_entry, encoding;
    int32_t def_encoding, rep_encoding;  /* data page v1 */
    int32_t n_row, def_bytes, rep_bytes; /* v2 */
    bool compressed;
    bool has_crc;
    uint32_t crc;
} ml_pq_page_head;

/* Limits on what a header may claim; what is larger is refused before memory is allocated. */
enum { ML_PQ_PAGE_BYTES = 1 << 30, ML_PQ_PAGE_ENTRIES = 1 << 26 };

/* Reads the page header at the offset.  `what` begins messages. */
ml_status ml_pq_page_head_read(ml_pq_page_head *out, const ml_file *file, size_t offset,
                               size_t data_end, const char *what, ml_err *err);

#endif
