#include "io/parquet/pq_page.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "io/parquet/pq_codec.h"
#include "io/parquet/pq_encoding.h"

typedef struct decoder {
    const ml_pq_source *from;
    const ml_pq_page_head *head;
    ml_pq_page *page;
    const uint8_t *p, *end; /* what is not yet decoded */
    ml_err *err;
} decoder;

static ml_status fail(const decoder *d, const char *why) {
    return ml_fail(d->err, ML_EFORMAT, "%s: page at byte %zu: %s", d->from->what,
                   d->page->offset, why);
}

static void own(ml_pq_page *p, void *mem, size_t n) {
    p->mem[p->n_mem++] = mem;
    p->memory += n;
}

static ml_status take(const decoder *d, void *out, size_t n, size_t size) {
    void *mem = malloc(n * size + 1); /* n is at most 2^30, size 2^20 */

    *(void **)out = mem;
    if (!mem)
        return ml_fail(d->err, ML_ENOMEM,
                       "%s: page at byte %zu: out of memory for %zu values of %zu bytes",
                       d->from->what, d->page->offset, n, size);
    own(d->page, mem, n * size);
    return ML_OK;
}

/* --- the bytes --------------------------------------------------------------------- */

static ml_status check_crc(const decoder *d, ml_str stored) {
    const ml_pq_page_head *h = d->head;

    if (h->has_crc &&
        crc32(crc32(0, NULL, 0), (const Bytef *)stored.ptr, (uInt)stored.len) != h->crc)
        return fail(d, "its checksum differs from the one in its header: the file is "
                       "damaged");
    return ML_OK;
}

/* Decompresses what follows the levels of a v2 page, or all of another page. */
static ml_status unpack(decoder *d, ml_str stored) {
    size_t skip = (size_t)d->head->rep_bytes + (size_t)d->head->def_bytes;
    size_t n = (size_t)d->head->n_byte;
    ml_str packed = { stored.ptr + skip, stored.len - skip };
    uint8_t *plain;
    ml_status st;

    if (!ml_pq_codec_can_hold(d->from->codec, n - skip, packed.len))
        return ml_fail(d->err, ML_EFORMAT,
                       "%s: page at byte %zu: %zu bytes of %s data cannot hold the %zu "
                       "bytes that the header says",
                       d->from->what, d->page->offset, packed.len,
                       ml_pq_codec_name(d->from->codec), n - skip);
    st = take(d, &plain, n, 1);
    if (st)
        return st;
    memcpy(plain, stored.ptr, skip);
    if (n > skip || packed.len)
        st = ml_pq_unpack(d->from->codec, d->from->zstd, plain + skip, n - skip, packed,
                          d->err);
    if (st)
        ml_err_prefix(d->err, "%s: page at byte %zu", d->from->what, d->page->offset);
    d->p = plain;
    d->end = plain + n;
    return st;
}

static ml_status load(decoder *d) {
    const ml_pq_page_head *h = d->head;
    ml_str stored = { d->from->file->bytes.ptr + h->data, h->end - h->data };
    ml_status st = check_crc(d, stored);

    if (st)
        return st;
    if (d->from->codec != ML_PQ_UNCOMPRESSED && h->compressed)
        return unpack(d, stored);
    if (stored.len != (size_t)h->n_byte)
        return fail(d, "it is not compressed, but its two sizes differ");
    d->p = (const uint8_t *)stored.ptr;
    d->end = d->p + stored.len;
    return ML_OK;
}

/* --- levels ------------------------------------------------------------------------ */

static int bits_of(unsigned max) {
    int n = 0;
    for (; max; max >>= 1)
        n++;
    return n;
}

/* v1: runs after their length; v2: the header has the length. */
static bool level_runs(decoder *d, int32_t v2_bytes, int width, uint8_t *out) {
    uint32_t n = (uint32_t)v2_bytes;
    const uint8_t *end;

    if (d->head->type == ML_PQ_PAGE_DATA) {
        if (d->end - d->p < 4)
            return false;
        n = d->p[0] | (uint32_t)d->p[1] << 8 | (uint32_t)d->p[2] << 16 |
            (uint32_t)d->p[3] << 24;
        d->p += 4;
    }
    if (n > (size_t)(d->end - d->p))
        return false;
    end = d->p + n;
    if (!ml_pq_hybrid_u8(&d->p, end, width, out, d->page->n_entry))
        return false;
    d->p = end;
    return true;
}

