/* Safetensors: what is read, what is refused with which words, and that what is written is
 * to the byte what Hugging Face's library writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "io/safetensors.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

/* --- images of files ----------------------------------------------------------- */

/* Length, header and n_data bytes 0, 1, 2 ...; claimed is the length to write. */
static ml_text image_of(const char *header, size_t n_data, uint64_t claimed) {
    ml_text t = { 0 };

    for (int i = 0; i < 8; i++)
        ml_text_add(&t, &(char){ (char)(claimed >> 8 * i & 255) }, 1);
    ml_text_add(&t, header, strlen(header));
    for (size_t i = 0; i < n_data; i++)
        ml_text_add(&t, &(char){ (char)i }, 1);
    return t;
}

static ml_status open_text(ml_st_file **f, ml_text *t, ml_err *err) {
    return ml_st_open_image(f, (ml_str){ t->ptr, t->len }, "x.safetensors", err);
}

/* --- reading -------------------------------------------------------------------- */

static const char three[] =
    "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
    "\"__metadata__\":{\"format\":\"pt\",\"by\":\"\\u00e9\"},"
    "\"a\":{\"shape\":[],\"data_offsets\":[20,21],\"dtype\":\"F8_E4M3\"},"
    "\"none\":{\"dtype\":\"I64\",\"shape\":[5,0],\"data_offsets\":[8,8]},"
    "\"c\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  ";

static void tensors_come_in_the_order_of_their_bytes(void) {
    static const char *const order[] = { "c", "none", "b", "a" };
    ml_text image = image_of(three, 21, strlen(three));
    ml_st_file *f = NULL;
    const ml_st_tensor *t;
    ml_err err = { 0 };

    CHECK(!open_text(&f, &image, &err));
    CHECK(f->n == 4 && ml_str_is(f->header, three));
    for (int i = 0; i < 4; i++) {
        CHECK(ml_str_is(f->tensor[i].name, order[i]));
        CHECK(ml_st_find(f, ml_str_of(order[i])) == &f->tensor[i]);
    }
    t = ml_st_find(f, ml_str_of("b"));
    CHECK(t->dtype == ML_ST_BF16 && t->n_dim == 2 && t->shape[0] == 2 && t->shape[1] == 3);
    CHECK(t->bytes == 12 && t->offset == 8 + strlen(three) + 8);
    CHECK(*(const char *)t->data == 8);
    CHECK(f->tensor[3].n_dim == 0 && f->tensor[3].bytes == 1);
    CHECK(f->tensor[1].bytes == 0);
    CHECK(!ml_st_find(f, ml_str_of("B")) && !ml_st_find(f, ml_str_of("__metadata__")));
    CHECK(f->n_meta == 2 && ml_str_is(f->meta[0].key, "format"));
    CHECK(ml_str_is(f->meta[0].value, "pt") && ml_str_is(f->meta[1].value, "\xc3\xa9"));
    ml_st_forget(f, t); /* nothing happens to an image */
    ml_st_close(f);
    ml_text_release(&image);
}

static void an_empty_file_of_tensors_is_fine(void) {
    ml_text image = image_of("{}", 0, 2);
    ml_st_file *f = NULL;
    ml_err err;

    CHECK(!open_text(&f, &image, &err));
    CHECK(f->n == 0 && f->n_meta == 0 && !ml_st_find(f, ml_str_of("a")));
    ml_st_close(f);
    ml_text_release(&image);
}

