/* Files of torch.save: tensors equal those that torch reads, values equal the JSON of the same
 * object, and damaged files are refused with a sentence.  Nothing in a pickle is executed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "io/pickle_json.h"
#include "io/torch_file.h"
#include "tests/support/json_text.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define BIN "tests/golden/formats/bin/"

static void compare(const ml_torch_file *f, const ml_st_tensor *want) {
    const ml_pickle *v = ml_pickle_get(f->root, want->name.ptr);
    ml_torch_tensor t;
    ml_err err = { 0 };
    char *got;

    if (!v || ml_torch_tensor_of(&t, f, v, &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s: %s", want->name.ptr, err.msg);
        return;
    }
    CHECK(t.dtype == want->dtype && t.n_dim == want->n_dim && t.bytes == want->bytes);
    CHECK(!memcmp(t.shape, want->shape, sizeof *t.shape * (size_t)t.n_dim));
    got = malloc(t.bytes + 1);
    if (t.bytes) { /* in two parts */
        size_t size = 0;
        int64_t n, half;
        ml_st_size(t.dtype, NULL, 0, &size);
        n = (int64_t)(t.bytes / size);
        half = n / 2;
        ml_torch_read(&t, 0, half, got);
        ml_torch_read(&t, half, n - half, got + (size_t)half * size);
    }
    if (memcmp(got, want->data, want->bytes) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s: %s differs", f->path, want->name.ptr);
    free(got);
}

