/* tokenizer.h - text to tokens and back, as the Hugging Face libraries do it.
 *
 * A tokenizer is read from a checkpoint's directory: tokenizer.json with what
 * tokenizer_config.json and special_tokens_map.json add to it, or tiktoken.model.  Ids,
 * offsets and decoded text are those of the Python packages, to the last one; a part that
 * is not known here is refused by its name.
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

/* Bytes [begin, end) of the text that was encoded. */
typedef struct ml_span {
    uint32_t begin, end;
} ml_span;

typedef struct ml_tokens {
    int32_t *id;   /* [n] */
    ml_span *span; /* [n] when asked for: where in the text a token comes from */
    int64_t n, cap;
} ml_tokens;

typedef enum ml_token_role {
    ML_TOKEN_BOS,
    ML_TOKEN_EOS,
    ML_TOKEN_PAD,
    ML_TOKEN_UNK,
    ML_TOKEN_ROLES
} ml_token_role;

/* From a checkpoint's directory. */
ml_status ml_tokenizer_open(ml_tokenizer **out, const char *dir, ml_err *err);
/* From the text of a tokenizer.json alone; `name` opens messages. */
ml_status ml_tokenizer_parse(ml_tokenizer **out, ml_str json, const char *name,
                             ml_err *err);
void ml_tokenizer_close(ml_tokenizer *t);

/* One more than the largest id. */
int32_t ml_tokenizer_size(const ml_tokenizer *t);
/* The id of a token as its vocabulary spells it, or -1. */
int32_t ml_tokenizer_id(const ml_tokenizer *t, ml_str token);
/* The token of an id as its vocabulary spells it; NULL and 0 when there is none. */
ml_str ml_tokenizer_token(const ml_tokenizer *t, int32_t id);
/* Is it one of those that skip_special leaves out? */
bool ml_tokenizer_is_special(const ml_tokenizer *t, int32_t id);
/* The id of bos, eos, pad or unk, or -1. */
int32_t ml_tokenizer_role(const ml_tokenizer *t, ml_token_role role);

/* What encoding needs besides the tokenizer: working memory, and a cache of words. */
ml_encoder *ml_encoder_new(const ml_tokenizer *t);
void ml_encoder_free(ml_encoder *e);

typedef struct ml_encode_opts {
    bool add_special; /* what the post-processor puts around a text */
    bool spans;
} ml_encode_opts;

/* Replaces what `out` held; zeros are fine.  Fails when text is not UTF-8. */
ml_status ml_encode(ml_encoder *e, ml_tokens *out, ml_str text, ml_encode_opts opts,
                    ml_err *err);
/* n texts, divided among the threads of a pool; out is [n]. */
ml_status ml_encode_all(const ml_tokenizer *t, ml_pool *pool, ml_tokens *out,
                        const ml_str *text, int64_t n, ml_encode_opts opts, ml_err *err);
void ml_tokens_release(ml_tokens *t);

/* Appends the text of n tokens.  Ids that are no tokens count for nothing. */
void ml_decode(const ml_tokenizer *t, ml_text *out, const int32_t *id, int64_t n,
               bool skip_special);

#endif
