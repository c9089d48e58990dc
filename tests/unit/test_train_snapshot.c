/* Snapshots: a run that is stopped and resumed ends in the same bytes, and whatever happens
 * while one is written, the tracker names a whole one. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/dir.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"
#include "train/snapshot.h"

static void must(ml_status st, const ml_err *err) {
    if (st != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
        exit(1);
    }
}

static ml_saver *new_saver(ml_train_fixture *t, const char *dir, bool async, int32_t keep) {
    ml_saver *s = NULL;
    ml_err err = { 0 };
    must(ml_saver_open(
             &s,
             &(ml_saver_opts){
                 .dir = dir, .from = t->checkpoint, .async = async, .keep_last = keep },
             &err),
         &err);
    return s;
}

static void save(ml_saver *s, ml_train_fixture *t, int64_t iteration) {
    ml_err err = { 0 };
    char data[64];
    int n = snprintf(data, sizeof data, "{\"offset\": %lld}", (long long)iteration);
    must(ml_saver_save(s, &(ml_save_models){ .actor = t->trainer },
                       &(ml_save_state){ .iteration = iteration,
                                         .data = { data, (size_t)n },
                                         .config = { "{}", 2 } },
                       &err),
         &err);
}

/* A trainer whose weights and state come from a snapshot. */
static void open_resumed(ml_train_fixture *t, ml_train_fixture_opts *o, const char *dir,
                         int64_t want) {
    ml_arena a;
    ml_err err = { 0 };
    ml_save_state state;
    ml_checkpoint *c = NULL;
    int64_t latest;
    const char *path;

    ml_arena_init(&a, "resume");
    must(ml_snapshot_latest(&latest, dir, &err), &err);
    CHECK(latest == want);
    path = ml_snapshot_path(&a, dir, latest);
    must(ml_snapshot_check(path, &err), &err);
    ml_train_fixture_open(t, o);
    /* The weights of the snapshot into a trainer of their own. */
    ml_trainer_close(t->trainer);
    ml_weights_close(&t->weights);
    must(ml_checkpoint_open(&c, path, &err), &err);
    must(ml_weights_load(&t->weights, &t->spec, c, o->dtype, &t->be, &t->arena, &err),
         &err);
    must(ml_trainer_open(&t->trainer, &t->spec, &t->weights, &t->be, &o->trainer, &err),
         &err);
    must(ml_snapshot_load(path, &(ml_snapshot_into){ .trainer = t->trainer }, &state, &a,
                          &err),
         &err);
    CHECK(state.iteration == latest);
    CHECK_HAS(state.data.ptr, "{\"offset\": ");
    ml_checkpoint_close(c);
    ml_arena_release(&a);
}

