#include "io/local_checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/log.h"
#include "io/checkpoint.h"
#include "io/copy_files.h"
#include "io/version_dir.h"

#define SYNC ML_COPY_SYNC
#define CHECKSUM_FILE                                                                      \
    "weights.crc64" /* checksums of the weights; copied from the versions that have it */

typedef struct copy {
    ml_arena arena;
    const char *dir, *base, *source, *state;
    ml_copy_files files; /* written by an earlier pull */
} copy;

static const char *in_copy(copy *c, const char *name) {
    return ml_arena_printf(&c->arena, "%s/%s", c->dir, name);
}

/* --- the lock and the version -------------------------------------------------------- */

static ml_status lock(ml_hold *out, const char *path, int how, ml_err *err) {
    out->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (out->fd >= 0 && flock(out->fd, how) == 0)
        return ML_OK;
    ml_fail(err, ML_EIO, "%s: cannot lock: %s", path, strerror(errno));
    ml_local_checkpoint_release(out);
    return ML_EIO;
}

void ml_local_checkpoint_release(ml_hold *h) {
    if (h->fd >= 0)
        close(h->fd);
    h->fd = -1;
}

/* -1: the copy has no version. */
static int64_t version_of(copy *c) {
    const ml_json *root, *v;
    ml_file f = { 0 };
    int64_t version = -1;
    char digits[24] = "";

    if (ml_file_map(&f, c->state, NULL) != ML_OK)
        return -1;
    if (ml_json_parse(&root, &c->arena, f.bytes, c->state, NULL) == ML_OK &&
        (v = ml_json_get(root, "version")) != NULL && v->text.len > 0 &&
        v->text.len < sizeof digits) {
        memcpy(digits, v->text.ptr, v->text.len);
        version = strtoll(digits, NULL, 10);
    }
    ml_file_unmap(&f);
    return version;
}

static ml_status set_version(const copy *c, int64_t version, ml_err *err) {
    char text[60];

    snprintf(text, sizeof text, "{\"version\": \"%06lld\"}", (long long)version);
    return ml_file_replace(c->state, ml_str_of(text), err);
}

static ml_status remove_file(const char *path, ml_err *err) {
    if (unlink(path) == 0 || errno == ENOENT)
        return ML_OK;
    return ml_fail(err, ML_EIO, "%s: cannot remove: %s", path, strerror(errno));
}

/* --- full checkpoints -------------------------------------------------------------- */

static ml_status copy_file(const char *from, const char *to, ml_err *err) {
    ml_file f;
    ml_status st = ml_file_map(&f, from, err);

    if (st != ML_OK)
        return st;
    st = ml_file_replace(to, f.bytes, err);
    ml_file_unmap(&f);
    return st;
}

static bool is_file(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISREG(sb.st_mode);
}

/* A publisher writes regular files.  The checkpoint that the server was started with may
 * consist of links, as in the Hub's cache. */
static bool is_source_file(const copy *c, const char *from, const char *path) {
    struct stat sb;

    return from == c->base ? is_file(path) : lstat(path, &sb) == 0 && S_ISREG(sb.st_mode);
}

/* The regular files of `from`, and always the checksum file, which not every version
 * has. */
static ml_status list_files(ml_names *out, copy *c, const char *from, ml_err *err) {
    ml_names all;
    ml_status st = ml_dir_list(&all, from, &c->arena, err);

    if (st != ML_OK)
        return st;
    *out = (ml_names){ ML_NEW(&c->arena, const char *, all.n + 1), 0 };
    for (int32_t i = 0; i < all.n; i++)
        if (strcmp(all.name[i], CHECKSUM_FILE) != 0 &&
            is_source_file(c, from, ml_arena_printf(&c->arena, "%s/%s", from, all.name[i])))
            out->name[out->n++] = all.name[i];
    out->name[out->n++] = CHECKSUM_FILE;
    return ML_OK;
}

static ml_status copy_all(copy *c, const char *from, const ml_names *names, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; st == ML_OK && i < names->n; i++) {
        const char *path = ml_arena_printf(&c->arena, "%s/%s", from, names->name[i]);
        st = is_source_file(c, from, path)
                 ? copy_file(path, in_copy(c, names->name[i]), err)
                 : remove_file(in_copy(c, names->name[i]), err);
    }
    return st;
}

