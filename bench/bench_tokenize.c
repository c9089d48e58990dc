/* Time to load a tokenizer, encode and decode a file of texts on one thread.
 *
 *     bench_tokenize DIR TEXTS.jsonl
 *
 * bench/bench_tokenize.py runs it next to the Python package and prints ratios. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer/tokenizer.h"

#define ROUNDS 3

typedef struct texts {
    ml_str *text;
    ml_tokens *tokens;
    int64_t n;
    size_t bytes;
} texts;

static ml_status read_texts(texts *out, ml_arena *a, ml_str file, ml_err *err) {
    int64_t n_line = 1;

    for (size_t i = 0; i < file.len; i++)
        n_line += file.ptr[i] == '\n';
    out->text = ML_NEW(a, ml_str, n_line);
    out->tokens = ML_NEW(a, ml_tokens, n_line);
    while (file.len) {
        const char *end = memchr(file.ptr, '\n', file.len);
        ml_str line = { file.ptr, end ? (size_t)(end - file.ptr) : file.len };
        const ml_json *row;
        ml_status st = ml_json_parse(&row, a, line, "texts", err);
        if (st != ML_OK)
            return st;
        out->text[out->n] = ml_json_get(row, "text")->text;
        out->bytes += out->text[out->n++].len;
        file.ptr += line.len + (end != NULL);
        file.len -= line.len + (end != NULL);
    }
    return ML_OK;
}

static double encode_s(const ml_tokenizer *t, texts *x) {
    ml_encoder *e = ml_encoder_new(t);
    double best = 1e9;
    ml_err err;

    for (int round = 0; round < ROUNDS; round++) {
        double start = ml_clock_s();
        for (int64_t i = 0; i < x->n; i++)
            if (ml_encode(e, &x->tokens[i], x->text[i], (ml_encode_opts){ 0 }, &err))
                return -1;
        start = ml_clock_s() - start;
        best = start < best ? start : best;
    }
    ml_encoder_free(e);
    return best;
}

static double decode_s(const ml_tokenizer *t, const texts *x) {
    ml_text out = { 0 };
    double best = 1e9;

    for (int round = 0; round < ROUNDS; round++) {
        double start = ml_clock_s();
        for (int64_t i = 0; i < x->n; i++) {
            out.len = 0;
            ml_decode(t, &out, x->tokens[i].id, x->tokens[i].n, false);
        }
        start = ml_clock_s() - start;
        best = start < best ? start : best;
    }
    ml_text_release(&out);
    return best;
}

int main(int argc, char **argv) {
    ml_tokenizer *t;
    ml_file file;
    ml_arena a;
    texts x = { 0 };
    ml_err err = { 0 };
    double start, load = 1e9, mb;

    if (argc != 3) {
        printf("skipped: bench/bench_tokenize.py runs this with a tokenizer and texts\n");
        return 0;
    }
    ml_arena_init(&a, "bench");
    if (ml_file_map(&file, argv[2], &err) || read_texts(&x, &a, file.bytes, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (int round = 0; round < ROUNDS; round++) {
        start = ml_clock_s();
        if (ml_tokenizer_open(&t, argv[1], &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        start = ml_clock_s() - start;
        load = start < load ? start : load;
        if (round + 1 < ROUNDS)
            ml_tokenizer_close(t);
    }
    mb = (double)x.bytes / 1e6;
    printf("{\"load_ms\": %.1f, ", load * 1e3);
    printf("\"encode\": %.2f, ", mb / encode_s(t, &x));
    printf("\"decode\": %.2f}\n", mb / decode_s(t, &x));
    ml_tokenizer_close(t);
    for (int64_t i = 0; i < x.n; i++)
        ml_tokens_release(&x.tokens[i]);
    ml_arena_release(&a);
    ml_file_unmap(&file);
    return 0;
}
