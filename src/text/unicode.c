#include "text/unicode.h"

#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

#include "text/unicode_table.inc"

/* Flags above the category in a byte of info.  The reference normalizes with the tables of
 * Unicode 9 and does not change newer characters (INERT). */
enum { IS_PUNCT = 0x20, IS_INERT = 0x40, IS_NFC_STABLE = 0x80 };
#define ALTERNATES (1u << 31) /* of runs */

/* One table per process: filling it takes longer than opening a tokenizer. */
static uint8_t info[ML_CODE_POINTS];

static uint32_t first_of(size_t run) {
    return run < sizeof runs / sizeof *runs ? (runs[run] & ~ALTERNATES) >> 8
                                            : ML_CODE_POINTS;
}

static void fill_info(void) {
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        uint32_t first = first_of(i), end = first_of(i + 1);
        memset(info + first, (int)(runs[i] & 255), end - first);
        if (i && runs[i - 1] & ALTERNATES)
            for (uint32_t c = first + 1; c < end; c += 2)
                info[c] = (uint8_t)(runs[i - 1] & 255);
    }
}

void ml_unicode_init(ml_unicode *u) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, fill_info);
    u->info = info;
}

/* --- predicates ------------------------------------------------------------- */

bool ml_char_is_space(uint32_t c) {
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* The reference uses Unicode 17 here. */
bool ml_char_is_numeric(const ml_unicode *u, uint32_t c) {
    return ml_char_in(u, c, ML_GCS_N) || (c >= 0x11de0 && c <= 0x11de9) ||
           (c >= 0x16ff4 && c <= 0x16ff6);
}

bool ml_char_is_punct(const ml_unicode *u, uint32_t c) {
    return (u->info[c] & IS_PUNCT) != 0;
}

bool ml_char_is_mark(const ml_unicode *u, uint32_t c) {
    return ml_char_in(u, c, ML_GCS_M) && !(u->info[c] & IS_INERT);
}

bool ml_char_is_word(const ml_unicode *u, uint32_t c) {
    const uint32_t gcs =
        ML_GCS_L | ML_GCS_M | 1u << ML_GC_ND | 1u << ML_GC_NL | 1u << ML_GC_PC;

    /* Circled and squared letters are Alphabetic, although their category is Symbol. */
    return ml_char_in(u, c, gcs) || c == 0x200c || c == 0x200d ||
           (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

bool ml_char_is_nfc_stable(const ml_unicode *u, uint32_t c) {
    return (u->info[c] & IS_NFC_STABLE) != 0;
}

/* --- mappings --------------------------------------------------------------- */

int ml_char_lower(uint32_t c, uint32_t out[2]) {
    /* Capital letters of Unicode 16 and 17, which utf8proc may lack: first, last,
     * offset. */
    static const struct {
        uint32_t first, last;
        int32_t by;
    } rows[] = {
        { 0x1c89, 0x1c89, 1 },      { 0xa7cb, 0xa7cb, 0x264 - 0xa7cb },
        { 0xa7cc, 0xa7cc, 1 },      { 0xa7ce, 0xa7ce, 1 },
        { 0xa7d2, 0xa7d2, 1 },      { 0xa7d4, 0xa7d4, 1 },
        { 0xa7da, 0xa7da, 1 },      { 0xa7dc, 0xa7dc, 0x19b - 0xa7dc },
        { 0x10d50, 0x10d65, 0x20 }, { 0x16ea0, 0x16eb8, 0x1b },
    };

    if (c < 0x80) {
        out[0] = c >= 'A' && c <= 'Z' ? c + 32 : c;
        return 1;
    }
    if (c == 0x130) { /* the only capital whose lower case is two characters */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (c >= rows[i].first && c <= rows[i].last) {
            out[0] = (uint32_t)((int32_t)c + rows[i].by);
            return 1;
        }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}

int ml_char_decompose(const ml_unicode *u, uint32_t c, bool compatible,
                      uint32_t out[ML_DECOMPOSE_MAX]) {
    int option = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0), boundary = 0;
    utf8proc_int32_t part[ML_DECOMPOSE_MAX];
    utf8proc_ssize_t n = 0;

    out[0] = c;
    if (c < 0x80 || (u->info[c] & IS_INERT))
        return 1;
    n = utf8proc_decompose_char((utf8proc_int32_t)c, part, ML_DECOMPOSE_MAX,
                                (utf8proc_option_t)option, &boundary);
    if (n < 1 || n > ML_DECOMPOSE_MAX)
        return 1;
    for (utf8proc_ssize_t i = 0; i < n; i++)
        out[i] = (uint32_t)part[i];
    return (int)n;
}

uint32_t ml_char_compose(const ml_unicode *u, uint32_t a, uint32_t b) {
    utf8proc_int32_t pair[2] = { (utf8proc_int32_t)a, (utf8proc_int32_t)b };

    if (b < 0x300 || ((u->info[a] | u->info[b]) & IS_INERT))
        return 0;
    if (utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) != 1)
        return 0;
    return u->info[pair[0]] & IS_INERT ? 0 : (uint32_t)pair[0];
}

int ml_char_ccc(const ml_unicode *u, uint32_t c) {
    if (c < 0x300 || (u->info[c] & IS_INERT))
        return 0;
    return utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

void ml_unicode_newer(const ml_unicode *u, uint32_t gcs,
                      void (*add)(void *ud, uint32_t first, uint32_t last), void *ud) {
    for (size_t i = 0; i < sizeof newer / sizeof *newer; i++)
        if (ml_char_in(u, newer[i][0], gcs))
            add(ud, newer[i][0], newer[i][1]);
}
