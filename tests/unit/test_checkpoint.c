/* Checkpoint directories: one file, shards, and everything an index can get wrong. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "io/checkpoint.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static const char index_file[] = "model.safetensors.index.json";

static void put(const char *name, const char *text) {
    ml_err err;
    CHECK(!ml_file_replace(ml_test_path(name), ml_str_of(text), &err));
}

/* A shard with one-byte tensors, called by the letters of `names`, each its own value. */
static void put_shard(const char *file, const char *names) {
    ml_st_tensor t[26] = { 0 };
    ml_st_layout layout = { .n = (int32_t)strlen(names), .tensor = t };
    ml_st_writer *w = NULL;
    ml_err err;

    for (int i = 0; i < layout.n; i++)
        t[i] = (ml_st_tensor){ .name = { names + i, 1 }, .dtype = ML_ST_U8 };
    CHECK(!ml_st_create(&w, ml_test_path(file), &layout, &err));
    for (int i = 0; i < layout.n; i++)
        CHECK(!ml_st_write(w, i, 0, names + i, 1, &err));
    CHECK(!ml_st_commit(w, &err));
}

static void check_holds(const ml_checkpoint *c, const char *names) {
    for (const char *s = names; *s; s++) {
        const ml_st_file *file = NULL;
        const ml_st_tensor *t = ml_checkpoint_find(c, (ml_str){ s, 1 }, &file);
        CHECK(t && *(const char *)t->data == *s);
        CHECK(t && ml_st_find(file, t->name)->data == t->data);
    }
    CHECK(c->n_tensor == (int64_t)strlen(names));
    CHECK(!ml_checkpoint_find(c, ml_str_of("?"), NULL));
}

static void check_refused(const char *message) {
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };

    CHECK(ml_checkpoint_open(&c, ml_test_dir(), &err) && !c);
    CHECK_HAS(err.msg, message);
    ml_checkpoint_close(c);
}

static void one_file_is_a_checkpoint(void) {
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };

    put_shard("model.safetensors", "abc");
    put(index_file, "not even JSON, and not read");
    CHECK(!ml_checkpoint_open(&c, ml_test_dir(), &err));
    CHECK(c->n_file == 1 && strcmp(c->file_name[0], "model.safetensors") == 0);
    check_holds(c, "abc");
    ml_checkpoint_close(c);
    ml_checkpoint_close(NULL);
}

static void shards_are_one_checkpoint(void) {
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };

    put_shard("m-2.safetensors", "ad");
    put_shard("m-1.safetensors", "cb");
    put("unrelated.safetensors", "is not opened");
    put(index_file, "{\"metadata\": {\"total_size\": 4}, \"weight_map\": {\n"
                    "  \"a\": \"m-2.safetensors\", \"b\": \"m-1.safetensors\",\n"
                    "  \"c\": \"m-1.safetensors\", \"d\": \"m-2.safetensors\"}}\n");
    CHECK(!ml_checkpoint_open(&c, ml_test_dir(), &err));
    CHECK(c->n_file == 2 && strcmp(c->file_name[0], "m-1.safetensors") == 0);
    check_holds(c, "abcd");
    ml_checkpoint_close(c);
}

#define MAP(members) "{\"weight_map\": {" members "}}"

