#include "base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE ((size_t)1 << 20)

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

static ml_status read_all(ml_text *out, int fd, const char *path, const char *what,
                          ml_err *err) {
    char piece[4096];
    struct stat sb;
    ssize_t got;

    if (fstat(fd, &sb) == 0 && sb.st_mode & 077)
        return ml_fail(err, ML_EUSAGE,
                       "%s: %s is accessible by other users (mode %03o): run chmod 600 %s",
                       what, path, sb.st_mode & 0777, path);
    do {
        got = read(fd, piece, sizeof piece);
        ml_text_add(out, piece, got > 0 ? (size_t)got : 0);
    } while (got > 0 && out->len <= MAX_FILE);
    if (got < 0)
        return ml_fail(err, ML_EIO, "%s: %s: %s", what, path, strerror(errno));
    if (out->len > MAX_FILE)
        return ml_fail(err, ML_EUSAGE, "%s: %s has more than %zu bytes: it is no key file",
                       what, path, MAX_FILE);
    return ML_OK;
}

ml_status ml_secret_read_file(ml_text *out, const char *path, const char *what,
                              ml_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ml_status st;

    if (fd < 0)
        return ml_fail(err, ML_EIO, "%s: %s: %s", what, path, strerror(errno));
    st = read_all(out, fd, path, what, err);
    close(fd);
    return st;
}

ml_status ml_secret_read(ml_secret *out, const char *path, const char *what, ml_err *err) {
    ml_text text = { 0 };
    ml_status st = ml_secret_read_file(&text, path, what, err);
    size_t n = text.len;

    if (n && text.ptr[n - 1] == '\n')
        n--;
    if (n && text.ptr[n - 1] == '\r')
        n--;
    if (st == ML_OK)
        st = ml_secret_take(out, (ml_str){ text.ptr ? text.ptr : "", n }, path, err);
    ml_text_release(&text);
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

ml_status ml_secret_find(ml_secret *out, const char *text, const char *file,
                         const char *flag, ml_err *err) {
    char name[80];

    *out = (ml_secret){ 0 };
    snprintf(name, sizeof name, "%s%s", flag, file ? "-file" : "");
    if (file)
        return ml_secret_read(out, file, name, err);
    return text ? ml_secret_take(out, ml_str_of(text), name, err) : ML_OK;
}

const char *ml_secret_text(const ml_secret *s) {
    return s->text[0] ? s->text : NULL;
}
