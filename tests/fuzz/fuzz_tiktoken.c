/* Any text as tiktoken.model: a tokenizer or a sentence that names the line.  The 256 bytes come
 * first when the first byte of the input asks for them, as in every real file; a tokenizer that
 * opens encodes and decodes. */
#include <stdint.h>
#include <string.h>

#include "base/base64.h"
#include "base/bug.h"
#include "text/tokenizer/detok.h"
#include "text/tokenizer/tok_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const ml_tokenizer *t, ml_str text) {
    ml_encoder *e = ml_encoder_new(t);
    ml_tokens ids = { 0 };
    ml_text back = { 0 };
    ml_err err = { 0 };

    if (ml_encode(e, &ids, text, (ml_encode_opts){ true, true }, &err) == ML_OK)
        ml_decode(t, &back, ids.id, ids.n, false);
    else
        ML_BUG_IF(!err.msg[0]);
    ml_text_release(&back);
    ml_tokens_release(&ids);
    ml_encoder_free(e);
}

static void add_bytes(ml_text *out) {
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        ml_base64_write(out, &byte, 1);
        ml_text_printf(out, " %d\n", i);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_tokenizer *t = ml_tokenizer_new("tiktoken.model");
    ml_text file = { 0 };
    ml_err err = { 0 };
    ml_status st;

    if (size && data[0] == 'b')
        add_bytes(&file);
    if (size)
        ml_text_add(&file, (const char *)data + 1, size - 1);
    st = ml_tokenizer_read_tiktoken(t, (ml_str){ file.ptr, file.len }, NULL, &err);
    if (st == ML_OK)
        st = ml_added_finish(t, &err);
    if (st == ML_OK)
        check_text(t, ml_str_of(" Hi there, it's 12345\n\n\xe4\xb8\xad\xe6\x96\x87 OK"));
    else
        ML_BUG_IF(!err.msg[0]);
    ml_text_release(&file);
    ml_tokenizer_close(t);
    return 0;
}