/* In a directory with m-1.safetensors (a, b) and m-2.safetensors (c). */
static const struct {
    const char *index, *message;
} broken[] = {
    { "", ".index.json:1:1: expected a value" },
    { "[]", ".index.json: expected weight_map, an object of tensor and shard names" },
    { "{}", "expected weight_map, an object of tensor and shard names" },
    { "{\"weight_map\": []}", "weight_map, an object" },
    { "{\"weight_map\": {}}", "weight_map, an object" },
    { MAP("\"a\": 1"),
      ".index.json:1:22: the value of tensor \"a\" must be the name of a file" },
    { MAP("\"a\": \"\""), "without a path" },
    { MAP("\"a\": \"../m-1.safetensors\""),
      "the value of tensor \"a\" must be the name of a file in the "
      "same directory, without a path" },
    { MAP("\"a\": \"/etc/passwd\""), "without a path" },
    { MAP("\"a\": \"sub/m-1.safetensors\""), "without a path" },
    { MAP("\"a\": \"..\\\\m-1.safetensors\""), "without a path" },
    { MAP("\"a\": \"m-1.safetensors\\u0000x\""), "without a path" },
    { MAP("\"a\": \"..\""), "without a path" },
    { MAP("\"a\": \"m-1.safetensors\",\"\\u0061\": \"m-1.safetensors\""),
      "tensor \"a\" is listed twice" },
    { MAP("\"a\": \"m-1.safetensors\",\"b\": \"m-1.safetensors\",\"c\": "
          "\"m-3.safetensors\""),
      "shard m-3.safetensors is missing; the download is incomplete" },
    { MAP("\"a\": \"m-1.safetensors\",\"b\": \"m-1.safetensors\",\"x\": "
          "\"m-1.safetensors\""),
      "tensor \"x\" is listed in m-1.safetensors, which does not have it" },
    { MAP("\"a\": \"m-2.safetensors\",\"b\": \"m-1.safetensors\",\"c\": "
          "\"m-2.safetensors\""),
      "tensor \"a\" is listed in m-2.safetensors, but lies in m-1.safetensors" },
    { MAP("\"a\": \"m-1.safetensors\",\"c\": \"m-2.safetensors\""),
      "shard m-1.safetensors has tensor \"b\", which is not listed" },
    { MAP("\"a\": \"model.safetensors.index.json\""), "this is not a safetensors file" },
};

static void broken_indices_are_named(void) {
    put_shard("m-1.safetensors", "ab");
    put_shard("m-2.safetensors", "c");
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        put(index_file, broken[i].index);
        check_refused(broken[i].message);
    }
}

static void a_tensor_in_two_shards_is_named(void) {
    put_shard("m-1.safetensors", "ab");
    put_shard("m-2.safetensors", "bc");
    put(index_file, MAP("\"a\": \"m-1.safetensors\",\"b\": \"m-1.safetensors\","
                        "\"c\": \"m-2.safetensors\""));
    check_refused("tensor \"b\" is in both m-1.safetensors and m-2.safetensors");
}

static void a_broken_shard_is_named(void) {
    put("m-1.safetensors", "");
    put(index_file, MAP("\"a\": \"m-1.safetensors\""));
    check_refused("/m-1.safetensors has 0 bytes");
}

static void directories_without_weights_are_named(void) {
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };

    check_refused("has no weights: neither model.safetensors nor model.safetensors.index");
    put("config.json", "{}");
    put("training_args.bin", "");
    check_refused("has no weights");
    put("other.safetensors", "");
    check_refused("has other.safetensors, but neither model.safetensors nor");
    put("model.gguf", "");
    check_refused("has model.gguf");
    CHECK(!unlink(ml_test_path("other.safetensors")) &&
          !unlink(ml_test_path("model.gguf")));
    put("pytorch_model-00001-of-00002.bin", "");
    check_refused("has pytorch_model-00001-of-00002.bin, but neither");
    check_refused("; only pytorch_model.bin is read without an index");
    CHECK(ml_checkpoint_open(&c, ml_test_path("none"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "/none: cannot open: No such file or directory");
    CHECK(ml_checkpoint_open(&c, ml_test_path("config.json"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "config.json is not a directory; expected the directory with");
}

static void dangling_links_are_named(void) {
    CHECK(!symlink("../blobs/none", ml_test_path("model.safetensors")));
    check_refused("/model.safetensors: cannot open: No such file or directory");
}

static const ml_test tests[] = {
    { "a checkpoint of one file opens", one_file_is_a_checkpoint },
    { "a sharded checkpoint opens", shards_are_one_checkpoint },
    { "a broken shard index is refused with its error", broken_indices_are_named },
    { "a tensor in two shards is named", a_tensor_in_two_shards_is_named },
    { "a broken shard is named", a_broken_shard_is_named },
    { "directories without weights are named", directories_without_weights_are_named },
    { "dangling links are named", dangling_links_are_named },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
