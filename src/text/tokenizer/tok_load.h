/* tok_load.h - functions shared by the readers of tokenizer.json. */
#ifndef ML_TEXT_TOKENIZER_TOK_LOAD_H
#define ML_TEXT_TOKENIZER_TOK_LOAD_H

#include "text/tokenizer/tok_priv.h"

enum { ML_TOK_MAX_ID = 1 << 24 };

typedef struct ml_tok_loader {
    ml_tokenizer *t;
    ml_err *err;
} ml_tok_loader;

/* Sets the error "file:line: ..." for a value, or "file: ..." without one. */
ml_status ml_tok_bad(ml_tok_loader *l, ml_status code, const ml_json *at, const char *fmt,
                     ...) __attribute__((format(printf, 4, 5)));

bool ml_tok_is_null(const ml_json *v); /* or absent */
ml_status ml_tok_get_bool(ml_tok_loader *l, const ml_json *obj, const char *key,
                          bool absent, bool *out);
/* A missing string is empty, with a NULL pointer. */
ml_status ml_tok_get_str(ml_tok_loader *l, const ml_json *obj, const char *key,
                         ml_str *out);
ml_status ml_tok_need_str(ml_tok_loader *l, const ml_json *obj, const char *key,
                          ml_str *out);
/* As the reference library, rejects other top-level keys.  `known` is "key|key|...". */
ml_status ml_tok_check_keys(ml_tok_loader *l, const ml_json *root, const char *known);

ml_status ml_tok_read_model(ml_tok_loader *l, const ml_json *model);

#endif
