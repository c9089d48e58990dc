/* chat_messages.h - converts messages from the clients' form to the form of chat templates.
 *
 * A list of text parts becomes one string, null content an empty one, and the arguments of
 * past tool calls, which clients send as JSON in a string, become JSON again. */
#ifndef ML_SERVE_CHAT_MESSAGES_H
#define ML_SERVE_CHAT_MESSAGES_H

#include "base/json.h"

/* *out is allocated in `a`; unchanged parts are shared with `messages`. */
ml_status ml_chat_messages_read(const ml_json **out, const ml_json *messages, ml_arena *a,
                                ml_err *err);

/* If the last message is the assistant's, removes it and returns its text in *begun: the
 * answer continues that text. */
ml_status ml_chat_messages_split(const ml_json **messages, ml_str *begun, ml_arena *a,
                                 ml_err *err);

#endif
