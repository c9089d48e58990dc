#include "model/weight_stream.h"

#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "model/export.h"
#include "model/weights_checksum.h"
#include "model/weight_dir.h"

/* A tensor as last published. */
typedef struct kept {
    void *bytes;
    size_t n;
} kept;

struct ml_weight_stream {
    ml_arena arena;
    ml_weight_stream_opts opts;
    kept *kept; /* [n_kept], in the order of the export */
    int32_t n_kept;
    int64_t version, whole; /* the newest; the newest full version, or 0 */
    bool lost;              /* engines do not have the bytes in `kept` */
    size_t chain_bytes;     /* of deltas since the full version */
    /* While a version is written: */
    ml_delta_writer *writer; /* NULL: it will be a full version */
    int32_t at;
    ml_weight_update update;
};

/* --- tensors ------------------------------------------------------------------------ */

/* The initial base of a tensor is the checkpoint's; if the checkpoint has none of the same
 * dtype and size, the version is written in full. */
static ml_status keep_first(ml_weight_stream *s, kept *k, const ml_st_tensor *t,
                            ml_err *err) {
    const ml_st_tensor *base = ml_checkpoint_find(s->opts.from, t->name, NULL);
    bool same = base && base->dtype == t->dtype && base->bytes == t->bytes;

    k->bytes = malloc(t->bytes + 1);
    if (!k->bytes)
        return ml_fail(err, ML_ENOMEM, "out of memory for %zu bytes of %s", t->bytes,
                       t->name.ptr);
    k->n = t->bytes;
    memcpy(k->bytes, same ? base->data : t->data, t->bytes);
    s->n_kept++;
    s->lost |= !same;
    return ML_OK;
}

static ml_status take(void *ud, const ml_st_tensor *t, ml_err *err) {
    ml_weight_stream *s = ud;
    kept *k = &s->kept[s->at++];
    size_t n_changed = 0;
    ml_status st = k->bytes ? ML_OK : keep_first(s, k, t, err);

    if (st != ML_OK)
        return st;
    if (s->writer && !s->lost)
        st = ml_delta_writer_add(s->writer, t->name, k->bytes, t->data, k->n, &n_changed,
                                 err);
    memcpy(k->bytes, t->data, k->n);
    s->update.n_changed += n_changed;
    s->update.n_byte += k->n;
    return st;
}

/* --- versions ----------------------------------------------------------------------- */

/* Older than the last full version, or incomplete. */
static bool is_old(const char *name, int64_t first) {
    int64_t version;
    return ml_version_of_name(name, &version) && version < first;
}

static ml_status write_whole(ml_weight_stream *s, const ml_weights *w, ml_err *err) {
    ml_status st;

    s->update.is_whole = true;
    s->update.dir = ml_version_dir(&s->arena, s->opts.delta.source, s->version + 1);
    st = ml_weight_dir_put(s->update.dir, w, s->opts.spec, s->opts.from,
                           (int64_t)s->opts.delta.file_bytes, err);
    if (st != ML_OK)
        return st;
    s->whole = ++s->version;
    s->chain_bytes = 0;
    s->lost = false;
    return ML_OK;
}

static ml_status write_delta(ml_weight_stream *s, const ml_weights *w, ml_err *err) {
    ml_delta_writer *writer = s->writer;
    ml_status st = ml_weights_checksum(w, s->opts.spec, ml_delta_writer_dir(writer), err);

    s->writer = NULL;
    s->update.dir = ml_version_dir(&s->arena, s->opts.delta.source, s->version + 1);
    if (st == ML_OK)
        st = ml_delta_writer_commit(writer, err);
    else
        ml_delta_writer_abort(writer);
    if (st != ML_OK)
        return st;
    s->version++;
    s->chain_bytes += s->update.n_written;
    return ML_OK;
}

/* Writes the checksum of version 0, with which engines verify that they have these
 * weights. */
static ml_status checksum_base(ml_weight_stream *s, const ml_weights *w, ml_err *err) {
    const char *dir = ml_version_dir(&s->arena, s->opts.delta.source, 0);
    ml_status st = ml_dir_make(dir, err);

    return st == ML_OK ? ml_weights_checksum(w, s->opts.spec, dir, err) : st;
}

static ml_status write_version(ml_weight_stream *s, const ml_weights *w, ml_err *err) {
    size_t most = s->update.n_byte;

    s->update.n_written = s->writer ? ml_delta_writer_bytes(s->writer) : 0;
    if (!s->writer || s->lost || s->chain_bytes + s->update.n_written > most)
        return write_whole(s, w, err);
    if (s->version == 0 && s->update.n_changed == 0)
        return checksum_base(s, w, err);
    return write_delta(s, w, err);
}

ml_status ml_weight_stream_publish(ml_weight_update *out, ml_weight_stream *s,
                                   const ml_weights *w, bool whole, ml_err *err) {
    ml_export_opts how = ml_weight_dir_how(w);
    ml_status st = ml_weight_dir_tidy(s->opts.delta.source, is_old, s->whole, err);

    s->update = (ml_weight_update){ 0 };
    s->at = 0;
    if (st == ML_OK && !whole && !s->lost)
        st = ml_delta_writer_open(&s->writer, &s->opts.delta, s->version + 1, s->version,
                                  err);
    if (st == ML_OK)
        st = ml_export_each(w, s->opts.spec, s->opts.from, &how, take, s, err);
    if (st == ML_OK)
        st = write_version(s, w, err);
    ml_delta_writer_abort(s->writer);
    s->writer = NULL;
    s->lost = s->lost || st != ML_OK;
    s->update.version = s->version;
    *out = s->update;
    return st;
}

/* --- open and close ----------------------------------------------------------- */

ml_status ml_weight_stream_open(ml_weight_stream **out, const ml_weight_stream_opts *o,
                                ml_err *err) {
    ml_arena arena;
    ml_weight_stream *s;
    ml_status st = ml_dir_make(o->delta.source, err);

    if (st == ML_OK) /* versions of another run are deltas to another base */
        st = ml_weight_dir_tidy(o->delta.source, is_old, INT64_MAX, err);
    if (st != ML_OK)
        return st;
    ml_arena_init(&arena, "published weights");
    s = ML_NEW(&arena, ml_weight_stream, 1);
    s->arena = arena;
    s->opts = *o;
    s->kept = ML_NEW(&s->arena, kept, o->from->n_tensor + o->spec->n_param);
    *out = s;
    return ML_OK;
}

void ml_weight_stream_close(ml_weight_stream *s) {
    ml_arena arena;

    if (!s)
        return;
    for (int32_t i = 0; i < s->n_kept; i++)
        free(s->kept[i].bytes);
    arena = s->arena;
    ml_arena_release(&arena);
}
