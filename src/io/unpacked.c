#include "io/unpacked.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "io/zst.h"

typedef struct temp_file {
    const char *path; /* of the compressed file */
    const char *dir;
    int fd;
} temp_file;

static ml_status cannot_write(const temp_file *t, ml_err *err) {
    return ml_fail(err, ML_EIO,
                   "%s: cannot write its content to a temporary file in %s: %s; set TMPDIR "
                   "to a directory with enough room",
                   t->path, t->dir, strerror(errno));
}

static ml_status open_temp(temp_file *t, ml_err *err) {
    const char *dir = getenv("TMPDIR");
    ml_text name = { 0 };

    t->dir = dir && *dir ? dir : "/tmp";
    ml_text_printf(&name, "%s/miles-rows-XXXXXX", t->dir);
    t->fd = mkostemp(name.ptr, O_CLOEXEC);
    if (t->fd >= 0)
        unlink(name.ptr);
    ml_text_release(&name);
    return t->fd < 0 ? cannot_write(t, err) : ML_OK;
}

static ml_status append(void *ud, ml_str piece, ml_err *err) {
    const temp_file *t = ud;

    while (piece.len) {
        ssize_t n = write(t->fd, piece.ptr, piece.len);
        if (n < 0 && errno != EINTR)
            return cannot_write(t, err);
        piece.ptr += n > 0 ? n : 0;
        piece.len -= n > 0 ? (size_t)n : 0;
    }
    return ML_OK;
}

/* --- gzip ---------------------------------------------------------------------------- */

enum { IN_BYTES = 1 << 26, OUT_BYTES = 1 << 16 };

/* Gives zlib, whose counts have 32 bits, the next bytes; drops those before. */
static void refill(z_stream *z, const ml_file *f, size_t *at) {
    size_t n = f->bytes.len - *at < IN_BYTES ? f->bytes.len - *at : IN_BYTES;

    ml_file_forget(f, *at > IN_BYTES ? *at - IN_BYTES : 0, *at < IN_BYTES ? *at : IN_BYTES);
    z->next_in = (Bytef *)(uintptr_t)(f->bytes.ptr + *at);
    z->avail_in = (uInt)n;
    *at += n;
}

/* Members may follow each other. */
static ml_status inflate_all(z_stream *z, const ml_file *f, temp_file *to, ml_err *err) {
    unsigned char piece[OUT_BYTES];
    size_t at = 0;
    int r = Z_OK;

    while (r == Z_OK || r == Z_BUF_ERROR) {
        ml_status st;
        if (!z->avail_in && at == f->bytes.len)
            return ml_fail(err, ML_EFORMAT, "%s: the gzip file is truncated", f->path);
        if (!z->avail_in)
            refill(z, f, &at);
        z->next_out = piece;
        z->avail_out = sizeof piece;
        r = inflate(z, Z_NO_FLUSH);
        st = append(to, (ml_str){ (const char *)piece, sizeof piece - z->avail_out }, err);
        if (st)
            return st;
        if (r == Z_STREAM_END && (z->avail_in || at < f->bytes.len))
            r = inflateReset(z);
    }
    return r == Z_STREAM_END ? ML_OK
                             : ml_fail(err, ML_EFORMAT, "%s: not a valid gzip file: %s",
                                       f->path, z->msg ? z->msg : "damaged data");
}

static ml_status gunzip(temp_file *to, ml_err *err) {
    z_stream z = { 0 };
    ml_file f = { 0 };
    ml_status st = ml_file_map(&f, to->path, err);

    if (st)
        return st;
    st = inflateInit2(&z, 15 + 16) == Z_OK
             ? inflate_all(&z, &f, to, err)
             : ml_fail(err, ML_ENOMEM, "out of memory for zlib");
    inflateEnd(&z);
    ml_file_unmap(&f);
    return st;
}

/* --- files ---------------------------------------------------------------------------- */

ml_status ml_file_map_unpacked(ml_file *out, const char *path, ml_err *err) {
    temp_file t = { .path = path, .fd = -1 };
    const char *dot = strrchr(path, '.');
    bool gz = dot && strcmp(dot, ".gz") == 0;
    ml_status st;

    *out = (ml_file){ 0 };
    if (!gz && (!dot || strcmp(dot, ".zst") != 0))
        return ml_file_map(out, path, err);
    st = open_temp(&t, err);
    if (!st)
        st = gz ? gunzip(&t, err) : ml_zst_stream(path, append, &t, err);
    if (!st)
        st = ml_file_map_fd(out, t.fd, path, err);
    if (t.fd >= 0)
        close(t.fd);
    return st;
}
