/* Deltas of weights: checksums, encodings, versions on disk and the copy that follows them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/dir.h"
#include "base/file.h"
#include "io/checkpoint.h"
#include "io/delta_writer.h"
#include "io/local_checkpoint.h"
#include "model/weight_dir.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

/* --- checksums ---------------------------------------------------------------------- */

/* Of the bytes 0, 1, ... 250, 0, 1, ... that the authors of BLAKE3 test with. */
static const struct {
    size_t n;
    const char *xxh3, *blake3;
} known[] = {
    { 0, "99aa06d3014798d86001c324468d497f",
      "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262" },
    { 1, "a6cd5e9392000f6ac44bdff4074eecdb",
      "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213" },
    { 3, "e3b55f57945a17cf5f4299fc161c9cbb", NULL },
    { 4, "eb70bf5fc779e9e6a6111d53e80a3db5", NULL },
    { 8, "e1e4432a62217fe4cfd50c61c8bb98c1", NULL },
    { 9, "16c769d83e4aebce907931979dca3746", NULL },
    { 16, "72950631827607e2842812cc870dcae2", NULL },
    { 17, "685bc458b37d057fc06e233df7729217", NULL },
    { 33, "02175c3aabb00637e08d84951339de86", NULL },
    { 65, "ebedf05eeadc28f11aee64a1615de88f", NULL },
    { 97, "9b09227e063da5a25b3284a61f91e97d", NULL },
    { 128, "14792fc3af88dc6c05321a0b64d67b41", NULL },
    { 129, "dd5e74ac6b45f54ebc30b63382b09a3b", NULL },
    { 160, "4e95c1cd6dc7bb85c67fcd13c31b09f4", NULL },
    { 161, "90805aa22c17b7a036ade0cea58f8377", NULL },
    { 240, "65b5be86da5540e7c92b68e16f83bbb6", NULL },
    { 241, "1da1cb61bcb8a2a102e8cd95421c6d02", NULL },
    { 1023, "4325711b0ed4d742d3d91d80ac495685",
      "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11" },
    { 1024, "d0ac1f7b93bf57b9e5d78bafa45b2aa5",
      "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7" },
    { 1025, "2882ebca04ec915ce95c42288f28186e",
      "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444" },
    { 2048, "a5141efedfefc1af25339063db861586",
      "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a" },
    { 2049, "39a54bc93f74921b6c9600c0e506e2ae",
      "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030" },
    { 31744, "786ea195976b880d5162bbaf8b257803",
      "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47" },
};

static void known_checksums(void) {
    static uint8_t bytes[31744];
    char sum[ML_CHECKSUM_TEXT];
    ml_checksum how;

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i % 251);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        ml_checksum_write(sum, ML_CHECKSUM_XXH3, bytes, known[i].n);
        CHECK(strcmp(sum, known[i].xxh3) == 0);
        if (!known[i].blake3)
            continue;
        ml_checksum_write(sum, ML_CHECKSUM_BLAKE3, bytes, known[i].n);
        CHECK(strcmp(sum, known[i].blake3) == 0);
    }
    ml_checksum_write(sum, ML_CHECKSUM_ADLER32, "Wikipedia", 9);
    CHECK(strcmp(sum, "11e60398") == 0);
    ml_checksum_write(sum, ML_CHECKSUM_ADLER32, bytes, sizeof bytes);
    CHECK(strcmp(sum, "758b70de") == 0);
    CHECK(ml_checksum_find(&how, ml_str_of("blake3")) && how == ML_CHECKSUM_BLAKE3);
    CHECK(!ml_checksum_find(&how, ml_str_of("md5")));
}

/* --- one tensor ---------------------------------------------------------------------- */

enum { N = 5000 };

static void fill(uint8_t *p, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(rand_r(&seed) >> 8);
}

static void there_and_back(void) {
    static uint8_t old[N], now[N], copy[N];
    ml_text delta = { 0 };
    size_t n_changed = 0;
    ml_err err = { 0 };

    fill(old, N, 1);
    for (int how = 0; how < ML_N_DELTA; how++) {
        memcpy(now, old, N);
        delta.len = 0;
        CHECK(ml_delta_encode(&delta, (ml_delta_encoding)how, old, now, N, &n_changed,
                              &err) == ML_OK);
        CHECK(n_changed == 0 && delta.len == 0);
        for (int i = 0; i < N; i += 97)
            now[i] ^= 0x41;
        CHECK(ml_delta_encode(&delta, (ml_delta_encoding)how, old, now, N, &n_changed,
                              &err) == ML_OK);
        CHECK(n_changed == (N + 96) / 97);
        CHECK(delta.len < N / 2); /* little has changed */
        memcpy(copy, old, N);
        CHECK(ml_delta_apply(copy, N, (ml_delta_encoding)how,
                             (ml_str){ delta.ptr, delta.len }, "w", &err) == ML_OK);
        CHECK(memcmp(copy, now, N) == 0);
    }
    ml_text_release(&delta);
}

