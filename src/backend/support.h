/* support.h - the sampling support of a token: the ids that it could have been drawn from.
 *
 * Top-k, top-p, min-p, grammars and bans leave a subset of the vocabulary.  It travels with
 * the token, so that a trainer can normalise over the same ids (sampling-support replay).
 *
 * A support is a string of bytes.  An empty one is the whole vocabulary.  Otherwise the first
 * byte says what follows: the ids (L) or the ids that are not in it (C) as variable-length
 * integers, each the distance from the id before it less 1, or a bitmap (B).  The shortest
 * form is used, of equal ones the first of L, C, B: at most an eighth of a byte per id of the
 * vocabulary and one byte.  The supports of several tokens are records one after the other,
 * each with its length before it.
 *
 * thread: any; no state. */
#ifndef ML_BACKEND_SUPPORT_H
#define ML_BACKEND_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* The most bytes of a support, and of its record. */
size_t ml_support_max(int64_t n_vocab);
size_t ml_support_record_max(int64_t n_vocab);

/* Writes n ascending ids, at least one; returns the number of bytes. */
size_t ml_support_write(uint8_t *out, const int32_t *id, int64_t n, int64_t n_vocab);

/* The ids of a support, ascending; out [n_vocab].  Returns their number. */
int64_t ml_support_ids(int32_t *out, ml_str support, int64_t n_vocab);

/* Reads a support column by column. */
typedef struct ml_support_reader {
    const uint8_t *p, *end;
    uint8_t form;
    int64_t column; /* the next one to be read */
    int64_t listed; /* the next id of the list; INT64_MAX: none */
} ml_support_reader;

ml_support_reader ml_support_read(ml_str support);
/* Sets bit i % 32 of word i / 32 where the i-th of the next n columns is in the support.
 * Returns how many are. */
int64_t ml_support_next(ml_support_reader *r, uint32_t *mask, int64_t n);

/* Takes the first record off a list; false: it is damaged. */
bool ml_support_take(ml_str *records, ml_str *support);
/* Puts the length before the n bytes of a support, in place; returns the record's. */
size_t ml_support_record(uint8_t *support, size_t n);
/* Appends a record. */
void ml_support_add(ml_text *records, ml_str support);
/* Appends a record with the list of these ids, at least one, in any order; sorts them. */
void ml_support_add_ids(ml_text *records, int32_t *id, int64_t n);

/* ML_EFORMAT: the records are not the supports of these n tokens, each of which is in its
 * own, of this vocabulary. */
ml_status ml_support_check(ml_str records, const int32_t *token, int32_t n, int64_t n_vocab,
                           ml_err *err);
/* The first n records. */
ml_str ml_support_first(ml_str records, int32_t n);

#endif