static void same_snapshots(const char *a, const char *b) {
    char command[1200];
    snprintf(command, sizeof command, "diff -r %s %s >&2", a, b);
    if (system(command) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s and %s differ", a, b);
}

static ml_train_fixture_opts opts_for(ml_weight_dtype dtype) {
    return (ml_train_fixture_opts){ .dtype = dtype,
                                    .n_thread = 2,
                                    .trainer = ml_train_fixture_defaults() };
}

/* Six steps at once, and three and three; saved by copy or at once. */
static void resumes_rule(ml_weight_dtype dtype, ml_optim_rule_opts rule, bool async) {
    ml_train_fixture_opts o = opts_for(dtype);
    ml_train_fixture t;
    ml_saver *s;
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");

    o.trainer.optimizer.rule = rule;
    o.trainer.lr.style = ML_LR_COSINE;
    o.trainer.lr.train_iters = 20;
    ml_train_fixture_open(&t, &o);
    s = new_saver(&t, whole, false, 0);
    for (int i = 0; i < 6; i++)
        ml_train_fixture_step(&t, 200);
    save(s, &t, 5);
    ml_saver_close(s);
    ml_train_fixture_close(&t);

    ml_train_fixture_open(&t, &o);
    s = new_saver(&t, parts, async, 0);
    for (int i = 0; i < 3; i++)
        ml_train_fixture_step(&t, 200);
    save(s, &t, 2);
    ml_train_fixture_step(&t, 200); /* while the copy is being written */
    ml_saver_close(s);
    ml_train_fixture_close(&t);

    open_resumed(&t, &o, parts, 2);
    CHECK(ml_trainer_optimizer(t.trainer)->n_step == 3 && t.weights.version == 3);
    s = new_saver(&t, parts, async, 0);
    for (int i = 3; i < 6; i++)
        ml_train_fixture_step(&t, 200);
    save(s, &t, 5);
    ml_saver_close(s);
    ml_train_fixture_close(&t);
    same_snapshots(ml_test_path("whole/iter_0000005"), ml_test_path("parts/iter_0000005"));
}

static void resumes_identically(ml_weight_dtype dtype, ml_optimizer_kind kind, bool async) {
    ml_optim_rule_opts rule = ml_train_fixture_defaults().optimizer.rule;

    rule.kind = kind;
    rule.momentum = 0.9;
    resumes_rule(dtype, rule, async);
}

static void resumes_moments_in_fewer_bits(void) {
    ml_optim_rule_opts rule = ml_train_fixture_defaults().optimizer.rule;

    rule.format1 = ML_MOMENT_BF16;
    rule.format2 = ML_MOMENT_FP8;
    resumes_rule(ML_WEIGHT_F32, rule, false);
}

static void resumes_muon(void) {
    ml_optim_rule_opts rule = ml_train_fixture_defaults().optimizer.rule;

    rule.kind = ML_OPTIMIZER_MUON;
    rule.muon_momentum = 0.95;
    rule.muon_iter = 5;
    rule.muon_extra_scale = 0.2;
    resumes_rule(ML_WEIGHT_BF16, rule, true);
}

static void resumes_adafactor(void) {
    resumes_rule(ML_WEIGHT_BF16,
                 (ml_optim_rule_opts){ .kind = ML_OPTIMIZER_ADAFACTOR,
                                       .factor_decay = 0.8,
                                       .factor_clip = 1,
                                       .factor_eps = 1e-30 },
                 false);
}

static void resumes_f32(void) {
    resumes_identically(ML_WEIGHT_F32, ML_OPTIMIZER_ADAM, false);
}

static void resumes_bf16_saved_meanwhile(void) {
    resumes_identically(ML_WEIGHT_BF16, ML_OPTIMIZER_ADAM, true);
}

static void resumes_sgd(void) {
    resumes_identically(ML_WEIGHT_BF16, ML_OPTIMIZER_SGD, false);
}

static void flip_byte(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    int c;
    CHECK(f != NULL);
    fseek(f, at, SEEK_END);
    c = fgetc(f);
    fseek(f, at, SEEK_END);
    fputc(c ^ 1, f);
    fclose(f);
}

static void damage_is_named(void) {
    static const char *const files[] = { "trainer.safetensors", "model.safetensors",
                                         "state.json", "config.json" };
    ml_train_fixture_opts o = opts_for(ML_WEIGHT_F32);
    const char *dir = ml_test_path("snaps");
    char path[600];
    ml_train_fixture t;
    ml_saver *s;
    ml_err err = { 0 };

    ml_train_fixture_open(&t, &o);
    s = new_saver(&t, dir, false, 0);
    for (int i = 0; i < 4; i++) {
        save(s, &t, i);
        snprintf(path, sizeof path, "%s/iter_%07d/%s", dir, i, files[i]);
        flip_byte(path, -9);
        path[strlen(path) - strlen(files[i]) - 1] = 0;
        CHECK(ml_snapshot_check(path, &err) == ML_EFORMAT);
        CHECK_HAS(err.msg, files[i]);
    }
    ml_saver_close(s);
    ml_train_fixture_close(&t);
}

/* Saves one, and gives the path of a file in it. */
static const char *saved_file(const char *name) {
    ml_train_fixture_opts o = opts_for(ML_WEIGHT_F32);
    static char path[600];
    ml_train_fixture t;
    ml_saver *s;

    ml_train_fixture_open(&t, &o);
    s = new_saver(&t, ml_test_path("snaps"), false, 0);
    save(s, &t, 3);
    ml_saver_close(s);
    ml_train_fixture_close(&t);
    snprintf(path, sizeof path, "%s/%s", ml_test_path("snaps/iter_0000003"), name);
    return path;
}

static void every_file_is_listed(void) {
    const char *dir = ml_test_path("snaps/iter_0000003");
    const char *sums = saved_file("checksums.crc64");
    const char *extra = ml_test_path("snaps/iter_0000003/notes.txt");
    ml_text text = { 0 };
    ml_file f = { 0 };
    ml_err err = { 0 };

    must(ml_snapshot_check(dir, &err), &err);
    must(ml_file_replace(extra, ml_str_of("x"), &err), &err);
    CHECK(ml_snapshot_check(dir, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "notes.txt is not listed in checksums.crc64");
    CHECK(unlink(extra) == 0);

    must(ml_file_map(&f, sums, &err), &err);
    ml_text_add(&text, f.bytes.ptr, f.bytes.len);
    ml_file_unmap(&f);
    must(ml_file_replace(sums, (ml_str){ "", 0 }, &err), &err); /* nothing is listed */
    CHECK(ml_snapshot_check(dir, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "is not listed");
    ml_text_printf(&text, "0000000000000000 0 my notes.txt\n");
    must(ml_file_replace(sums, (ml_str){ text.ptr, text.len }, &err), &err);
    must(ml_file_replace(ml_test_path("snaps/iter_0000003/my notes.txt"), (ml_str){ "", 0 },
                         &err),
         &err);
    must(ml_snapshot_check(dir, &err), &err);
    ml_text_printf(&text, "0000000000000000 0 gone.txt\n");
    must(ml_file_replace(sums, (ml_str){ text.ptr, text.len }, &err), &err);
    CHECK(ml_snapshot_check(dir, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "lists \"gone.txt\", which is not a file of the snapshot");
    ml_text_release(&text);
}

static void the_tracker_is_needed(void) {
    const char *dir = ml_test_path("snaps");
    const char *tracker = ml_test_path("snaps/latest_checkpointed_iteration.txt");
    int64_t latest;
    ml_err err = { 0 };

    must(ml_snapshot_latest(&latest, dir, &err), &err); /* there is no directory */
    CHECK(latest == ML_NONE);
    must(ml_dir_make(dir, &err), &err);
    must(ml_snapshot_latest(&latest, dir, &err), &err);
    CHECK(latest == ML_NONE);
    (void)saved_file("");
    must(ml_snapshot_latest(&latest, dir, &err), &err);
    CHECK(latest == 3);
    must(ml_file_replace(tracker, ml_str_of("-1"), &err),
         &err); /* killed in the first save */
    must(ml_snapshot_latest(&latest, dir, &err), &err);
    CHECK(latest == ML_NONE);
    must(ml_file_replace(tracker, ml_str_of("newest"), &err), &err);
    CHECK(ml_snapshot_latest(&latest, dir, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "--ckpt-step");
    CHECK(unlink(tracker) == 0);
    CHECK(ml_snapshot_latest(&latest, dir, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "iter_0000003, but no latest_checkpointed_iteration.txt");
}

/* What crashes leave goes; what others have put there stays. */
static void only_leftovers_of_ours_go(void) {
    static const char *const ours[] = { "iter_0000007.tmp-123", "iter_0000008.tmp-old" };
    static const char *const others[] = { "iter_backup.tmp-1", "iter_0000007.tmp-mine",
                                          "iter_notes", "x.tmp-123" };
    char path[600];
    ml_err err = { 0 };

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", ml_test_path("snaps"), ours[i]);
        must(ml_dir_make(path, &err), &err);
    }
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", ml_test_path("snaps"), others[i]);
        must(ml_dir_make(path, &err), &err);
    }
    must(ml_dir_make(ml_test_path("snaps/iter_0000009.replaced"), &err), &err);
    must(ml_snapshot_tidy(ml_test_path("snaps"), &err), &err);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", ml_test_path("snaps"), ours[i]);
        CHECK(access(path, F_OK) != 0);
    }
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", ml_test_path("snaps"), others[i]);
        CHECK(access(path, F_OK) == 0);
    }
    CHECK(access(ml_test_path("snaps/iter_0000009"), F_OK) == 0);
}

static int32_t entries(const char *dir, ml_arena *a, ml_names *names) {
    ml_err err = { 0 };
    must(ml_dir_list(names, dir, a, &err), &err);
    return names->n;
}

static void old_ones_and_leftovers_go(void) {
    ml_train_fixture_opts o = opts_for(ML_WEIGHT_F32);
    const char *dir = ml_test_path("snaps");
    ml_train_fixture t;
    ml_saver *s;
    ml_arena a;
    ml_names names;
    int64_t latest;
    ml_err err = { 0 };

    ml_arena_init(&a, "test");
    must(ml_dir_make(ml_test_path("snaps/iter_0000007.tmp-123"), &err), &err);
    must(ml_snapshot_latest(&latest, dir, &err), &err);
    CHECK(latest == ML_NONE);
    ml_train_fixture_open(&t, &o);
    s = new_saver(&t, dir, true, 2);
    for (int i = 0; i < 5; i++)
        save(s, &t, 10 * i);
    save(s, &t, 40); /* once more under the same number */
    ml_saver_close(s);
    CHECK(entries(dir, &a, &names) == 3);
    CHECK(strcmp(names.name[0], "iter_0000030") == 0);
    CHECK(strcmp(names.name[1], "iter_0000040") == 0);
    must(ml_snapshot_latest(&latest, dir, &err), &err);
    CHECK(latest == 40);
    must(ml_snapshot_check(ml_test_path("snaps/iter_0000040"), &err), &err);
    ml_train_fixture_close(&t);
    ml_arena_release(&a);
}

/* Saves for ever, a step between two. */
static void save_until_killed(const char *dir, bool async) {
    ml_train_fixture_opts o = opts_for(ML_WEIGHT_BF16);
    ml_train_fixture t;
    ml_saver *s;

    o.n_thread = 1;
    ml_train_fixture_open(&t, &o);
    s = new_saver(&t, dir, async, 2);
    for (int64_t i = 0;; i++) {
        ml_train_fixture_step(&t, 200);
        save(s, &t, i);
    }
}

/* Slow builds take a while before their first save. */
static void wait_for_one(const char *dir) {
    ml_err err = { 0 };
    int64_t latest = ML_NONE;

    for (int i = 0; i < 6000 && latest == ML_NONE; i++) {
        usleep(10000);
        must(ml_snapshot_latest(&latest, dir, &err), &err);
    }
}

static void kill_while_saving(const char *dir, int round, unsigned *seed) {
    ml_err err = { 0 };
    ml_arena a;
    int64_t latest;
    pid_t pid = fork();

    if (pid == 0) {
        save_until_killed(dir, round % 2);
        _exit(1);
    }
    wait_for_one(dir);
    usleep((unsigned)rand_r(seed) % 200000);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    ml_arena_init(&a, "test");
    must(ml_snapshot_latest(&latest, dir, &err), &err);
    if (latest != ML_NONE)
        must(ml_snapshot_check(ml_snapshot_path(&a, dir, latest), &err), &err);
    ml_arena_release(&a);
}

/* MILES_LONG asks for more rounds. */
static void survives_being_killed(void) {
    int rounds = getenv("MILES_LONG") ? 50 : 5, n_whole = 0;
    unsigned seed = (unsigned)time(NULL);
    const char *dir = ml_test_path("snaps");
    int64_t latest;
    ml_err err = { 0 };

    printf("seed %u\n", seed);
    fflush(stdout);
    for (int i = 0; i < rounds; i++) {
        kill_while_saving(dir, i, &seed);
        must(ml_snapshot_latest(&latest, dir, &err), &err);
        n_whole += latest != ML_NONE;
    }
    CHECK(n_whole > 0);
}

static void checksum_is_the_standard_one(void) {
    char text[100];

    CHECK(ml_crc64(0, "123456789", 9) == 0x995DC9BBDF1939FAu);
    memset(text, 'x', sizeof text);
    for (size_t cut = 0; cut <= sizeof text; cut += 7) {
        uint64_t first = ml_crc64(0, text, cut), whole = ml_crc64(0, text, sizeof text);
        uint64_t second = ml_crc64(0, text + cut, sizeof text - cut);
        CHECK(ml_crc64(first, text + cut, sizeof text - cut) == whole);
        CHECK(ml_crc64_join(first, second, sizeof text - cut) == whole);
    }
}

static void threads_compute_the_same_checksum(void) {
    static unsigned char text[(1 << 24) + 5];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)(i * i >> 7);
    for (size_t n = sizeof text - 8; n <= sizeof text; n += 4)
        CHECK(ml_crc64_of((ml_str){ (char *)text, n }) == ml_crc64(0, text, n));
    CHECK(ml_crc64_of((ml_str){ NULL, 0 }) == 0);
}

static const ml_test tests[] = {
    { "an f32 run resumes to the same bytes", resumes_f32 },
    { "a bf16 run saved in the background resumes to the same bytes",
      resumes_bf16_saved_meanwhile },
    { "an SGD run resumes to the same bytes", resumes_sgd },
    { "a resumed run with bf16 and FP8 moments ends in the same bytes",
      resumes_moments_in_fewer_bits },
    { "a resumed run with Muon ends in the same bytes", resumes_muon },
    { "a resumed run with Adafactor ends in the same bytes", resumes_adafactor },
    { "a damaged snapshot is refused with the file", damage_is_named },
    { "every file of a snapshot has a checksum", every_file_is_listed },
    { "snapshots without a tracker file are not used", the_tracker_is_needed },
    { "leftovers of crashed saves are removed and other files stay",
      only_leftovers_of_ours_go },
    { "old snapshots are removed", old_ones_and_leftovers_go },
    { "a save that is killed leaves a whole snapshot", survives_being_killed, 300 },
    { "CRC-64 gives the published value", checksum_is_the_standard_one },
    { "threads compute the checksum of one", threads_compute_the_same_checksum },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