/* Whatever strangers write, memory is safe and the sentence names the tensor. */
static void no_delta_of_this(void) {
    static uint8_t old[N], now[N], copy[2 * N];
    ml_text delta = { 0 };
    size_t n_changed = 0;
    ml_err err = { 0 };

    fill(old, N, 1);
    fill(now, N, 2);
    for (int how = 0; how < ML_N_DELTA; how++) {
        delta.len = 0;
        CHECK(ml_delta_encode(&delta, (ml_delta_encoding)how, old, now, N, &n_changed,
                              &err) == ML_OK);
        CHECK(ml_delta_apply(copy, N / 2, (ml_delta_encoding)how,
                             (ml_str){ delta.ptr, delta.len }, "w.x", &err) == ML_EFORMAT);
        CHECK_HAS(err.msg, "the delta of w.x");
        CHECK(ml_delta_apply(copy, N, (ml_delta_encoding)how,
                             (ml_str){ delta.ptr, delta.len - 1 }, "w.x",
                             &err) == ML_EFORMAT);
        CHECK(ml_delta_apply(copy, N, (ml_delta_encoding)how, ml_str_of("nonsense"), "w.x",
                             &err) == ML_EFORMAT);
    }
    /* An xor delta read as positions and values. */
    delta.len = 0;
    CHECK(ml_delta_encode(&delta, ML_DELTA_XOR, old, now, N, &n_changed, &err) == ML_OK);
    CHECK(ml_delta_apply(copy, N, ML_DELTA_OVERWRITE, (ml_str){ delta.ptr, delta.len }, "w",
                         &err) == ML_EFORMAT);
    ml_text_release(&delta);
}

/* --- versions ------------------------------------------------------------------------- */

enum { TENSORS = 3, VERSIONS = 6 };

static const char *const names[TENSORS] = { "a", "b", "c" };

/* What tensor t is in version v: c never changes, b only in even versions. */
static void truth(uint8_t out[N], int v, int t) {
    fill(out, N, (unsigned)t);
    for (int i = 1; t != 2 && i <= v; i++)
        if (t == 0 || i % 2 == 0)
            for (int k = i; k < N; k += 50 * i)
                out[k] = (uint8_t)(i + t);
}

static void write_checkpoint(const char *dir, int v) {
    ml_st_tensor tensor[TENSORS];
    char path[600];
    ml_st_writer *w;
    uint8_t bytes[N];

    for (int t = 0; t < TENSORS; t++)
        tensor[t] = (ml_st_tensor){
            .name = ml_str_of(names[t]), .dtype = ML_ST_U8, .n_dim = 1, .shape = { N }
        };
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    CHECK(ml_dir_make(dir, NULL) == ML_OK);
    CHECK(ml_st_create(&w, path, &(ml_st_layout){ .n = TENSORS, .tensor = tensor }, NULL) ==
          ML_OK);
    for (int t = 0; t < TENSORS; t++) {
        truth(bytes, v, t);
        CHECK(ml_st_write(w, t, 0, bytes, N, NULL) == ML_OK);
    }
    CHECK(ml_st_commit(w, NULL) == ML_OK);
}

static void publish(int v, ml_delta_encoding encoding, ml_checksum checksum) {
    ml_delta_opts o = { .source = ml_test_path("source"),
                        .encoding = encoding,
                        .checksum = checksum,
                        .file_bytes = 1 }; /* a tensor a file */
    ml_delta_writer *w;
    uint8_t old[N], now[N];
    size_t n;

    CHECK(ml_delta_writer_open(&w, &o, v, v - 1, NULL) == ML_OK);
    for (int t = 0; t < TENSORS; t++) {
        truth(old, v - 1, t);
        truth(now, v, t);
        CHECK(ml_delta_writer_add(w, ml_str_of(names[t]), old, now, N, &n, NULL) == ML_OK);
    }
    CHECK(ml_delta_writer_commit(w, NULL) == ML_OK);
}

static ml_status pull(const char *copy, int v, ml_err *err) {
    return ml_local_checkpoint_pull(ml_test_path(copy), ml_test_path("base"),
                                    ml_test_path("source"), v, err);
}

