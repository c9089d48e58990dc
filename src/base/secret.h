/* secret.h - API keys that clients and servers present to each other.
 *
 * A key is 1 to ML_SECRET_MAX printable ASCII characters without blanks, so that it needs
 * no escaping in a header.
 *
 * thread: any. */
#ifndef ML_BASE_SECRET_H
#define ML_BASE_SECRET_H

#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"

#define ML_SECRET_MAX 512

typedef struct ml_secret {
    char text[ML_SECRET_MAX + 1]; /* empty: none */
} ml_secret;

/* `what` names it in the message: a flag, or a member of a request. */
ml_status ml_secret_take(ml_secret *out, ml_str text, const char *what, ml_err *err);

/* Reads a file of at most 1 MiB.  One that others can read or write is refused. */
ml_status ml_secret_read_file(ml_text *out, const char *path, const char *what,
                              ml_err *err);

/* Reads the first line of the file.  A file that others can read or write is refused. */
ml_status ml_secret_read(ml_secret *out, const char *path, const char *what, ml_err *err);

/* The key in a file, if one is given, otherwise the text; empty if neither is given.
 * `flag` is the name of the text's flag; the file's flag has the suffix "-file". */
ml_status ml_secret_find(ml_secret *out, const char *text, const char *file,
                         const char *flag, ml_err *err);

/* NULL if it is empty. */
const char *ml_secret_text(const ml_secret *s);

/* 256 random bits, as hexadecimal digits. */
ml_status ml_secret_random(ml_secret *out, ml_err *err);

/* Constant-time comparison. */
bool ml_secret_is(const char *key, ml_str given);

#endif