static void dtypes_know_their_size_and_kernel_type(void) {
    static const int64_t four[] = { 4 }, three_by_one[] = { 3, 1 };
    ml_dtype d = ML_F32;
    size_t n = 0;

    CHECK(ml_st_size(ML_ST_F4, four, 1, &n) && n == 2);
    CHECK(!ml_st_size(ML_ST_F4, three_by_one, 2, &n));
    CHECK(ml_st_size(ML_ST_F6_E3M2, four, 1, &n) && n == 3);
    CHECK(ml_st_size(ML_ST_C64, three_by_one, 2, &n) && n == 24);
    CHECK(ml_st_size(ML_ST_U64, NULL, 0, &n) && n == 8);
    CHECK(ml_st_to_dtype(ML_ST_BF16, &d) && d == ML_BF16);
    CHECK(ml_st_to_dtype(ML_ST_I32, &d) && d == ML_I32);
    CHECK(!ml_st_to_dtype(ML_ST_F64, &d) && !ml_st_to_dtype(ML_ST_U8, &d));
    for (int t = ML_F32; t <= ML_I32; t++)
        CHECK(ml_st_to_dtype(ml_st_from_dtype((ml_dtype)t), &d) && (int)d == t);
    CHECK(strcmp(ml_st_dtype_name(ML_ST_F8_E5M2), "F8_E5M2") == 0);
}

/* --- broken files --------------------------------------------------------------- */

#define A(fields) "{\"a\":{" fields "}}"
#define F32_2 "\"dtype\":\"F32\",\"shape\":[2],"

static const struct {
    const char *header;
    size_t n_data;
    const char *message;
} broken[] = {
    /* the header as text */
    { "", 0, "the header does not begin with '{'" },
    { " {}", 0, "the header does not begin with '{'" },
    { "[]", 0, "the header does not begin with '{'" },
    { "{", 0, "(header):1:2: expected a member name" },
    { "{}{}", 0, "(header):1:3: expected end of input" },
    { "{\"a\":NaN}", 0, "(header):1:6: expected a value, found 'N'" },
    { "{\"\xff\":1}", 0, "byte 0xff is not valid UTF-8" },
    { "{\"\\ud800\":1}", 0, "unpaired surrogate" },
    /* entries */
    { "{\"a\":[]}", 0, "tensor \"a\": its entry is an array; expected an object" },
    { "{\"a\":null}", 0, "tensor \"a\": its entry is null" },
    { A(""), 0, "tensor \"a\": its entry has no dtype" },
    { A("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, "\"a\": its entry has no shape" },
    { A("\"dtype\":\"F32\",\"shape\":[2]"), 8, "its entry has no data_offsets" },
    { A(F32_2 "\"data_offsets\":[0,8],\"x\":1"), 8,
      "its entry has 4 fields; expected dtype, shape" },
    { A(F32_2 "\"data_offsets\":[0,8],\"dtype\":\"F32\""), 8, "its entry has 4 fields" },
    /* dtype */
    { A("\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]"), 8,
      "x.safetensors: tensor \"a\": unknown dtype \"F31\"" },
    { A("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8,
      "unknown dtype \"f32\"" },
    { A("\"dtype\":\"\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "unknown dtype \"\"" },
    { A("\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]"), 8,
      "dtype is a number; expected a string" },
    /* shape */
    { A("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8,
      "shape is a number; expected an array" },
    { A("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8,
      "dimension 0 of its shape is not a non-negative integer" },
    { A("\"dtype\":\"F32\",\"shape\":[2,1.0],\"data_offsets\":[0,8]"), 8,
      "dimension 1 of its shape is not a non-negative integer" },
    { A("\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]"), 8,
      "dimension 0 of" },
    { A("\"dtype\":\"F32\",\"shape\":[18446744073709551617],\"data_offsets\":[0,4]"), 4,
      "dimension 0 of its shape" },
    { A("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0,
      "its shape times F32 overflows 64 bits" },
    { A("\"dtype\":\"F32\",\"shape\":[9223372036854775807],\"data_offsets\":[0,8]"), 8,
      "its shape times F32 overflows" },
    { A("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"), 2,
      "its shape times F4 overflows" },
    { A("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]"), 1,
      "shape has 9 dimensions; expected at most 8" },
    { A("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8,
      "its shape needs 12 bytes of F32, but data_offsets span 8" },
    { A("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]"), 0,
      "needs 4 bytes of F32" },
    { A("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]"), 8,
      "its shape needs 4 bytes of F32, but data_offsets span 8" },
    /* offsets */
    { A(F32_2 "\"data_offsets\":[0]"), 8,
      "data_offsets must be two non-negative integers" },
    { A(F32_2 "\"data_offsets\":[0,8,9]"), 8, "data_offsets must be two" },
    { A(F32_2 "\"data_offsets\":\"0,8\""), 8, "data_offsets must be two" },
    { A(F32_2 "\"data_offsets\":[-8,0]"), 8, "data_offsets must be two" },
    { A(F32_2 "\"data_offsets\":[0,8.0]"), 8, "data_offsets must be two" },
    { A(F32_2 "\"data_offsets\":[0,99999999999999999999]"), 8, "data_offsets must be two" },
    { A(F32_2 "\"data_offsets\":[8,0]"), 8, "data_offsets [8,0] end before they begin" },
    { A(F32_2 "\"data_offsets\":[0,8]"), 7,
      "\"a\": it ends at byte 8 of the data, but the file has 7; the file is "
      "truncated" },
    { A(F32_2 "\"data_offsets\":[9223372036854775799,9223372036854775807]"), 8,
      "it ends at byte 9223372036854775807 of the data" },
    { A(F32_2 "\"data_offsets\":[4,12]"), 12,
      "\"a\": it begins at byte 4 of the data, but the tensor before it ends at 0: "
      "there is a gap" },
    { A(F32_2 "\"data_offsets\":[0,8]"), 9,
      "x.safetensors: the last tensor ends at byte 8 of the data, but there are 9 bytes" },
    { "{}", 1, "the last tensor ends at byte 0 of the data, but there are 1 bytes" },
    /* two tensors */
    { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]},\"b\":{" F32_2 "\"data_offsets\":[4,12]}}",
      12,
      "\"b\": it begins at byte 4 of the data, but the tensor before it ends at 8: they "
      "overlap" },
    { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]},\"b\":{" F32_2 "\"data_offsets\":[0,8]}}",
      8, "they overlap" },
    { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]},\"b\":{" F32_2 "\"data_offsets\":[9,17]}}",
      17,
      "\"b\": it begins at byte 9 of the data, but the tensor before it ends at 8: "
      "there is a gap" },
    { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]},\"\\u0061\":{" F32_2
      "\"data_offsets\":[8,16]}}",
      16, "tensor \"a\": duplicate tensor in the header" },
    /* metadata */
    { "{\"__metadata__\":[]}", 0, "__metadata__ is an array; expected an object" },
    { "{\"__metadata__\":{\"k\":1}}", 0,
      "__metadata__ entry \"k\" is a number; expected a string" },
    { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "the header has two __metadata__" },
};