static void is_version(const char *copy, int v) {
    ml_checkpoint *c = NULL;
    uint8_t bytes[N];
    ml_hold hold;
    ml_err err = { 0 };

    CHECK(ml_local_checkpoint_hold(&hold, ml_test_path(copy), v, &err) == ML_OK);
    CHECK(ml_checkpoint_open(&c, ml_test_path(copy), &err) == ML_OK);
    for (int t = 0; c && t < TENSORS; t++) {
        const ml_st_tensor *x = ml_checkpoint_find(c, ml_str_of(names[t]), NULL);
        truth(bytes, v, t);
        CHECK(x && x->bytes == N && memcmp(x->data, bytes, N) == 0);
    }
    ml_checkpoint_close(c);
    ml_local_checkpoint_release(&hold);
}

static void publish_all(void) {
    write_checkpoint(ml_test_path("base"), 0);
    CHECK(ml_dir_make(ml_test_path("source"), NULL) == ML_OK);
    for (int v = 1; v <= VERSIONS; v++)
        publish(v, v % 3 ? ML_DELTA_XOR : ML_DELTA_OVERWRITE, (ml_checksum)(v % 3));
}

static void version_by_version(void) {
    ml_hold hold;
    ml_err err = { 0 };

    publish_all();
    for (int v = 0; v <= VERSIONS; v++) {
        CHECK(pull("slow", v, &err) == ML_OK);
        is_version("slow", v);
    }
    CHECK(pull("slow", 3, &err) == ML_OK); /* it is ahead, and stays there */
    is_version("slow", VERSIONS);
    CHECK(ml_local_checkpoint_hold(&hold, ml_test_path("slow"), 3, &err) == ML_EPEER);
    CHECK_HAS(err.msg, "has published version 6");
    CHECK(pull("late", VERSIONS, &err) == ML_OK); /* from the base, all at once */
    is_version("late", VERSIONS);
    CHECK(pull("slow", 0, &err) == ML_OK); /* another run */
    is_version("slow", 0);
}

/* Versions before a whole one are not needed, and files of the copy that it lacks go; files that
 * no pull wrote stay. */
static void a_whole_one_is_a_beginning(void) {
    ml_arena a;
    ml_err err = { 0 };

    ml_arena_init(&a, "test");
    publish_all();
    CHECK(ml_file_replace(ml_test_path("base/old.json"), ml_str_of("{}"), NULL) == ML_OK);
    CHECK(pull("copy", 2, &err) == ML_OK);
    CHECK(access(ml_test_path("copy/old.json"), F_OK) == 0);
    for (int v = 1; v <= 4; v++)
        CHECK(ml_dir_remove(ml_version_dir(&a, ml_test_path("source"), v), NULL) == ML_OK);
    CHECK(pull("copy", VERSIONS, &err) == ML_EIO);
    CHECK_HAS(err.msg, "weight version 4 does not exist");
    write_checkpoint(ml_version_dir(&a, ml_test_path("source"), 4), 4);
    CHECK(ml_file_replace(ml_test_path("copy/mine.txt"), ml_str_of("x"), NULL) == ML_OK);
    CHECK(pull("copy", VERSIONS, &err) == ML_OK);
    is_version("copy", VERSIONS);
    CHECK(access(ml_test_path("copy/old.json"), F_OK) != 0);
    CHECK(access(ml_test_path("copy/mine.txt"), F_OK) == 0);
    ml_arena_release(&a);
}

static bool has_text(const char *path, const char *text) {
    ml_file f = { 0 };
    bool same = ml_file_map(&f, path, NULL) == ML_OK && ml_str_is(f.bytes, text);

    ml_file_unmap(&f);
    return same;
}

/* A directory with files of somebody else is refused, and nothing in it changes. */
static void files_of_others_are_left_alone(void) {
    ml_err err = { 0 };

    publish_all();
    CHECK(ml_dir_make(ml_test_path("home"), NULL) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("home/thesis.tex"), ml_str_of("x"), NULL) == ML_OK);
    CHECK(pull("home", 0, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "contains thesis.tex, which miles did not write");
    CHECK(pull("home", VERSIONS, &err) == ML_EUSAGE);
    CHECK(has_text(ml_test_path("home/thesis.tex"), "x"));
    CHECK(access(ml_test_path("home/.weight_sync"), F_OK) != 0);
    CHECK(access(ml_test_path("home/model.safetensors"), F_OK) != 0);
    /* State of our own does not make the files of others ours. */
    CHECK(ml_dir_make(ml_test_path("home/.weight_sync"), NULL) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("home/.weight_sync/state.json"),
                          ml_str_of("{\"version\": \"000000\"}"), NULL) == ML_OK);
    CHECK(pull("home", VERSIONS, &err) == ML_EUSAGE);
    /* A name that a version brings and that somebody took meanwhile. */
    CHECK(pull("copy", 1, &err) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("copy/notes.md"), ml_str_of("mine"), NULL) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("base/notes.md"), ml_str_of("base"), NULL) == ML_OK);
    CHECK(pull("copy", 0, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "copy/notes.md exists and was not written by miles");
    CHECK(has_text(ml_test_path("copy/notes.md"), "mine"));
    /* A manifest that names what is elsewhere is refused. */
    CHECK(pull("other", 0, &err) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("other/.weight_sync/files.json"),
                          ml_str_of("{\"files\": [\"../base/model.safetensors\"]}"),
                          NULL) == ML_OK);
    CHECK(pull("other", 0, &err) == ML_EFORMAT);
    CHECK(access(ml_test_path("base/model.safetensors"), F_OK) == 0);
}

