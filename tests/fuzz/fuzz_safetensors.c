/* Any bytes as a safetensors file or, when they begin with '{', as the index of a
 * checkpoint and as the header of a file.  A file that opens has tensors that lie one after the other and can be read;
 * written again it is the same file, and it is a checkpoint. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bug.h"
#include "io/checkpoint.h"
#include "tests/fuzz/memory_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One directory for a single file, one with a shard for indices. */
static struct { char single[64], sharded[64], model[96], shard[96], index[128]; } at;

static void remove_all(void) {
    unlink(at.model);
    unlink(at.shard);
    unlink(at.index);
    rmdir(at.single);
    rmdir(at.sharded);
}

static void write_shard(void) {
    const ml_st_tensor t[] = { { .name = ml_str_of("a"), .dtype = ML_ST_U8 },
                               { .name = ml_str_of("b"), .dtype = ML_ST_U8 } };
    ml_st_writer *w;
    ml_err err;

    ML_BUG_IF(ml_st_create(&w, at.shard, &(ml_st_layout){ .n = 2, .tensor = t }, &err));
    ML_BUG_IF(ml_st_write(w, 0, 0, "x", 1, &err) || ml_st_write(w, 1, 0, "y", 1, &err));
    ML_BUG_IF(ml_st_commit(w, &err));
}

static void prepare(void) {
    make_memory_dir(at.single);
    make_memory_dir(at.sharded);
    snprintf(at.model, sizeof at.model, "%s/model.safetensors", at.single);
    snprintf(at.shard, sizeof at.shard, "%s/s", at.sharded);
    snprintf(at.index, sizeof at.index, "%s/model.safetensors.index.json", at.sharded);
    write_shard();
    atexit(remove_all);
}

static void check_tensors(const ml_st_file *f, ml_str image) {
    size_t end = 8 + f->header.len;

    for (int32_t i = 0; i < f->n; i++) {
        const ml_st_tensor *t = &f->tensor[i];
        ML_BUG_IF(t->offset != end || (const char *)t->data != image.ptr + end);
        ML_BUG_IF(ml_st_find(f, t->name) != t);
        end += t->bytes;
    }
    ML_BUG_IF(end != image.len);
}

/* The pieces of the file, written the way a program would. */
static void check_rewritten(const ml_st_file *f, ml_str image) {
    ml_st_writer *w;
    ml_file again;
    ml_err err;

    ML_BUG_IF(ml_st_create_like(&w, at.model, f, &err));
    for (int32_t i = f->n - 1; i >= 0; i--)
        ML_BUG_IF(ml_st_write(w, i, 0, f->tensor[i].data, f->tensor[i].bytes, &err));
    ML_BUG_IF(ml_st_commit(w, &err));
    ML_BUG_IF(ml_file_map(&again, at.model, &err) || !ml_str_eq(again.bytes, image));
    ml_file_unmap(&again);
}

static void check_checkpoint(const ml_st_file *f) {
    ml_checkpoint *c;
    ml_err err = { 0 };

    if (ml_checkpoint_open(&c, at.single, &err)) { /* codes of a quantization it lacks */
        ML_BUG_IF(!err.msg[0]);
        return;
    }
    ML_BUG_IF(c->n_tensor != f->n);
    for (int32_t i = 0; i < f->n; i++)
        ML_BUG_IF(!ml_checkpoint_find(c, f->tensor[i].name, NULL));
    ml_checkpoint_close(c);
}

static void try_index(const uint8_t *data, size_t size) {
    ml_checkpoint *c;
    ml_err err = { 0 };

    put_file(at.index, data, size);
    if (ml_checkpoint_open(&c, at.sharded, &err)) {
        ML_BUG_IF(!err.msg[0]);
        return;
    }
    ML_BUG_IF(c->n_file != 1 || c->n_tensor != 2);
    ml_checkpoint_close(c);
}

static void try_file(ml_str image) {
    ml_st_file *f;
    ml_err err = { 0 };

    if (ml_st_open_image(&f, image, "fuzz", &err)) {
        ML_BUG_IF(!err.msg[0]);
        return;
    }
    check_tensors(f, image);
    check_rewritten(f, image);
    check_checkpoint(f);
    ml_st_close(f);
}

/* Header, newline, data: with the length put in front of it, so that a changed header is
 * not merely one of a wrong length. */
static void try_header(const uint8_t *data, size_t size) {
    const uint8_t *newline = memchr(data, '\n', size);
    size_t n_header = newline ? (size_t)(newline - data) : size;
    ml_text image = { 0 };

    for (int i = 0; i < 8; i++)
        ml_text_add(&image, &(char){ (char)(n_header >> 8 * i & 255) }, 1);
    ml_text_add(&image, (const char *)data, n_header);
    if (newline)
        ml_text_add(&image, (const char *)newline + 1, size - n_header - 1);
    try_file((ml_str){ image.ptr, image.len });
    ml_text_release(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!at.single[0])
        prepare();
    if (size && data[0] == '{') {
        try_index(data, size);
        try_header(data, size);
    } else {
        try_file((ml_str){ (const char *)data, size });
    }
    return 0;
}