static ml_status read_levels(decoder *d, const uint8_t **out, uint8_t max, int encoding,
                             int32_t v2_bytes, const char *failed) {
    int32_t n = d->page->n_entry;
    unsigned most = 0;
    uint8_t *level;
    ml_status st;
    bool ok;

    if (max == 0) {
        d->p += v2_bytes;
        return ML_OK;
    }
    st = take(d, &level, (size_t)n, 1);
    if (st)
        return st;
    ok = d->head->type == ML_PQ_PAGE_DATA && encoding == ML_PQ_ENC_BIT_PACKED
             ? ml_pq_bit_packed(&d->p, d->end, bits_of(max), level, n)
             : level_runs(d, v2_bytes, bits_of(max), level);
    if (!ok)
        return fail(d, failed);
    for (int32_t i = 0; i < n; i++)
        most = level[i] > most ? level[i] : most;
    *out = level;
    return most > max ? fail(d, "a level is larger than the schema allows") : ML_OK;
}

static ml_status index_values(decoder *d) {
    ml_pq_page *p = d->page;
    uint8_t max = d->from->leaf->max_def;
    int32_t n = 0, *at;
    ml_status st;

    p->n_value = p->n_entry;
    if (!p->def)
        return ML_OK;
    for (int32_t i = 0; i < p->n_entry; i++)
        n += p->def[i] == max;
    p->n_value = n;
    if (n == p->n_entry)
        return ML_OK;
    st = take(d, &at, (size_t)p->n_entry, sizeof *at);
    if (st)
        return st;
    for (int32_t i = 0, k = 0; i < p->n_entry; i++) {
        at[i] = k;
        k += p->def[i] == max;
    }
    p->value_at = at;
    return ML_OK;
}

static ml_status index_rows(decoder *d) {
    ml_pq_page *p = d->page;
    int32_t n = 0, *row;
    ml_status st;

    p->n_row = p->n_entry;
    if (!p->rep)
        return ML_OK;
    for (int32_t i = 0; i < p->n_entry; i++)
        n += p->rep[i] == 0;
    p->n_row = n;
    st = take(d, &row, (size_t)n, sizeof *row);
    if (st)
        return st;
    p->row = row;
    for (int32_t i = 0, k = 0; i < p->n_entry; i++)
        if (p->rep[i] == 0)
            row[k++] = i;
    return ML_OK;
}

static ml_status read_all_levels(decoder *d) {
    const ml_pq_page_head *h = d->head;
    ml_status st = read_levels(d, &d->page->rep, d->from->leaf->max_rep, h->rep_encoding,
                               h->rep_bytes, "its repetition levels are damaged");

    if (!st)
        st = read_levels(d, &d->page->def, d->from->leaf->max_def, h->def_encoding,
                         h->def_bytes, "its definition levels are damaged");
    if (!st)
        st = index_values(d);
    if (!st)
        st = index_rows(d);
    if (!st && h->type == ML_PQ_PAGE_DATA_V2 && d->page->n_row != h->n_row)
        st = fail(d, "its repetition levels begin another number of rows than its header "
                     "says");
    return st;
}

/* --- values ------------------------------------------------------------------------- */

#define DAMAGED "its values are damaged or incomplete"

static ml_status read_plain(decoder *d) {
    ml_pq_page *p = d->page;
    const ml_pq_node *leaf = d->from->leaf;
    ml_str *bytes;
    uint8_t *bits;
    ml_status st;

    if (leaf->physical == ML_PQ_BOOLEAN) {
        st = take(d, &bits, (size_t)p->n_value, 1);
        p->fixed = bits;
        return st                                            ? st
               : ml_pq_bits(&d->p, d->end, bits, p->n_value) ? ML_OK
                                                             : fail(d, DAMAGED);
    }
    if (leaf->physical != ML_PQ_BYTE_ARRAY) {
        p->fixed = d->p;
        return (int64_t)p->n_value * leaf->width <= d->end - d->p ? ML_OK
                                                                  : fail(d, DAMAGED);
    }
    if (p->n_value > (d->end - d->p) / 4)
        return fail(d, DAMAGED);
    st = take(d, &bytes, (size_t)p->n_value, sizeof *bytes);
    p->bytes = bytes;
    return st                                                    ? st
           : ml_pq_plain_bytes(&d->p, d->end, bytes, p->n_value) ? ML_OK
                                                                 : fail(d, DAMAGED);
}