static ml_status begin_with(copy *c, const char *from, int64_t version, ml_err *err) {
    ml_names names;
    ml_status st = list_files(&names, c, from, err);

    ml_log(ML_LOG_INFO, "weight_sync: %s becomes a copy of %s, version %lld", c->dir, from,
           (long long)version);
    if (st == ML_OK)
        st = ml_copy_files_claim(&c->files, &names, c->dir, &c->arena, err);
    if (st == ML_OK)
        st = remove_file(c->state, err);
    if (st == ML_OK)
        st = copy_all(c, from, &names, err);
    if (st == ML_OK)
        st = ml_copy_files_settle(&c->files, &names, c->dir, &c->arena, err);
    if (st == ML_OK)
        st = ml_copy_files_read(&c->files, c->dir, &c->arena, err);
    return st == ML_OK ? set_version(c, version, err) : st;
}

/* --- deltas ------------------------------------------------------------------------- */

/* Applies one delta: the copy's files, opened for writing on demand. */
typedef struct patch {
    const ml_version *v;
    const ml_copy_files *files;
    const ml_checkpoint *now;
    ml_arena *arena;
    int *fd; /* [now->n_file] */
    uint8_t *bytes;
    ml_map file, tensor; /* from the index: names to file numbers */
    int64_t n_tensor;    /* so far */
} patch;

/* Opens a file of the copy for writing, if it has no other hard link; otherwise -1 with
 * errno. */
static int open_own(const ml_copy_files *files, const char *path) {
    const char *slash = strrchr(path, '/');
    struct stat sb;
    int fd;

    errno = EPERM;
    if (!ml_copy_files_has(files, slash ? slash + 1 : path))
        return -1;
    fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || (fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_nlink == 1))
        return fd;
    close(fd);
    errno = EMLINK;
    return -1;
}

static int fd_of(patch *p, const ml_st_file *file) {
    int32_t i = 0;

    while (p->now->file[i] != file)
        i++;
    if (p->fd[i] < 0)
        p->fd[i] = open_own(p->files, file->path);
    return p->fd[i];
}

