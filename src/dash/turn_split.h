/* turn_split.h - splits the text of a prompt and its response into turns, by the markers of
 * the common chat templates.
 *
 * thread: any. */
#ifndef ML_DASH_TURN_SPLIT_H
#define ML_DASH_TURN_SPLIT_H

#include <stdbool.h>

#include "base/str.h"

typedef struct ml_turn_text {
    ml_str role, content; /* views of the text */
} ml_turn_text;

typedef void ml_turn_each(void *ud, const ml_turn_text *t);

/* Calls `each` for every turn; false, without a call, if the text has no marker. */
bool ml_conversation_split(ml_str text, ml_turn_each *each, void *ud);

#endif
