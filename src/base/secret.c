#include "base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

ml_status ml_secret_take(ml_secret *out, ml_str text, const char *what, ml_err *err) {
    bool fine = text.len > 0 && text.len <= ML_SECRET_MAX;

    for (size_t i = 0; fine && i < text.len; i++)
        fine = text.ptr[i] > ' ' && text.ptr[i] < 0x7f;
    if (!fine)
        return ml_fail(
            err, ML_EUSAGE,
            "%s: a key must have 1 to %d printable ASCII characters and no spaces", what,
            ML_SECRET_MAX);
    memcpy(out->text, text.ptr, text.len);
    out->text[text.len] = 0;
    return ML_OK;
}

static ml_status read_line(ml_secret *out, int fd, const char *path, const char *what,
                           ml_err *err) {
    char text[ML_SECRET_MAX + 3];
    struct stat sb;
    size_t n = 0;
    ssize_t got = 1;

    if (fstat(fd, &sb) == 0 && sb.st_mode & 077)
        return ml_fail(err, ML_EUSAGE,
                       "%s: %s is accessible by other users (mode %03o): run chmod 600 %s",
                       what, path, sb.st_mode & 0777, path);
    while (got > 0 && n < sizeof text) {
        got = read(fd, text + n, sizeof text - n);
        n += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        return ml_fail(err, ML_EIO, "%s: %s: %s", what, path, strerror(errno));
    if (n && text[n - 1] == '\n')
        n--;
    if (n && text[n - 1] == '\r')
        n--;
    return ml_secret_take(out, (ml_str){ text, n }, path, err);
}

ml_status ml_secret_read(ml_secret *out, const char *path, const char *what, ml_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ml_status st;

    if (fd < 0)
        return ml_fail(err, ML_EIO, "%s: %s: %s", what, path, strerror(errno));
    st = read_line(out, fd, path, what, err);
    close(fd);
    return st;
}

ml_status ml_secret_random(ml_secret *out, ml_err *err) {
    unsigned char bytes[32];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return ml_fail(err, ML_EIO, "cannot get random bytes for a key: %s",
                       strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out->text + 2 * i, 3, "%02x", bytes[i]);
    return ML_OK;
}

bool ml_secret_is(const char *key, ml_str given) {
    size_t n = strlen(key);
    volatile unsigned char diff = given.len != n;

    for (size_t i = 0; i < given.len; i++)
        diff = diff | (unsigned char)(given.ptr[i] ^ key[n ? i % n : 0]);
    return diff == 0 && n > 0;
}