static void check_refused(ml_text *image, const char *message) {
    ml_st_file *f = NULL;
    ml_err err = { 0 };

    CHECK(open_text(&f, image, &err) == ML_EFORMAT && !f);
    CHECK_HAS(err.msg, "x.safetensors");
    CHECK_HAS(err.msg, message);
    ml_text_release(image);
}

static void broken_headers_are_named(void) {
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        ml_text image =
            image_of(broken[i].header, broken[i].n_data, strlen(broken[i].header));
        check_refused(&image, broken[i].message);
    }
}

static void broken_lengths_are_named(void) {
    static const struct {
        uint64_t claimed;
        const char *message;
    } rows[] = {
        { 0, "the header does not begin with '{'" },
        { 1, "(header):1:2: expected a member name" },
        { 3, "header length 3 exceeds the file size of 10 bytes" },
        { 100000000, "header length 100000000 exceeds the file size" },
        { 100000001, "header length 100000001 exceeds the limit" },
        { UINT64_MAX, "header length 18446744073709551615 exceeds" },
        { UINT64_MAX - 7, "exceeds the limit" },
        { (uint64_t)1 << 63, "exceeds the limit" },
    };
    ml_text lfs = { 0 };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ml_text image = image_of("{}", 0, rows[i].claimed);
        check_refused(&image, rows[i].message);
    }
    ml_text_printf(&lfs, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    check_refused(&lfs, "is a Git LFS pointer, not the weights; run git lfs pull");
}