/* Links in the copy or in the source lead nowhere. */
/* Exit status 0: the pull succeeded.  A process of its own, as each server is: the lock
 * excludes processes. */
static pid_t pull_in_child(const char *copy, int v) {
    pid_t pid = fork();
    ml_err err = { 0 };

    if (pid != 0)
        return pid;
    if (pull(copy, v, &err) == ML_OK)
        _exit(0);
    fprintf(stderr, "%s\n", err.msg);
    _exit(1);
}

static void servers_share_a_copy(void) {
    enum { TRIALS = 50, SERVERS = 4 };

    publish_all();
    for (int i = 0; i < TRIALS; i++) {
        pid_t pid[SERVERS];
        char copy[20];
        int status;

        snprintf(copy, sizeof copy, "shared_%d", i);
        for (int k = 0; k < SERVERS; k++)
            pid[k] = pull_in_child(copy, 1);
        for (int k = 0; k < SERVERS; k++)
            CHECK(waitpid(pid[k], &status, 0) == pid[k] && status == 0);
        is_version(copy, 1);
    }
}

static void links_are_not_followed(void) {
    ml_err err = { 0 };
    uint8_t before[N];

    publish_all();
    CHECK(pull("copy", 1, &err) == ML_OK);
    CHECK(ml_dir_make(ml_test_path("victim"), NULL) == ML_OK);
    CHECK(rename(ml_test_path("copy/model.safetensors"),
                 ml_test_path("victim/model.safetensors")) == 0);
    CHECK(symlink(ml_test_path("victim/model.safetensors"),
                  ml_test_path("copy/model.safetensors")) == 0);
    CHECK(pull("copy", 2, &err) != ML_OK);
    CHECK_HAS(err.msg, "copy/model.safetensors: cannot modify");
    truth(before, 1, 0);
    {
        ml_checkpoint *c = NULL;
        CHECK(ml_checkpoint_open(&c, ml_test_path("victim"), &err) == ML_OK);
        const ml_st_tensor *x = ml_checkpoint_find(c, ml_str_of(names[0]), NULL);
        CHECK(x && memcmp(x->data, before, N) == 0);
        ml_checkpoint_close(c);
    }
    CHECK(pull("copy", 2, &err) == ML_OK); /* the link itself is replaced */
    is_version("copy", 2);
    CHECK(link(ml_test_path("copy/model.safetensors"), ml_test_path("backup")) == 0);
    CHECK(pull("copy", 3, &err) !=
          ML_OK); /* it has another name, where it must not change */
    CHECK_HAS(err.msg, "copy/model.safetensors: cannot modify");
    CHECK(pull("copy", 2, &err) == ML_OK);
    CHECK(rename(ml_test_path("source/weight_v000003"), ml_test_path("v3")) == 0);
    CHECK(symlink(ml_test_path("v3"), ml_test_path("source/weight_v000003")) == 0);
    CHECK(pull("copy", 3, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "is a symbolic link");
    CHECK(ml_dir_make(ml_test_path("tricky"), NULL) == ML_OK);
    CHECK(symlink(ml_test_path("victim"), ml_test_path("tricky/.weight_sync")) == 0);
    CHECK(pull("tricky", 1, &err) == ML_EUSAGE);
}

static bool any_version(const char *name, int64_t than) {
    (void)than;
    return strncmp(name, "version_", 8) == 0;
}

/* Of directories with the names of versions, those without our seal stay. */
static void only_our_versions_are_tidied(void) {
    static const char *const dirs[] = { "w/version_1", "w/version_2", "w/version_3.new" };
    ml_err err = { 0 };

    for (int i = 0; i < 3; i++)
        CHECK(ml_dir_make(ml_test_path(dirs[i]), NULL) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("w/version_1/weights.crc64"), ml_str_of("0"),
                          NULL) == ML_OK);
    CHECK(ml_weight_dir_tidy(ml_test_path("w"), any_version, 0, &err) == ML_OK);
    CHECK(access(ml_test_path("w/version_1"), F_OK) != 0);
    CHECK(access(ml_test_path("w/version_2"), F_OK) == 0);
    CHECK(access(ml_test_path("w/version_3.new"), F_OK) != 0);
}