static ml_status write_tensor(patch *p, const ml_st_file *file, const ml_st_tensor *t,
                              ml_err *err) {
    int fd = fd_of(p, file);
    size_t done = 0;

    while (fd >= 0 && done < t->bytes) {
        ssize_t n = pwrite(fd, p->bytes + done, t->bytes - done, (off_t)(t->offset + done));
        if (n < 0 && errno != EINTR)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    if (done < t->bytes)
        return ml_fail(err, ML_EIO, "%s: cannot modify: %s", file->path, strerror(errno));
    return ML_OK;
}

/* Computes the tensor after its delta, in p->bytes. */
static ml_status compute(patch *p, const ml_st_tensor *t, const ml_st_tensor *delta,
                         ml_err *err) {
    uint8_t *grown = realloc(p->bytes, t->bytes + 1);

    if (!grown)
        return ml_fail(err, ML_ENOMEM, "out of memory for %zu bytes of %s", t->bytes,
                       t->name.ptr);
    p->bytes = grown;
    memcpy(p->bytes, t->data, t->bytes);
    return ml_delta_apply(p->bytes, t->bytes, p->v->encoding,
                          (ml_str){ delta->data, delta->bytes }, t->name.ptr, err);
}

static ml_status apply_tensor(patch *p, const char *path, const ml_st_tensor *delta,
                              ml_str checksum, ml_err *err) {
    const ml_st_file *file;
    const ml_st_tensor *t = ml_checkpoint_find(p->now, delta->name, &file);
    char sum[ML_CHECKSUM_TEXT];
    ml_status st;

    if (!t)
        return ml_fail(err, ML_EFORMAT,
                       "%s: changes %s, which the checkpoint does not have", path,
                       delta->name.ptr);
    st = compute(p, t, delta, err);
    if (st != ML_OK) {
        ml_err_prefix(err, "%s", path);
        return st;
    }
    ml_checksum_write(sum, p->v->checksum, p->bytes, t->bytes);
    if (!ml_str_is(checksum, sum))
        return ml_fail(err, ML_EFORMAT,
                       "%s: %s has the %s checksum %s after its delta, not the published "
                       "one: the delta is damaged, or was applied to another checkpoint",
                       path, t->name.ptr, ml_checksum_name[p->v->checksum], sum);
    p->n_tensor++;
    return write_tensor(p, file, t, err);
}

static void index_meta(ml_map *out, const ml_st_file *f, ml_arena *a) {
    ml_map_init(out, a, f->n_meta);
    for (int32_t i = 0; i < f->n_meta; i++)
        ml_map_add(out, f->meta[i].key, i);
}

/* The index is authoritative: a file contains exactly the tensors it lists. */
static ml_status apply_file(patch *p, int64_t number, ml_str name, ml_err *err) {
    const char *path =
        ml_arena_printf(p->arena, "%s/%.*s", p->v->dir, (int)name.len, name.ptr);
    ml_map meta;
    ml_st_file *f = NULL;
    ml_status st;

    st = ml_st_open(&f, path, err);
    if (st != ML_OK)
        return st;
    index_meta(&meta, f, p->arena);
    for (int32_t i = 0; st == ML_OK && i < f->n; i++) {
        ml_str tensor = f->tensor[i].name;
        int64_t at = ml_map_get(&meta, tensor, -1);
        if (ml_map_get(&p->tensor, tensor, -1) != number)
            st = ml_fail(err, ML_EFORMAT, "%s contains %s, which is not in the index", path,
                         tensor.ptr);
        else
            st = apply_tensor(p, path, &f->tensor[i],
                              at < 0 ? ml_str_of("") : f->meta[at].value, err);
    }
    ml_st_close(f);
    return st;
}

static ml_status apply_files(patch *p, ml_err *err) {
    const ml_json *map = p->v->weight_map;
    ml_str *name = ML_NEW(p->arena, ml_str, map->n + 1);
    ml_status st = ML_OK;

    ml_map_init(&p->file, p->arena, 16);
    ml_map_init(&p->tensor, p->arena, map->n);
    for (const ml_json *v = map->child; v; v = v->next) {
        if (ml_map_add(&p->file, v->text, p->file.n))
            name[p->file.n - 1] = v->text;
        ml_map_add(&p->tensor, v->key, ml_map_get(&p->file, v->text, -1));
    }
    for (int64_t i = 0; st == ML_OK && i < p->file.n; i++)
        st = apply_file(p, i, name[i], err);
    if (st == ML_OK && p->n_tensor != p->tensor.n)
        st = ml_fail(err, ML_EFORMAT, "%s: its index has %lld tensors, its files %lld",
                     p->v->dir, (long long)p->tensor.n, (long long)p->n_tensor);
    return st;
}

static ml_status close_patch(patch *p, ml_status st, ml_err *err) {
    for (int32_t i = 0; i < p->now->n_file; i++) {
        if (p->fd[i] < 0)
            continue;
        if (fsync(p->fd[i]) != 0 && st == ML_OK)
            st = ml_fail(err, ML_EIO, "%s: cannot sync: %s", p->now->file[i]->path,
                         strerror(errno));
        close(p->fd[i]);
    }
    free(p->bytes);
    return st;
}

/* The checksum file of the previous version would not match this one. */
static ml_status copy_checksum(copy *c, const char *version_dir, ml_err *err) {
    const char *from = ml_arena_printf(&c->arena, "%s/" CHECKSUM_FILE, version_dir);

    return is_file(from) ? copy_file(from, in_copy(c, CHECKSUM_FILE), err)
                         : remove_file(in_copy(c, CHECKSUM_FILE), err);
}

static ml_status apply(copy *c, const ml_version *v, ml_err *err) {
    ml_checkpoint *now;
    patch p = { .v = v, .files = &c->files, .arena = &c->arena };
    ml_status st = ml_checkpoint_open(&now, c->dir, err);

    if (st != ML_OK)
        return st;
    p.now = now;
    p.fd = ML_NEW(&c->arena, int, now->n_file);
    for (int32_t i = 0; i < now->n_file; i++)
        p.fd[i] = -1;
    st = remove_file(c->state, err);
    if (st == ML_OK)
        st = apply_files(&p, err);
    st = close_patch(&p, st, err);
    ml_checkpoint_close(now);
    if (st == ML_OK)
        st = copy_checksum(c, v->dir, err);
    return st == ML_OK ? set_version(c, v->version, err) : st;
}

/* --- pulling ------------------------------------------------------------------------- */

/* Versions from the target back to the copy's version, or to a full checkpoint; the last
 * of the list is applied first. */
typedef struct chain {
    ml_version *v;
    int32_t n, cap;
} chain;

static void add_version(chain *x, const ml_version *v, ml_arena *a) {
    if (x->n == x->cap) {
        ml_version *grown = ML_NEW(a, ml_version, 2 * x->cap + 16);
        if (x->n)
            memcpy(grown, x->v, (size_t)x->n * sizeof *grown);
        x->v = grown;
        x->cap = 2 * x->cap + 16;
    }
    x->v[x->n++] = *v;
}

static ml_status list_chain(chain *x, copy *c, int64_t has, int64_t target, ml_err *err) {
    ml_status st = ML_OK;
    struct stat sb;
    ml_version v;

    for (int64_t at = target; st == ML_OK && at > 0 && at != has; at = v.base) {
        st = ml_version_read(&v, c->source, at, &c->arena, err);
        if (st != ML_OK)
            return st;
        if (lstat(v.dir, &sb) == 0 && S_ISLNK(sb.st_mode))
            return ml_fail(err, ML_EFORMAT, "%s is a symbolic link; expected a directory",
                           v.dir);
        add_version(x, &v, &c->arena);
        if (!v.is_delta)
            return ML_OK;
    }
    return st;
}

/* Initializes the copy for the chain; nothing to do if the chain ends at the copy's
 * version. */
static ml_status begin(copy *c, chain *x, int64_t has, ml_err *err) {
    const ml_version *first = x->n ? &x->v[x->n - 1] : NULL;

    if (first && !first->is_delta) {
        x->n--;
        return begin_with(c, first->dir, first->version, err);
    }
    if (has >= 0 && first && first->base == has)
        return ML_OK;
    return begin_with(c, c->base, 0, err);
}

/* Copies the publisher's checksum file for version 0, which shows whether this engine
 * started with the same weights. */
static ml_status pull_base(copy *c, ml_err *err) {
    const char *dir = ml_version_dir(&c->arena, c->source, 0);
    ml_status st = version_of(c) == 0 ? ML_OK : begin_with(c, c->base, 0, err);

    return st == ML_OK && is_file(ml_arena_printf(&c->arena, "%s/" CHECKSUM_FILE, dir))
               ? copy_checksum(c, dir, err)
               : st;
}

static ml_status pull(copy *c, int64_t target, ml_err *err) {
    int64_t has = version_of(c);
    chain x = { 0 };
    ml_status st;

    if (target == 0)
        return pull_base(c, err);
    if (has >= target)
        return ML_OK;
    st = list_chain(&x, c, has, target, err);
    if (st == ML_OK)
        st = begin(c, &x, has, err);
    while (st == ML_OK && x.n > 0)
        st = apply(c, &x.v[--x.n], err);
    return st;
}

static void init_copy(copy *c, const char *dir) {
    *c = (copy){ .dir = dir };
    ml_arena_init(&c->arena, "a copy of the weights");
    c->state = in_copy(c, SYNC "/state.json");
}

ml_status ml_local_checkpoint_pull(const char *dir, const char *base, const char *source,
                                   int64_t target, ml_err *err) {
    ml_hold hold = { -1 };
    ml_status st;
    copy c;

    init_copy(&c, dir);
    c.base = base;
    c.source = source;
    st = ml_copy_dir_check(dir, &c.arena, err); /* before anything is written there */
    if (st == ML_OK)
        st = ml_dir_make(in_copy(&c, SYNC), err);
    if (st == ML_OK)
        st = lock(&hold, in_copy(&c, SYNC "/lock"), LOCK_EX, err);
    if (st == ML_OK)
        st = ml_copy_files_read(&c.files, dir, &c.arena, err);
    if (st == ML_OK)
        st = pull(&c, target, err);
    ml_local_checkpoint_release(&hold);
    ml_arena_release(&c.arena);
    return st;
}

static ml_status fail_version(const char *dir, int64_t has, int64_t version, ml_err *err) {
    if (has < 0)
        return ml_fail(err, ML_EPEER, "%s has no published version; expected version %lld",
                       dir, (long long)version);
    return ml_fail(err, ML_EPEER, "%s has published version %lld; expected version %lld",
                   dir, (long long)has, (long long)version);
}

ml_status ml_local_checkpoint_hold(ml_hold *out, const char *dir, int64_t version,
                                   ml_err *err) {
    const char *path;
    int64_t has;
    ml_status st = ML_OK;
    copy c;

    *out = (ml_hold){ -1 };
    init_copy(&c, dir);
    path = in_copy(&c, SYNC "/lock");
    if (is_file(path))
        st = lock(out, path, LOCK_SH, err);
    has = version_of(&c);
    if (st == ML_OK && version >= 0 && has != version) {
        st = fail_version(dir, has, version, err);
        ml_local_checkpoint_release(out);
    }
    ml_arena_release(&c.arena);
    return st;
}

void ml_local_checkpoint_disown(const char *dir) {
    copy c;

    init_copy(&c, dir);
    remove_file(c.state, NULL); /* an incomplete copy has no version */
    ml_arena_release(&c.arena);
}
