#include "text/chat/assistant_mask.h"

#include <string.h>

#include "base/bug.h"

/* Returns the first token that covers a byte, or -1. */
static int64_t token_at(const ml_tokens *t, int64_t byte) {
    for (int64_t i = 0; i < t->n; i++)
        if (t->span[i].begin <= byte && byte < t->span[i].end)
            return i;
    return -1;
}

void ml_assistant_mask(uint8_t *mask, const ml_jinja_text *text, const ml_tokens *tokens) {
    ML_BUG_IF(tokens->n > 0 && !tokens->span);
    memset(mask, 0, (size_t)tokens->n);
    for (int64_t i = 0; i < text->n_span; i++) {
        int64_t first = token_at(tokens, text->span[i].begin_byte);
        int64_t last = token_at(tokens, text->span[i].end_byte - 1);
        if (first < 0)
            return;
        /* As upstream, "no token" and "token 0" mean "up to the end". */
        for (int64_t k = first; k < (last > 0 ? last + 1 : tokens->n); k++)
            mask[k] = 1;
    }
}
