/* response_store.h - the latest replies of the Responses API, for previous_response_id and GET.
 *
 * The oldest are forgotten when there are too many, or when they are too large together.
 *
 * thread: any; a lock guards the list. */
#ifndef ML_SERVE_RESPONSE_STORE_H
#define ML_SERVE_RESPONSE_STORE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

#define ML_RESPONSES_MAX 4096
#define ML_RESPONSES_BYTES ((size_t)64 << 20)

typedef struct ml_response_store ml_response_store;

ml_response_store *ml_response_store_new(void);
void ml_response_store_free(ml_response_store *s); /* NULL is allowed */

/* Copies a reply and the messages of its conversation, the answer included: JSON objects with commas
 * between them.  Without memory for it nothing is stored. */
void ml_response_store_add(ml_response_store *s, const char *id, ml_str reply,
                           ml_str messages);
/* Append the copies; false: there is none. */
bool ml_response_store_reply(ml_response_store *s, ml_str id, ml_text *out);
bool ml_response_store_messages(ml_response_store *s, ml_str id, ml_text *out);
bool ml_response_store_delete(ml_response_store *s, ml_str id);

#endif
