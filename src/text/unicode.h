/* unicode.h - UTF-8 and character properties.
 *
 * Categories are those of the Hugging Face tokenizers (Unicode 16), independent of the
 * versions of the system's libraries: a different category would split a text differently
 * and change its tokens.  Decomposition, composition and case mappings come from utf8proc,
 * restricted to the characters that the reference supports.
 *
 * thread: immutable after init. */
#ifndef ML_TEXT_UNICODE_H
#define ML_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "base/utf8.h"

#define ML_CODE_POINTS 0x110000

/* General categories, in the order of unicode_table.inc. */
typedef enum ml_gc {
    ML_GC_CN,
    ML_GC_CC,
    ML_GC_CF,
    ML_GC_CO,
    ML_GC_CS,
    ML_GC_LL,
    ML_GC_LM,
    ML_GC_LO,
    ML_GC_LT,
    ML_GC_LU,
    ML_GC_MC,
    ML_GC_ME,
    ML_GC_MN,
    ML_GC_ND,
    ML_GC_NL,
    ML_GC_NO,
    ML_GC_PC,
    ML_GC_PD,
    ML_GC_PE,
    ML_GC_PF,
    ML_GC_PI,
    ML_GC_PO,
    ML_GC_PS,
    ML_GC_SC,
    ML_GC_SK,
    ML_GC_SM,
    ML_GC_SO,
    ML_GC_ZL,
    ML_GC_ZP,
    ML_GC_ZS,
} ml_gc;

/* Sets of categories: bit 1 << ml_gc. */
#define ML_GCS_L 0x000003e0u
#define ML_GCS_M 0x00001c00u
#define ML_GCS_N 0x0000e000u
#define ML_GCS_P 0x007f0000u
#define ML_GCS_S 0x07800000u
#define ML_GCS_Z 0x38000000u

typedef struct ml_unicode {
    const uint8_t *info; /* [ML_CODE_POINTS]: category and the flags of unicode.c */
} ml_unicode;

void ml_unicode_init(ml_unicode *u);

static inline ml_gc ml_char_gc(const ml_unicode *u, uint32_t c) {
    return (ml_gc)(u->info[c] & 31);
}

/* True if the category of c is in the set. */
static inline bool ml_char_in(const ml_unicode *u, uint32_t c, uint32_t gcs) {
    return (gcs >> (u->info[c] & 31) & 1) != 0;
}

bool ml_char_is_space(uint32_t c);                        /* White_Space */
bool ml_char_is_numeric(const ml_unicode *u, uint32_t c); /* N* */
bool ml_char_is_punct(const ml_unicode *u,
                      uint32_t c); /* ASCII punctuation and symbols, and P* */
bool ml_char_is_mark(const ml_unicode *u, uint32_t c); /* M*, as far as they are stripped */
bool ml_char_is_word(const ml_unicode *u, uint32_t c); /* \w */
bool ml_char_is_nfc_stable(const ml_unicode *u, uint32_t c); /* NFC does not change it */

/* Lower case; at most two characters.  Returns their number. */
int ml_char_lower(uint32_t c, uint32_t out[2]);

/* Writes the full decomposition of c, canonical or compatible; returns the number of
 * characters. */
#define ML_DECOMPOSE_MAX 18
int ml_char_decompose(const ml_unicode *u, uint32_t c, bool compatible,
                      uint32_t out[ML_DECOMPOSE_MAX]);
/* Returns the composition of a followed by b, or 0. */
uint32_t ml_char_compose(const ml_unicode *u, uint32_t a, uint32_t b);
/* Canonical combining class. */
int ml_char_ccc(const ml_unicode *u, uint32_t c);

/* Calls `add` for each range of code points that libraries of Unicode 14 treat as
 * unassigned and whose category is in the set. */
void ml_unicode_newer(const ml_unicode *u, uint32_t gcs,
                      void (*add)(void *ud, uint32_t first, uint32_t last), void *ud);

#endif