static void a_depth_bomb_is_refused(void) {
    ml_text header = { 0 }, image;

    ml_text_printf(&header, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        ml_text_add(&header, "[", 1);
    image = image_of(header.ptr, 0, header.len);
    check_refused(&image, "values are nested deeper than 256 levels");
    ml_text_release(&header);
}

/* Every proper prefix of a good file is a truncated one.  Each lies at the end of its own
 * allocation, so that a sanitizer sees a read behind it. */
static void every_truncation_is_refused(void) {
    ml_text image = image_of(three, 21, strlen(three));

    for (size_t n = 0; n < image.len; n++) {
        char *part = malloc(n + 1);
        ml_st_file *f = NULL;
        ml_err err = { 0 };
        memcpy(part + 1, image.ptr, n);
        CHECK(ml_st_open_image(&f, (ml_str){ part + 1, n }, "x", &err) == ML_EFORMAT);
        CHECK(err.msg[0]);
        free(part);
    }
    ml_text_release(&image);
}

static void a_long_name_does_not_bury_the_message(void) {
    ml_text header = { 0 }, image;

    ml_text_printf(&header, "{\"");
    for (int i = 0; i < 5000; i++)
        ml_text_add(&header, "n", 1);
    ml_text_printf(&header, "\":{\"dtype\":\"F31\",\"shape\":[],\"data_offsets\":[0,0]}}");
    image = image_of(header.ptr, 0, header.len);
    check_refused(&image, "unknown dtype \"F31\"");
    ml_text_release(&header);
}

/* --- writing -------------------------------------------------------------------- */

/* What safetensors 0.8.0 wrote for these tensors and metadata. */
static const char hf_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"tU64\":{\"dtype\":\"U64\",\"shape\":[1],\"data_offsets\":[0,8]},"
    "\"tI64\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[8,16]},"
    "\"z\\\"\\\\\\u0001\177\\b\303\251/"
    "\342\200\250\":{\"dtype\":\"I64\",\"shape\":[0,3],\"data_offsets\":[16,16]},"
    "\"tF64\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[16,24]},"
    "\"tC64\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[24,32]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[32,36]},"
    "\"tF32\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[36,40]},"
    "\"tU32\":{\"dtype\":\"U32\",\"shape\":[1],\"data_offsets\":[40,44]},"
    "\"tI32\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[44,48]},"
    "\"tBF16\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[48,50]},"
    "\"tF16\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[50,52]},"
    "\"tU16\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[52,54]},"
    "\"tI16\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[54,56]},"
    "\"tF8_E5M2FNUZ\":{\"dtype\":\"F8_E5M2FNUZ\",\"shape\":[1],\"data_offsets\":[56,57]},"
    "\"tF8_E4M3FNUZ\":{\"dtype\":\"F8_E4M3FNUZ\",\"shape\":[1],\"data_offsets\":[57,58]},"
    "\"tF8_E8M0\":{\"dtype\":\"F8_E8M0\",\"shape\":[1],\"data_offsets\":[58,59]},"
    "\"tF8_E4M3\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[59,60]},"
    "\"tF8_E5M2\":{\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[60,61]},"
    "\"tI8\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[61,62]},"
    "\"tU8\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[62,63]},"
    "\"tF4\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[63,64]},"
    "\"tBOOL\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[64,65]}}   ";

static int n_like_hf(ml_st_tensor *t, ml_arena *a) {
    int n = 0;

    for (int d = 0; d < ML_ST_DTYPE_COUNT; d++) {
        ml_st_dtype type = (ml_st_dtype)d;
        if (type == ML_ST_F6_E2M3 || type == ML_ST_F6_E3M2)
            continue; /* which that library reads and cannot write */
        t[n++] = (ml_st_tensor){
            .name = ml_str_of(ml_arena_printf(a, "t%s", ml_st_dtype_name(type))),
            .dtype = type,
            .n_dim = 1,
            .shape = { type == ML_ST_F4 ? 2 : 1 },
        };
    }
    t[n++] = (ml_st_tensor){ .name = ml_str_of("z\"\\\x01\x7f\b\xc3\xa9/\xe2\x80\xa8"),
                             .dtype = ML_ST_I64,
                             .n_dim = 2,
                             .shape = { 0, 3 } };
    t[n++] = (ml_st_tensor){ .name = ml_str_of("a"), .dtype = ML_ST_F32 };
    return n;
}

/* Writes each tensor's bytes (taken from `data`, one after the other) back to front, in
 * pieces of three. */
static ml_status write_all(ml_st_writer *w, const ml_st_tensor *t, int n, const char *data,
                           ml_err *err) {
    for (int i = 0; i < n; i++) {
        size_t bytes = 0, end;
        CHECK(ml_st_size(t[i].dtype, t[i].shape, t[i].n_dim, &bytes));
        for (end = bytes; end > 0;) {
            size_t begin = end > 3 ? end - 3 : 0;
            ml_status st = ml_st_write(w, i, begin, data + begin, end - begin, err);
            if (st)
                return st;
            end = begin;
        }
        data += bytes;
    }
    return ML_OK;
}

static bool same_bytes(const char *path, const ml_text *want) {
    ml_file f;
    ml_err err;
    bool same;

    if (ml_file_map(&f, path, &err))
        return false;
    same = ml_str_eq(f.bytes, (ml_str){ want->ptr, want->len });
    ml_file_unmap(&f);
    return same;
}

static void headers_are_hugging_faces(void) {
    static const ml_st_meta meta[] = { { { "format", 6 }, { "pt", 2 } } };
    ml_arena a = { .tag = "test" };
    ml_text want = image_of(hf_header, 65, strlen(hf_header));
    ml_st_tensor t[30];
    int n = n_like_hf(t, &a);
    ml_st_layout layout = { .n = n, .tensor = t, .n_meta = 1, .meta = meta };
    const char *path = ml_test_path("x.safetensors");
    ml_st_writer *w = NULL;
    ml_err err = { 0 };

    ml_st_sort_like_hf(t, n);
    CHECK(!ml_st_create(&w, path, &layout, &err));
    CHECK(!write_all(w, t, n, want.ptr + 8 + strlen(hf_header), &err));
    CHECK(access(path, F_OK) != 0);
    CHECK(!ml_st_commit(w, &err));
    CHECK(same_bytes(path, &want));
    ml_text_release(&want);
    ml_arena_release(&a);
}

/* Reads the image, writes it again with the header kept, and compares. */
static void check_rewritten(ml_text *image) {
    const char *path = ml_test_path("again.safetensors");
    ml_st_file *f = NULL;
    ml_st_writer *w = NULL;
    ml_err err = { 0 };

    CHECK(!open_text(&f, image, &err));
    CHECK(!ml_st_create_like(&w, path, f, &err));
    CHECK(!write_all(w, f->tensor, f->n, image->ptr + 8 + f->header.len, &err));
    CHECK(!ml_st_commit(w, &err));
    CHECK(same_bytes(path, image));
    ml_st_close(f);
    ml_text_release(image);
}

static void any_file_can_be_rewritten_to_the_byte(void) {
    ml_text odd = image_of(three, 21, strlen(three));
    ml_text hf = image_of(hf_header, 65, strlen(hf_header));
    ml_text none = image_of("{\"__metadata__\":{}}\n\t", 0, 21);

    check_rewritten(&odd);
    check_rewritten(&hf);
    check_rewritten(&none);
}

static void a_written_file_opens(void) {
    static const float x[] = { 1, 2, 3, 4, 5, 6 };
    ml_st_tensor t = {
        .name = ml_str_of("x"), .dtype = ML_ST_F32, .n_dim = 2, .shape = { 2, 3 }
    };
    ml_st_layout layout = { .n = 1, .tensor = &t };
    const char *path = ml_test_path("x.safetensors");
    ml_st_writer *w = NULL;
    ml_st_file *f = NULL;
    ml_err err = { 0 };

    CHECK(!ml_st_create(&w, path, &layout, &err));
    CHECK(!ml_st_write(w, 0, 8, x + 2, 16, &err));
    CHECK(!ml_st_write(w, 0, 0, x, 8, &err));
    CHECK(!ml_st_commit(w, &err));
    CHECK(!ml_st_open(&f, path, &err));
    CHECK(f->n == 1 && f->n_meta == 0 && f->tensor[0].offset % 8 == 0);
    CHECK(memcmp(f->tensor[0].data, x, sizeof x) == 0);
    ml_st_forget(f, &f->tensor[0]);
    CHECK(memcmp(f->tensor[0].data, x, sizeof x) == 0);
    ml_st_close(f);
    CHECK(ml_st_open(&f, ml_test_path("none"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "/none: cannot open");
}

static void unfinished_files_never_appear(void) {
    ml_st_tensor t = {
        .name = ml_str_of("w"), .dtype = ML_ST_U8, .n_dim = 1, .shape = { 9 }
    };
    ml_st_layout layout = { .n = 1, .tensor = &t };
    const char *path = ml_test_path("x.safetensors");
    ml_st_writer *w = NULL;
    ml_err err = { 0 };

    CHECK(!ml_st_create(&w, path, &layout, &err));
    CHECK(!ml_st_write(w, 0, 0, "12345678", 8, &err));
    CHECK(ml_st_commit(w, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "x.safetensors: wrote 8 bytes of tensor \"w\", which has 9");
    CHECK(!ml_st_create(&w, path, &layout, &err));
    ml_st_abort(w);
    ml_st_abort(NULL);
    CHECK(rmdir(ml_test_dir()) == 0); /* nothing is left in it */
    CHECK(ml_st_create(&w, path, &layout, &err) == ML_EIO);
    CHECK_HAS(err.msg, "cannot create");
}

static void impossible_layouts_are_named(void) {
    ml_st_tensor t[] = { { .name = ml_str_of("w"), .dtype = ML_ST_U8 },
                         { .name = ml_str_of("w"), .dtype = ML_ST_F32 } };
    ml_st_layout layout = { .n = 2, .tensor = t };
    const char *path = ml_test_path("x.safetensors");
    ml_st_writer *w = NULL;
    ml_err err = { 0 };

    CHECK(ml_st_create(&w, path, &layout, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "duplicate tensor name \"w\"");
    t[1].name = ml_str_of("__metadata__");
    CHECK(ml_st_create(&w, path, &layout, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "duplicate tensor name \"__metadata__\"");
    t[1] = (ml_st_tensor){
        .name = ml_str_of("x"), .dtype = ML_ST_F32, .n_dim = 2, .shape = { INT64_MAX, 2 }
    };
    CHECK(ml_st_create(&w, path, &layout, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "the size of tensor \"x\" overflows");
}

static const ml_test tests[] = {
    { "tensors are listed in the order of their bytes",
      tensors_come_in_the_order_of_their_bytes },
    { "a file without tensors opens", an_empty_file_of_tensors_is_fine },
    { "tensor types have their size and kernel type",
      dtypes_know_their_size_and_kernel_type },
    { "a broken safetensors header is refused with its error", broken_headers_are_named },
    { "a wrong header length is refused", broken_lengths_are_named },
    { "a deeply nested safetensors header is refused", a_depth_bomb_is_refused },
    { "every truncated safetensors file is refused", every_truncation_is_refused },
    { "a long tensor name does not hide the error", a_long_name_does_not_bury_the_message },
    { "written headers are those of Hugging Face's library", headers_are_hugging_faces },
    { "a safetensors file is rewritten to the byte",
      any_file_can_be_rewritten_to_the_byte },
    { "a written safetensors file opens", a_written_file_opens },
    { "an unfinished safetensors file does not appear", unfinished_files_never_appear },
    { "an impossible layout is refused", impossible_layouts_are_named },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
