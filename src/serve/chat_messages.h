/* chat_messages.h - messages as clients send them, to messages as templates read them.
 *
 * A list of text parts becomes one string, null content an empty one, and the arguments of
 * past tool calls, which clients send as JSON in a string, become JSON again. */
#ifndef ML_SERVE_CHAT_MESSAGES_H
#define ML_SERVE_CHAT_MESSAGES_H

#include "base/json.h"

/* *out lives in `a`, and shares what it did not change with `messages`. */
ml_status ml_chat_messages_read(const ml_json **out, const ml_json *messages, ml_arena *a,
                                ml_err *err);

/* Takes the last message off when it is the assistant's, and gives its text, which the answer
 * shall go on from. */
ml_status ml_chat_messages_split(const ml_json **messages, ml_str *begun, ml_arena *a,
                                 ml_err *err);

#endif
