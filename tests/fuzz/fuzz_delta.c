/* Any bytes as a delta of weights.  'x' and 'o': compressed content of a tensor's delta, xor and
 * overwrite.  'v': a published version, its index up to a line end, the header of its file up
 * to the next one, then content; a copy of a checkpoint is brought to that version or a sentence
 * says why not, and afterwards it can be brought to version 0 again. */
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "io/checkpoint.h"
#include "io/local_checkpoint.h"
#include "io/version_dir.h"
#include "io/zst.h"
#include "tests/fuzz/memory_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TENSOR_BYTES 8

static struct {
    char top[64], base[80], copy[80], source[80], version[112], model[112], index[160],
        file[160];
} at;

static void remove_all(void) {
    char command[100];

    snprintf(command, sizeof command, "rm -rf %s", at.top);
    ML_BUG_IF(system(command) != 0);
}

static void write_base(void) {
    const ml_st_tensor t[] = {
        { .name = ml_str_of("a"),
          .dtype = ML_ST_U8,
          .n_dim = 1,
          .shape = { TENSOR_BYTES } },
        { .name = ml_str_of("b"), .dtype = ML_ST_U8, .n_dim = 1, .shape = { TENSOR_BYTES } }
    };
    ml_st_writer *w;
    ml_err err;

    ML_BUG_IF(ml_st_create(&w, at.model, &(ml_st_layout){ .n = 2, .tensor = t }, &err));
    ML_BUG_IF(ml_st_write(w, 0, 0, "01234567", TENSOR_BYTES, &err) ||
              ml_st_write(w, 1, 0, "abcdefgh", TENSOR_BYTES, &err));
    ML_BUG_IF(ml_st_commit(w, &err));
}

static void prepare(void) {
    make_memory_dir(at.top);
    snprintf(at.base, sizeof at.base, "%s/base", at.top);
    snprintf(at.copy, sizeof at.copy, "%s/copy", at.top);
    snprintf(at.source, sizeof at.source, "%s/source", at.top);
    snprintf(at.version, sizeof at.version, "%s/weight_v000001", at.source);
    snprintf(at.model, sizeof at.model, "%s/model.safetensors", at.base);
    snprintf(at.index, sizeof at.index, "%s/model.safetensors.index.json", at.version);
    snprintf(at.file, sizeof at.file, "%s/f", at.version);
    ML_BUG_IF(mkdir(at.base, 0777) || mkdir(at.source, 0777) || mkdir(at.version, 0777));
    write_base();
    atexit(remove_all);
}

static void try_tensor(ml_delta_encoding how, ml_str content) {
    char bytes[TENSOR_BYTES] = { 0 };
    ml_text packed = { 0 };
    ml_err err = { 0 };

    ML_BUG_IF(ml_zst_pack(&packed, content, 1, &err));
    if (ml_delta_apply(bytes, sizeof bytes, how, (ml_str){ packed.ptr, packed.len }, "t",
                       &err))
        ML_BUG_IF(!strstr(err.msg, "delta of t"));
    ml_text_release(&packed);
    if (ml_delta_apply(bytes, sizeof bytes, how, content, "t", &err))
        ML_BUG_IF(!err.msg[0]);
}

static ml_str take_line(ml_str *rest) {
    const char *end = rest->len ? memchr(rest->ptr, '\n', rest->len) : NULL;
    ml_str line = { rest->ptr, end ? (size_t)(end - rest->ptr) : rest->len };
    size_t used = line.len + (end != NULL);

    *rest = (ml_str){ rest->ptr + used, rest->len - used };
    return line;
}

static void try_version(ml_str rest) {
    ml_str index = take_line(&rest), header = take_line(&rest);
    ml_text file = { 0 };
    ml_err err = { 0 };

    for (int i = 0; i < 8; i++)
        ml_text_add(&file, &(char){ (char)(header.len >> 8 * i & 255) }, 1);
    ml_text_add(&file, header.ptr, header.len);
    ml_text_add(&file, rest.ptr, rest.len);
    put_file(at.index, index.ptr, index.len);
    put_file(at.file, file.ptr, file.len);
    ml_text_release(&file);
    if (ml_local_checkpoint_pull(at.copy, at.base, at.source, 1, &err))
        ML_BUG_IF(!err.msg[0]);
    ML_BUG_IF(ml_local_checkpoint_pull(at.copy, at.base, at.source, 0, &err));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_str rest = { (const char *)data + 1, size ? size - 1 : 0 };

    if (!at.top[0])
        prepare();
    if (size && data[0] == 'x')
        try_tensor(ML_DELTA_XOR, rest);
    else if (size && data[0] == 'o')
        try_tensor(ML_DELTA_OVERWRITE, rest);
    else if (size && data[0] == 'v')
        try_version(rest);
    return 0;
}
