/* sock.h - a client of bare sockets, which can say what no proper client would. */
#ifndef ML_TESTS_SUPPORT_SOCK_H
#define ML_TESTS_SUPPORT_SOCK_H

#include "base/str.h"

/* A connection to this port of this machine, on which reading gives up after ten seconds. */
int ml_sock_dial(int port);

void ml_sock_send(int fd, const char *bytes, size_t n);
void ml_sock_say(int fd, const char *text);

/* Everything until the server closes; the error that ended it, 0 for an orderly end. */
int ml_sock_hear(int fd, ml_text *out);
/* Until `needle` has come. */
void ml_sock_hear_until(int fd, ml_text *out, const char *needle);

/* One request on a connection of its own, and all that comes back. */
void ml_sock_ask(int port, const char *request, ml_text *out);

#endif
