#include "tests/support/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "tests/support/test.h"

int ml_sock_dial(int port) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    struct timeval tv = { .tv_sec = 10 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

void ml_sock_send(int fd, const char *bytes, size_t n) {
    while (n) {
        ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* refused in the middle: the reply tells */
        bytes += k;
        n -= (size_t)k;
    }
}

void ml_sock_say(int fd, const char *text) {
    ml_sock_send(fd, text, strlen(text));
}

int ml_sock_hear(int fd, ml_text *out) {
    char buf[4096];
    ssize_t n;

    out->len = 0;
    ml_text_add(out, "", 0);
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
        ml_text_add(out, buf, (size_t)n);
    return n == 0 ? 0 : errno;
}

void ml_sock_hear_until(int fd, ml_text *out, const char *needle) {
    char ch;

    out->len = 0;
    ml_text_add(out, "", 0);
    while (!strstr(out->ptr, needle) && recv(fd, &ch, 1, 0) == 1)
        ml_text_add(out, &ch, 1);
}

void ml_sock_ask(int port, const char *request, ml_text *out) {
    int fd = ml_sock_dial(port);

    ml_sock_say(fd, request);
    CHECK(ml_sock_hear(fd, out) == 0);
    close(fd);
}
