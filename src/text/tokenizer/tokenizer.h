/* tokenizer.h - text to tokens and back, compatible with the Hugging Face libraries.
 *
 * A tokenizer is read from a checkpoint directory: tokenizer.json with the additions of
 * tokenizer_config.json and special_tokens_map.json, or tiktoken.model.  Ids, offsets and
 * decoded text are identical to those of the Python packages; an unsupported component is
 * an error that names it.
 *
 * thread: a tokenizer is immutable; an encoder belongs to one thread at a time. */
#ifndef ML_TEXT_TOKENIZER_TOKENIZER_H
#define ML_TEXT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"
#include "base/str.h"

typedef struct ml_tokenizer ml_tokenizer;
typedef struct ml_encoder ml_encoder;

/* Bytes [begin, end) of the encoded text. */
typedef struct ml_span {
    uint32_t begin, end;
} ml_span;

typedef struct ml_tokens {
    int32_t *id;   /* [n] */
    ml_span *span; /* [n] if requested: the source range of each token */
    int64_t n, cap;
} ml_tokens;

typedef enum ml_token_role {
    ML_TOKEN_BOS,
    ML_TOKEN_EOS,
    ML_TOKEN_PAD,
    ML_TOKEN_UNK,
    ML_TOKEN_ROLES
} ml_token_role;

/* Opens the tokenizer of a checkpoint directory. */
ml_status ml_tokenizer_open(ml_tokenizer **out, const char *dir, ml_err *err);
/* Opens the text of a tokenizer.json alone; messages begin with `name`. */
ml_status ml_tokenizer_parse(ml_tokenizer **out, ml_str json, const char *name,
                             ml_err *err);
void ml_tokenizer_close(ml_tokenizer *t);

/* One more than the largest id. */
int32_t ml_tokenizer_size(const ml_tokenizer *t);
/* The id of a token in the spelling of the vocabulary, or -1. */
int32_t ml_tokenizer_id(const ml_tokenizer *t, ml_str token);
/* The token of an id in the spelling of the vocabulary; NULL and 0 if there is none. */
ml_str ml_tokenizer_token(const ml_tokenizer *t, int32_t id);
/* True if skip_special omits it. */
bool ml_tokenizer_is_special(const ml_tokenizer *t, int32_t id);
/* The id of bos, eos, pad or unk, or -1. */
int32_t ml_tokenizer_role(const ml_tokenizer *t, ml_token_role role);

/* The state of encoding: working memory and a cache of words. */
ml_encoder *ml_encoder_new(const ml_tokenizer *t);
void ml_encoder_free(ml_encoder *e);

typedef struct ml_encode_opts {
    bool add_special; /* add the tokens of the post-processor */
    bool spans;
} ml_encode_opts;

/* Replaces the content of `out`, which may be zeros.  Fails if the text is not UTF-8. */
ml_status ml_encode(ml_encoder *e, ml_tokens *out, ml_str text, ml_encode_opts opts,
                    ml_err *err);
/* Encodes n texts on the threads of a pool; out is [n]. */
ml_status ml_encode_all(const ml_tokenizer *t, ml_pool *pool, ml_tokens *out,
                        const ml_str *text, int64_t n, ml_encode_opts opts, ml_err *err);
void ml_tokens_release(ml_tokens *t);

/* Appends the text of n tokens.  Ids without a token are ignored. */
void ml_decode(const ml_tokenizer *t, ml_text *out, const int32_t *id, int64_t n,
               bool skip_special);

#endif
