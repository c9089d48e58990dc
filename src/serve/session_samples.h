/* session_samples.h - training samples of a session.
 *
 * Each path from the first answer to a leaf is a sample: its prompt is that of the first
 * answer; drawn tokens have mask 1, the messages between them mask 0.  A path ends at an
 * answer that was cut off or aborted, and where max_tokens are reached. */
#ifndef ML_SERVE_SESSION_SAMPLES_H
#define ML_SERVE_SESSION_SAMPLES_H

#include "base/json_out.h"
#include "serve/session_tokens.h"

/* A consistent copy of the session's list of nodes, and of its latest one. */
typedef struct ml_session_view {
    const ml_session_node *const *node; /* [n] in the order of commits */
    const bool *leaf;                   /* [n] */
    int32_t n;
    const ml_session_node *head; /* NULL: none */
    ml_session_kind kind;
} ml_session_view;

void ml_session_view_take(ml_session_view *out, ml_session *s, ml_session_kind kind,
                          ml_arena *a);

/* {"samples": [...], "session_metadata": {...}, "empty_reason": ...}: a linear session has
 * one sample, a tree one for each leaf.  max_tokens 0: no limit.  count: as in
 * ml_session_compare, over all samples. */
void ml_session_samples_write(const ml_session_view *v, const ml_session_text *x,
                              int64_t max_tokens, ml_json_out *o, int64_t *count,
                              ml_arena *scratch);
/* {"session_id", "records": [...], "metadata": {...}} of the latest path. */
void ml_session_write(const ml_session *s, const ml_session_view *v,
                      const ml_session_text *x, ml_json_out *o, int64_t *count,
                      ml_arena *scratch);

#endif