/* Changes the last byte of a file: one of the last tensor's. */
static void spoil(const char *path) {
    FILE *f = fopen(path, "r+b");
    int c;

    fseek(f, -1, SEEK_END);
    c = fgetc(f);
    fseek(f, -1, SEEK_END);
    fputc(c ^ 1, f);
    fclose(f);
}

static void what_is_damaged_is_refused(void) {
    ml_hold hold;
    ml_err err = { 0 };

    publish_all();
    CHECK(pull("copy", 1, &err) == ML_OK);
    spoil(ml_test_path("source/weight_v000002/model-00001-of-00002.safetensors"));
    CHECK(pull("copy", 2, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "weight_v000002/model-00001-of-00002.safetensors");
    /* Tensor a may have changed: the copy is of no version, and is written again from the start. */
    CHECK(ml_local_checkpoint_hold(&hold, ml_test_path("copy"), 1, &err) == ML_EPEER);
    CHECK(pull("copy", 1, &err) == ML_OK);
    is_version("copy", 1);
    publish(2, ML_DELTA_OVERWRITE, ML_CHECKSUM_XXH3); /* once more */
    CHECK(pull("copy", 2, &err) == ML_OK);
    is_version("copy", 2);
    /* A copy that is not what it says. */
    spoil(ml_test_path("copy/model.safetensors")); /* c, which no delta changes */
    CHECK(pull("copy", 3, &err) == ML_OK);
    ml_local_checkpoint_disown(ml_test_path("copy"));
    CHECK(pull("copy", 3, &err) == ML_OK);
    is_version("copy", 3);
    CHECK(unlink(ml_test_path("source/weight_v000004/model-00000-of-00002.safetensors")) ==
          0);
    CHECK(pull("copy", 4, &err) != ML_OK);
}

/* The right checksum of the wrong base is found. */
static void another_base_is_found(void) {
    ml_err err = { 0 };

    publish_all();
    write_checkpoint(ml_test_path("base"), 3);
    CHECK(pull("copy", 1, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "checksum");
}

static void indexes_that_lie(void) {
    static const struct {
        const char *from, *to, *sentence;
    } lies[] = {
        { "zstd", "gzip", "\"compression_format\"" },
        { "\\\"xor\\\"", "\\\"and\\\"", "\"delta_encoding\"" },
        { "blake3", "md5", "\"checksum_format\"" },
        { "\\\"000001\\\"", "\\\"000007\\\"", "\"version\"" },
        { "\\\"000000\\\"", "\\\"000001\\\"", "\"base_version\"" },
        { "weight_map", "weight_mop", "\"weight_map\"" },
        { "\\\"a\\\"", "\\\"c\\\"", "which is not in the index" },
        { "model-", "..\\\\/model-", "expected a file name" },
    };
    const char *index = ml_test_path("source/weight_v000001/model.safetensors.index.json");
    char line[1500];
    ml_err err = { 0 };

    publish_all();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        publish(1, ML_DELTA_XOR, ML_CHECKSUM_BLAKE3);
        snprintf(line, sizeof line, "sed -i \"s/%s/%s/\" %s", lies[i].from, lies[i].to,
                 index);
        CHECK(system(line) == 0);
        CHECK(pull("copy", 1, &err) != ML_OK);
        CHECK_HAS(err.msg, lies[i].sentence);
    }
}

static const ml_test tests[] = {
    { "delta checksums give known values", known_checksums },
    { "a delta decodes to the new weights in every encoding", there_and_back },
    { "malformed deltas are refused with the tensor", no_delta_of_this },
    { "a copy follows the published versions", version_by_version },
    { "a copy starts at the last whole version", a_whole_one_is_a_beginning },
    { "a copy into a directory with other files is refused",
      files_of_others_are_left_alone },
    { "servers that pull at the same time share a copy", servers_share_a_copy },
    { "a copy follows no links", links_are_not_followed },
    { "only version directories with our seal are removed", only_our_versions_are_tidied },
    { "a damaged version is refused", what_is_damaged_is_refused },
    { "a delta on another base is refused", another_base_is_found },
    { "a delta index with wrong fields is refused", indexes_that_lie },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