static ml_status read_indices(decoder *d) {
    ml_pq_page *p = d->page;
    int width = d->p < d->end ? *d->p++ : 0;
    uint32_t *index, most = 0;
    ml_status st;

    if (!p->dictionary)
        return fail(d, "its values are positions in a dictionary, but the column chunk has "
                       "no dictionary page");
    st = take(d, &index, (size_t)p->n_value, sizeof *index);
    if (st)
        return st;
    p->index = index;
    if (!ml_pq_hybrid_u32(&d->p, d->end, width, index, p->n_value))
        return fail(d, DAMAGED);
    for (int32_t i = 0; i < p->n_value; i++)
        most = index[i] > most ? index[i] : most;
    if (p->n_value && most >= (uint32_t)p->dictionary->n_value)
        return fail(d, "a value refers to an entry that the dictionary does not have");
    return ML_OK;
}

/* Booleans as runs, after their length. */
static ml_status read_runs(decoder *d) {
    uint8_t *bits;
    ml_status st;

    if (d->from->leaf->physical != ML_PQ_BOOLEAN)
        return fail(d, "RLE encodes values that are not boolean");
    if (d->page->n_value && d->end - d->p < 4)
        return fail(d, DAMAGED);
    d->p += d->page->n_value ? 4 : 0;
    st = take(d, &bits, (size_t)d->page->n_value, 1);
    d->page->fixed = bits;
    return st                                                          ? st
           : ml_pq_hybrid_u8(&d->p, d->end, 1, bits, d->page->n_value) ? ML_OK
                                                                       : fail(d, DAMAGED);
}

static ml_status read_delta(decoder *d) {
    int32_t n = d->page->n_value;
    const ml_pq_node *leaf = d->from->leaf;
    int64_t *v;
    int32_t *narrow;
    ml_status st;

    if (leaf->physical != ML_PQ_INT32 && leaf->physical != ML_PQ_INT64)
        return fail(d, "DELTA_BINARY_PACKED encodes values that are not integers");
    st = take(d, &v, (size_t)n, sizeof *v);
    if (st)
        return st;
    d->page->fixed = (const uint8_t *)v;
    if (!ml_pq_delta(&d->p, d->end, v, 1, n))
        return fail(d, DAMAGED);
    narrow = (int32_t *)(void *)v; /* in place: each write is at or before its read */
    for (int32_t i = 0; leaf->physical == ML_PQ_INT32 && i < n; i++) {
        int32_t low = (int32_t)(uint32_t)v[i];
        memcpy(&narrow[i], &low, sizeof low);
    }
    return ML_OK;
}

static ml_status read_delta_bytes(decoder *d) {
    ml_pq_page *p = d->page;
    const ml_pq_node *leaf = d->from->leaf;
    size_t len = 0;
    char *mem = NULL;
    ml_str *bytes;
    ml_status st;
    bool ok;

    if (leaf->physical != ML_PQ_BYTE_ARRAY && leaf->physical != ML_PQ_FIXED)
        return fail(d, "an encoding of byte arrays encodes other values");
    st = take(d, &bytes, (size_t)p->n_value, sizeof *bytes);
    if (st)
        return st;
    p->bytes = bytes;
    if (d->head->encoding == ML_PQ_ENC_DELTA_LENGTH_BYTE_ARRAY)
        ok = ml_pq_delta_length(&d->p, d->end, bytes, p->n_value);
    else
        ok = ml_pq_delta_bytes(&d->p, d->end, bytes, p->n_value, &mem, &len,
                               ML_PQ_PAGE_BYTES);
    if (mem)
        own(p, mem, len);
    for (int32_t i = 0; ok && leaf->width && i < p->n_value; i++)
        ok = bytes[i].len == (size_t)leaf->width;
    return ok ? ML_OK : fail(d, DAMAGED);
}