static void compare_file(const char *path) {
    ml_torch_file *f = NULL;
    ml_st_file *golden = NULL;
    ml_err err = { 0 };

    CHECK(ml_st_open(&golden, BIN "golden.safetensors", &err) == ML_OK);
    if (ml_torch_open(&f, path, &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    CHECK(ml_pickle_items(f->root)->n == 2 * golden->n);
    for (int32_t i = 0; i < golden->n; i++)
        compare(f, &golden->tensor[i]);
    ml_torch_close(f);
    ml_st_close(golden);
}

static void zip_tensors(void) {
    compare_file(BIN "pytorch_model.bin");
}

static void legacy_tensors(void) {
    compare_file(BIN "legacy.bin");
}

static int by_key(const void *a, const void *b) {
    const ml_json *x = *(const ml_json *const *)a, *y = *(const ml_json *const *)b;
    return strcmp(x->key.ptr, y->key.ptr);
}

/* With the keys of objects sorted, as in the golden file. */
static const ml_json *sorted(const ml_json *v, ml_arena *a) {
    const ml_json **child = ML_NEW(a, const ml_json *, v->n);
    ml_json *own = ML_NEW(a, ml_json, v->n + 1), *top = ML_NEW(a, ml_json, 1);
    int32_t n = 0;

    for (const ml_json *c = v->child; c; c = c->next)
        child[n++] = c;
    for (int32_t i = 0; i < n && v->type == ML_JSON_OBJECT; i++) {
        ml_json *copy = ML_NEW(a, ml_json, 1);
        *copy = *child[i];
        copy->key.ptr = ml_arena_str(a, copy->key.ptr, copy->key.len);
        child[i] = copy;
    }
    if (v->type == ML_JSON_OBJECT)
        qsort(child, (size_t)n, sizeof *child, by_key);
    *top = *v;
    for (int32_t i = 0; i < n; i++) {
        own[i] = *sorted(child[i], a);
        own[i].next = i + 1 < n ? &own[i + 1] : NULL;
    }
    top->child = n ? own : NULL;
    return top;
}

static void json_of(ml_text *out, ml_str text, ml_arena *a) {
    const ml_json *v;
    ml_err err = { 0 };

    if (ml_json_parse(&v, a, text, "json", &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    else
        ml_json_text(out, sorted(v, a));
}

static void python_values(void) {
    ml_torch_file *f = NULL;
    ml_file golden = { 0 };
    ml_text json = { 0 }, want = { 0 }, got = { 0 };
    ml_arena a;
    ml_err err = { 0 };

    ml_arena_init(&a, "test");
    CHECK(ml_file_map(&golden, BIN "rollout_state.json", &err) == ML_OK);
    CHECK(ml_torch_open(&f, BIN "rollout_state.pt", &err) == ML_OK);
    if (ml_pickle_json(&json, f->root, f->path, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    json_of(&want, golden.bytes, &a);
    json_of(&got, (ml_str){ json.ptr, json.len }, &a);
    CHECK_HAS(want.ptr, "1180591620717411303424");
    if (strcmp(want.ptr, got.ptr) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s\n%s", want.ptr, got.ptr);
    ml_torch_close(f);
    ml_file_unmap(&golden);
    ml_text_release(&json);
    ml_text_release(&want);
    ml_text_release(&got);
    ml_arena_release(&a);
}

/* Every prefix of a file is refused, and every changed byte is read or refused. */
static void damaged(const char *path) {
    ml_file file;
    ml_err err = { 0 };
    char *copy;

    CHECK(ml_file_map(&file, path, &err) == ML_OK);
    copy = malloc(file.bytes.len);
    memcpy(copy, file.bytes.ptr, file.bytes.len);
    for (size_t n = 0; n < file.bytes.len; n += 7) {
        ml_torch_file *f = NULL;
        err.msg[0] = 0;
        CHECK(ml_torch_open_image(&f, (ml_str){ copy, n }, "x.bin", &err) != ML_OK);
        CHECK_HAS(err.msg, "x.bin");
        ml_torch_close(f);
    }
    for (size_t i = 0; i < file.bytes.len; i++) {
        ml_torch_file *f = NULL;
        copy[i] ^= 0x55;
        err.msg[0] = 0;
        if (ml_torch_open_image(&f, (ml_str){ copy, file.bytes.len }, "x.bin", &err) !=
            ML_OK)
            CHECK_HAS(err.msg, "x.bin");
        ml_torch_close(f);
        copy[i] ^= 0x55;
    }
    free(copy);
    ml_file_unmap(&file);
}

static void damaged_files(void) {
    damaged(BIN "pytorch_model.bin");
    damaged(BIN "legacy.bin");
}

/* Pickles that no program should accept, and what is said of them. */
static void bad_pickles(void) {
#define P(text, message)                                                                   \
    { { text, sizeof text - 1 }, message }
    static const struct {
        ml_str bytes;
        const char *message;
    } rows[] = {
        P("", "begins with the byte 0x80"),
        P("\x80\x01N.", "another protocol than 2 to 5"),
        P("\x80\x02", "ends at byte 2"),
        P("\x80\x02.", "exactly one value"),
        P("\x80\x02NN.", "exactly one value"),
        P("\x80\x02X\xff\xff\xff\x7f", "truncated"),
        P("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "truncated"),
        P("\x80\x02]q\x00h\x00"
          "a.",
          "a value contains itself"),
        P("\x80\x02(K\x01u.", "added to something"),
        P("\x80\x02}(K\x01u.", "a key without a value"),
        P("\x80\x02h\x07.", "a memo entry is read that was not written"),
        P("\x80\x02Nr\xff\xff\xff\xff.", "a memo index exceeds"),
        P("\x80\x02K\x01K\x02R.", "a call has no function"),
        P("\x80\x02NN\x93.", "other than two strings"),
        P("\x80\x02NNb.", "a state is set on something"),
        P("\x80\x02Q.", "a persistent id is missing"),
        P("\x80\x02(cos\nsystem\no.", "opcode 0x6f"),
        P("\x80\x05\x97.", "opcode 0x97"),
    };
#undef P
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ml_pickle_doc doc;
        ml_arena a;
        ml_err err = { 0 };

        ml_arena_init(&a, "test");
        CHECK(ml_pickle_parse(&doc, &a, rows[i].bytes, 0, "x.pkl", &err) != ML_OK);
        CHECK_HAS(err.msg, rows[i].message);
        CHECK_HAS(err.msg, "x.pkl");
        ml_arena_release(&a);
    }
}

/* Lists of two references to the list before them: 2^60 values in 300 bytes. */
static void expansions_are_bounded(void) {
    ml_text t = { 0 };
    ml_pickle_doc doc;
    ml_arena a;
    ml_err err = { 0 };

    ml_arena_init(&a, "test");
    ml_text_add(&t, "\x80\x02]q\x00", 5);
    for (int i = 0; i < 60; i++) {
        char op[] = { ']', 'q', (char)(i + 1), '(', 'h', (char)i, 'h', (char)i, 'e' };
        ml_text_add(&t, op, sizeof op);
    }
    ml_text_add(&t, ".", 1);
    CHECK(ml_pickle_parse(&doc, &a, (ml_str){ t.ptr, t.len }, 0, "x.pkl", &err) != ML_OK);
    CHECK_HAS(err.msg, "exactly one value"); /* the lists before the last are still there */
    ml_arena_release(&a);
    t.len = 0;
    ml_arena_init(&a, "test");
    ml_text_add(&t, "\x80\x02N", 3);
    for (int i = 0; i < 60; i++)
        ml_text_add(&t, "2\x86", 2); /* (x, x) */
    ml_text_add(&t, ".", 1);
    CHECK(ml_pickle_parse(&doc, &a, (ml_str){ t.ptr, t.len }, 0, "x.pkl", &err) != ML_OK);
    CHECK_HAS(err.msg, "expand to more than");
    t.len = 0;
    ml_text_add(&t, "\x80\x02N", 3);
    for (int i = 0; i < 300; i++)
        ml_text_add(&t, "\x85", 1);
    ml_text_add(&t, ".", 1);
    CHECK(ml_pickle_parse(&doc, &a, (ml_str){ t.ptr, t.len }, 0, "x.pkl", &err) != ML_OK);
    CHECK_HAS(err.msg, "nested more than 200 deep");
    ml_arena_release(&a);
    ml_text_release(&t);
}

static const ml_test tests[] = {
    { "tensors of torch.save's zip archives equal torch's", zip_tensors },
    { "tensors of torch.save's legacy format equal torch's", legacy_tensors },
    { "Python values of a pickle equal their JSON", python_values },
    { "damaged files of torch.save are refused with their name", damaged_files },
    { "malformed pickles are refused with a sentence", bad_pickles },
    { "a small pickle cannot expand without bounds", expansions_are_bounded },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
