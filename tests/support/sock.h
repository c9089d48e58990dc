/* sock.h - a raw socket client, which can send malformed requests. */
#ifndef ML_TESTS_SUPPORT_SOCK_H
#define ML_TESTS_SUPPORT_SOCK_H

#include "base/str.h"

/* A connection to this port of localhost; reads time out after ten seconds. */
int ml_sock_dial(int port);

void ml_sock_send(int fd, const char *bytes, size_t n);
void ml_sock_say(int fd, const char *text);

/* Reads until the server closes; returns the error that ended it, 0 for an orderly end. */
int ml_sock_hear(int fd, ml_text *out);
/* Reads until `needle` has arrived. */
void ml_sock_hear_until(int fd, ml_text *out, const char *needle);

/* Sends one request on a new connection and reads the whole reply. */
void ml_sock_ask(int port, const char *request, ml_text *out);

#endif