/* Values of a fixed width are read as one array. */
static ml_status join_fixed(decoder *d) {
    ml_pq_page *p = d->page;
    size_t width = (size_t)d->from->leaf->width;
    uint8_t *fixed;
    ml_status st;

    if (!width || !p->bytes)
        return ML_OK;
    st = take(d, &fixed, (size_t)p->n_value, width);
    for (int32_t i = 0; !st && i < p->n_value; i++)
        memcpy(fixed + (size_t)i * width, p->bytes[i].ptr, width);
    p->fixed = st ? NULL : fixed;
    return st;
}

static ml_status read_split(decoder *d) {
    int32_t width = d->from->leaf->width;
    uint8_t *v;
    ml_status st;

    if (width == 0 || d->from->leaf->physical == ML_PQ_BOOLEAN)
        return fail(d, "BYTE_STREAM_SPLIT encodes values without a fixed width");
    if (d->page->n_value > (d->end - d->p) / width)
        return fail(d, DAMAGED);
    st = take(d, &v, (size_t)d->page->n_value, (size_t)width);
    d->page->fixed = v;
    return st ? st
           : ml_pq_stream_split(&d->p, d->end, width, v, d->page->n_value)
               ? ML_OK
               : fail(d, DAMAGED);
}

static ml_status read_values(decoder *d) {
    ml_status st;

    switch (d->head->encoding) {
    case ML_PQ_ENC_PLAIN: return read_plain(d);
    case ML_PQ_ENC_PLAIN_DICTIONARY:
    case ML_PQ_ENC_RLE_DICTIONARY: return read_indices(d);
    case ML_PQ_ENC_RLE: return read_runs(d);
    case ML_PQ_ENC_DELTA_BINARY_PACKED: return read_delta(d);
    case ML_PQ_ENC_DELTA_LENGTH_BYTE_ARRAY:
    case ML_PQ_ENC_DELTA_BYTE_ARRAY:
        st = read_delta_bytes(d);
        return st ? st : join_fixed(d);
    case ML_PQ_ENC_BYTE_STREAM_SPLIT: return read_split(d);
    default:
        return ml_fail(d->err, ML_EFORMAT,
                       "%s: page at byte %zu: its values have the encoding %d; expected "
                       "one of PLAIN, dictionary, RLE, DELTA and BYTE_STREAM_SPLIT",
                       d->from->what, d->page->offset, d->head->encoding);
    }
}

static ml_status decode(decoder *d) {
    ml_status st = load(d);

    if (st)
        return st;
    if (d->head->type != ML_PQ_PAGE_DICTIONARY) {
        st = read_all_levels(d);
        return st ? st : read_values(d);
    }
    d->page->n_value = d->page->n_entry;
    if (d->head->encoding != ML_PQ_ENC_PLAIN &&
        d->head->encoding != ML_PQ_ENC_PLAIN_DICTIONARY)
        return fail(d, "a dictionary has another encoding than PLAIN");
    return read_plain(d);
}

ml_status ml_pq_page_decode(ml_pq_page **out, const ml_pq_source *from,
                            const ml_pq_page_head *head, size_t offset,
                            ml_pq_page *dictionary, ml_err *err) {
    ml_pq_page *p = calloc(1, sizeof *p);
    decoder d = { .from = from, .head = head, .page = p, .err = err };
    ml_status st;

    *out = NULL;
    if (!p)
        return ml_fail(err, ML_ENOMEM, "%s: out of memory for a page", from->what);
    *p = (ml_pq_page){ .n_entry = head->n_entry,
                       .offset = offset,
                       .data = head->data,
                       .end = head->end,
                       .dictionary = ml_pq_uses_dictionary(head) ? dictionary : NULL,
                       .memory = sizeof *p };
    if (from->codec == ML_PQ_UNCOMPRESSED) /* read in place: mapped as long as the page */
        p->memory += head->end - head->data;
    st = decode(&d);
    if (st)
        ml_pq_page_free(p);
    else
        *out = p;
    return st;
}

void ml_pq_page_free(ml_pq_page *p) {
    for (int i = 0; i < p->n_mem; i++)
        free(p->mem[i]);
    free(p);
}
