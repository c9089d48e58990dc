/* Any text as tokenizer.json, with a text to encode behind its last line end: a tokenizer or
 * a sentence, never a crash.  What a tokenizer gives lies within the text, the same with and
 * without spans, and can be decoded. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/bug.h"
#include "text/tokenizer/detok.h"
#include "text/unicode.h"

#define TEXT_BYTES 16 /* an expression may backtrack exponentially in it */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_decoding(const ml_tokenizer *t, const ml_tokens *ids) {
    ml_text text = { 0 };
    bool skip = ids->n % 2;

    ml_decode(t, &text, ids->id, ids->n, skip);
    ML_BUG_IF(ml_utf8_valid((ml_str){ text.ptr, text.len }) != text.len);
    ml_text_release(&text);
}

static void check_text(const ml_tokenizer *t, ml_encoder *e, ml_str text) {
    ml_tokens spans = { 0 }, plain = { 0 };
    ml_err err = { 0 };
    ml_status st = ml_encode(e, &spans, text, (ml_encode_opts){ true, true }, &err);

    if (st != ML_OK) {
        ML_BUG_IF(!err.msg[0]);
    } else {
        for (int64_t i = 0; i < spans.n; i++)
            ML_BUG_IF(spans.span[i].begin > spans.span[i].end ||
                      spans.span[i].end > text.len);
        for (int round = 0; round < 2; round++) { /* the second time from the cache */
            ML_BUG_IF(ml_encode(e, &plain, text, (ml_encode_opts){ true, false }, &err));
            ML_BUG_IF(plain.n != spans.n);
            ML_BUG_IF(plain.n &&
                      memcmp(plain.id, spans.id, (size_t)plain.n * sizeof *plain.id));
        }
        check_decoding(t, &plain);
    }
    ml_tokens_release(&plain);
    ml_tokens_release(&spans);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *line = size ? memrchr(data, '\n', size) : NULL;
    size_t n_json = line ? (size_t)(line - data) : size;
    size_t n_text = line ? size - n_json - 1 : 0;
    ml_tokenizer *t = NULL;
    ml_encoder *e;
    ml_err err = { 0 };

    if (ml_tokenizer_parse(&t, (ml_str){ (const char *)data, n_json }, "fuzz", &err)) {
        ML_BUG_IF(!err.msg[0]);
        return 0;
    }
    if (n_text > TEXT_BYTES)
        n_text = TEXT_BYTES;
    e = ml_encoder_new(t);
    check_text(t, e, (ml_str){ (const char *)data + n_json + (line != NULL), n_text });
    check_text(t, e, ml_str_of(" a\n ab1\xc3\xa9\xe4\xb8\xad"));
    ml_encoder_free(e);
    ml_tokenizer_close(t);
    return 0;
}
