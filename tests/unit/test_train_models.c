/* miles train with models beside the actor: critic, teacher, reference; and what runs start
 * from and leave on disk. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "io/checkpoint.h"
#include "io/jsonl.h"
#include "rl/sample.h"
#include "tests/support/kill.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

enum { ROUNDS = 4 };

static void make_inputs(void) {
    ml_text t = { 0 };

    ml_toy_model(ml_toy_chatml);
    for (int i = 0; i < 12; i++)
        ml_text_printf(&t, "{\"input\": \"what is %d+%d?\", \"label\": \"%d\"}\n", i % 10,
                       i % 7, i % 10 + i % 7);
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
}

static void args_of(char *args, size_t cap, const char *save, int rounds,
                    const char *more) {
    snprintf(args, cap,
             "train --hf-checkpoint %s --prompt-data %s --label-key label "
             "--apply-chat-template --rollout-shuffle --rollout-batch-size 4 "
             "--n-samples-per-prompt 4 --num-steps-per-rollout 2 --num-rollout %d "
             "--rollout-max-response-len 12 --rm-type deterministic_random --lr 1e-3 "
             "--lr-decay-style constant --save %s %s",
             ml_test_path("model"), ml_test_path("data.jsonl"), rounds, save, more);
}

static char out[20000];

static int run(const char *save, int rounds, const char *more) {
    char args[3000];
    args_of(args, sizeof args, save, rounds, more);
    return ml_test_miles(out, sizeof out, args);
}

static void must_run(const char *save, int rounds, const char *more) {
    if (run(save, rounds, more) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s: %s", more, out);
}

/* A run that goes on from where it saves. */
static void must_go_on(const char *save, int rounds, const char *more) {
    char flags[1500];
    snprintf(flags, sizeof flags, "--load %s %s", save, more);
    must_run(save, rounds, flags);
}

__attribute__((format(printf, 1, 2))) static bool shell(const char *format, ...) {
    char command[3000];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return system(command) == 0;
}

/* The last snapshots and the metrics are the same bytes, those of a critic, too. */
static void same_ends(const char *a, const char *b, int rounds) {
    static const char *const tail[] = { "", "_critic" };

    for (int i = 0; i < 2; i++) {
        if (i && !shell("test -d %s_critic", a))
            continue;
        if (!shell("diff -r %s%s/iter_%07d %s%s/iter_%07d >&2", a, tail[i], rounds - 1, b,
                   tail[i], rounds - 1))
            ml_test_fail(__FILE__, __LINE__, "%s%s and %s%s differ", a, tail[i], b,
                         tail[i]);
    }
    if (!shell("cmp %s/metrics.jsonl %s/metrics.jsonl >&2", a, b))
        ml_test_fail(__FILE__, __LINE__, "the metrics of %s and %s differ", a, b);
}

static bool same_weights(const char *a, const char *b) {
    return shell("cmp -s %s/model.safetensors %s/model.safetensors", a, b);
}

/* A figure of a round: the first row that has it. */
static double figure(const char *save, int64_t round, const char *name) {
    char path[600];
    ml_jsonl f = { 0 };
    ml_arena a;
    ml_err err = { 0 };
    double x = 0;
    bool found = false;

    snprintf(path, sizeof path, "%s/metrics.jsonl", save);
    ml_arena_init(&a, "test");
    CHECK(ml_jsonl_open(&f, path, &err) == ML_OK);
    for (int64_t i = 0; i < f.n && !found; i++) {
        const ml_json *row;
        int64_t of = -1;
        CHECK(ml_jsonl_parse(&row, &f, i, &a, &err) == ML_OK);
        ml_json_i64(ml_json_get(row, "rollout"), &of);
        found = of == round && ml_json_f64(ml_json_get(row, name), &x);
    }
    if (!found)
        ml_test_fail(__FILE__, __LINE__, "round %lld of %s has no %s", (long long)round,
                     save, name);
    ml_jsonl_close(&f);
    ml_arena_release(&a);
    return x;
}

/* --- a critic ----------------------------------------------------------------- */

#define PPO "--advantage-estimator ppo --critic-lr 3e-3 --num-critic-only-steps 1 "

static void a_critic_learns_beside_the_actor(void) {
    const char *save = ml_test_path("run");
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };
    char path[600];

    make_inputs();
    must_run(save, ROUNDS, PPO "--save-interval 1");
    CHECK_HAS(out, "rollout 0, step 0: critic loss ");
    CHECK_HAS(out, "rollout 1, step 2: loss ");
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    snprintf(path, sizeof path, "%s/iter_0000000", save);
    CHECK(same_weights(path, ml_test_path("model"))); /* the critic alone */
    snprintf(path, sizeof path, "%s/iter_0000001", save);
    CHECK(!same_weights(path, ml_test_path("model")));
    snprintf(path, sizeof path, "%s_critic/iter_0000003", save);
    CHECK(ml_checkpoint_open(&c, path, &err) == ML_OK &&
          ml_checkpoint_find(c, ml_str_of("value_head.weight"), NULL));
    ml_checkpoint_close(c);
    CHECK(figure(save, 3, "train/critic-value_loss") > 0);
    CHECK(figure(save, 3, "train/critic-lr-pg_0") == 3e-3);
    CHECK(figure(save, 3, "train/ppo_kl") == 0);
    figure(save, 3, "rollout/values");
    CHECK(run(save, 1, PPO "--dry-run --overwrite") == 0);
    CHECK_HAS(out, "critic weights");
    CHECK_HAS(out, "critic optimizer state");
}

static void ppo_has_the_same_bytes_however_it_runs(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");

    make_inputs();
    must_go_on(whole, ROUNDS, PPO "--threads 1");
    must_go_on(parts, 1, PPO "--threads 2 --max-tokens-per-gpu 64");
    must_go_on(parts, 3, PPO "--threads 2 --async-save --save-interval 1 --keep-last 1");
    must_go_on(parts, ROUNDS, PPO "--threads 1");
    CHECK_HAS(out, "resuming at rollout 3");
    same_ends(whole, parts, ROUNDS);
    CHECK(shell("test ! -e %s/iter_0000001 -a ! -e %s_critic/iter_0000001", parts, parts));
}

static void a_critic_that_is_missing_is_named(void) {
    const char *save = ml_test_path("run"), *other = ml_test_path("other");
    char flags[1500];

    make_inputs();
    must_run(save, 1, PPO);
    CHECK(shell("mv %s_critic %s", save, other));
    snprintf(flags, sizeof flags, PPO "--load %s", save);
    CHECK(run(save, 2, flags) != 0);
    CHECK_HAS(out, "_critic/iter_0000000 does not exist, but the actor resumes");
    snprintf(flags, sizeof flags, PPO "--load %s --critic-load %s", save, other);
    must_run(save, 2, flags);
    /* What a critic learned may start another one. */
    snprintf(flags, sizeof flags, PPO "--critic-load %s/iter_0000000 --critic-save %s/c",
             other, ml_test_dir());
    must_run(ml_test_path("second"), 1, flags);
    CHECK(shell("test -d %s/c/iter_0000000", ml_test_dir()));
    snprintf(flags, sizeof flags, PPO "--critic-load %s --critic-save %s/d", other,
             ml_test_dir());
    must_run(ml_test_path("third"), 1, flags);
    CHECK(
        shell("diff -r %s/c/iter_0000000 %s/d/iter_0000000", ml_test_dir(), ml_test_dir()));
}

/* MILES_LONG asks for more kills. */
static void ppo_survives_kills(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    char flags[1500], args[3000];
    ml_kills kills;
    int rounds;

    ml_kills_init(&kills, getenv("MILES_LONG") ? 50 : 5);
    rounds = ml_kills_rounds(&kills);
    make_inputs();
    must_go_on(whole, rounds, PPO);
    snprintf(flags, sizeof flags, PPO "--load %s --save-interval 1 --keep-last 1", parts);
    args_of(args, sizeof args, parts, rounds, flags);
    while (ml_kills_go_on(&kills))
        ml_kills_once(&kills, args, parts);
    must_run(parts, rounds, flags);
    same_ends(whole, parts, rounds);
    ml_kills_tell(&kills);
}

/* --- a teacher ---------------------------------------------------------------- */

static void a_teacher_is_asked(void) {
    const char *first = ml_test_path("first"), *twin = ml_test_path("twin"),
               *student = ml_test_path("student");
    char flags[1500];

    make_inputs();
    must_run(first, 2, "");
    snprintf(flags, sizeof flags, "--use-opd --opd-type megatron --opd-teacher-load %s",
             ml_test_path("model"));
    must_run(twin, 1, flags); /* its own teacher: there is nothing to learn from it */
    CHECK(figure(twin, 0, "rollout/opd_reverse_kl") == 0);
    CHECK(figure(twin, 0, "train/opd_reverse_kl") == 0);
    snprintf(flags, sizeof flags,
             "--use-opd --opd-type megatron --opd-teacher-load %s --opd-teacher-ckpt-step "
             "1 --dry-run",
             first);
    must_run(student, 1, flags);
    CHECK_HAS(out, "teacher weights");
    snprintf(flags, sizeof flags,
             "--use-opd --opd-type megatron --opd-teacher-load %s --opd-kl-coef 0.5",
             first);
    must_run(student, ROUNDS, flags);
    CHECK(figure(student, 0, "rollout/opd_reverse_kl") != 0);
    CHECK(figure(student, 0, "rollout/teacher_log_probs") !=
          figure(student, 0, "rollout/log_probs"));
}

/* The port of a server whose output goes to a file. */
static int port_of(const char *log) {
    char text[2000];
    const char *at = NULL;

    for (int i = 0; i < 1000 && !at; i++) {
        FILE *f = fopen(log, "r");
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        text[n] = 0;
        at = strchr(text, '\n') ? strstr(text, "http://") : NULL;
        if (f)
            fclose(f);
        usleep(10000);
    }
    at = at ? strrchr(at, ':') : NULL;
    return at ? atoi(at + 1) : 0;
}

/* The same teacher in memory and behind HTTP teaches the same, to the bit. */
static void a_teacher_may_be_a_server(void) {
    const char *first = ml_test_path("first"), *near = ml_test_path("near"),
               *far = ml_test_path("far"), *log = ml_test_path("serve.log");
    char flags[1500];
    int status;
    pid_t pid;

    make_inputs();
    must_run(first, 1, "");
    snprintf(flags, sizeof flags, "--use-opd --opd-type megatron --opd-teacher-load %s",
             first);
    must_run(near, 2, flags);
    snprintf(flags, sizeof flags,
             "serve --model-path %s/iter_0000000 --port 0 --api-key teach", first);
    pid = ml_toy_start_to(log, flags);
    snprintf(flags, sizeof flags,
             "--use-opd --opd-type sglang --opd-teacher-urls t=http://127.0.0.1:%d "
             "--opd-teacher-api-key teach",
             port_of(log));
    must_run(far, 2, flags);
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    CHECK(shell("cmp %s/metrics.jsonl %s/metrics.jsonl", near, far));
    CHECK(figure(far, 0, "rollout/opd_reverse_kl") != 0);
}

/* A server of a checkpoint; returns its process, and its port in *port. */
static pid_t serve(const char *dir, int *port) {
    static int n;
    char flags[1500], name[32];
    const char *log;
    pid_t pid;

    snprintf(name, sizeof name, "serve_%d.log", n++);
    log = ml_test_path(name);
    snprintf(flags, sizeof flags, "serve --model-path %s --port 0", dir);
    pid = ml_toy_start_to(log, flags);
    *port = port_of(log);
    return pid;
}

static void end_server(pid_t pid) {
    int status;
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
}

/* The teacher's engine in memory, a server that scores the ids of each position, and one that
 * scores those of all positions give the same bits. */
static void top_k_tokens_are_compared(void) {
    static const char *const more[] = { "only-student",
                                        "union --opd-reward-weight-mode none",
                                        "only-teacher --opd-reward-weight-mode teacher_p" };
    const char *first = ml_test_path("first"), *near = ml_test_path("near"),
               *far = ml_test_path("far"), *twin = ml_test_path("twin");
    char flags[1500], teacher[600];
    double kl[3];
    int port;
    pid_t pid;

    make_inputs();
    must_run(first, 1, "--lr 1e-2");
    snprintf(teacher, sizeof teacher, "%s/iter_0000000", first);
    pid = serve(teacher, &port);
    for (int i = 0; i < 3; i++) {
        snprintf(
            flags, sizeof flags,
            "--use-opd --opd-type megatron --opd-teacher-load %s --rollout-temperature 1 "
            "--opd-log-prob-top-k 4 --opd-top-k-strategy %s",
            first, more[i]);
        must_run(near, 1, flags);
        snprintf(flags, sizeof flags,
                 "--use-opd --opd-type sglang --opd-teacher-urls "
                 "t=http://127.0.0.1:%d/generate %s --opd-log-prob-top-k 4 "
                 "--opd-top-k-strategy %s",
                 port, i == 1 ? "" : "--opd-topk-per-position", more[i]);
        must_run(far, 1, flags);
        CHECK(shell("cmp %s/metrics.jsonl %s/metrics.jsonl", near, far));
        kl[i] = figure(near, 0, "rollout/opd_reverse_kl");
        CHECK(kl[i] != 0);
        shell("rm -r %s %s", near, far);
    }
    end_server(pid);
    CHECK(kl[0] != kl[1] && kl[1] != kl[2]);
    snprintf(flags, sizeof flags,
             "--use-opd --opd-type megatron --opd-teacher-load %s --opd-log-prob-top-k 3 "
             "--opd-top-k-strategy xor",
             ml_test_path("model"));
    must_run(twin, 1, flags);
    CHECK(figure(twin, 0, "rollout/opd_reverse_kl") == 0);
}

static void another_architecture_teaches(void) {
    const char *save = ml_test_path("run"), *teacher = ml_test_path("llama");
    char flags[1500];

    make_inputs();
    CHECK(shell("cp -r tests/golden/data/llama %s && cp %s/tokenizer* %s", teacher,
                ml_test_path("model"), teacher));
    snprintf(flags, sizeof flags, "--use-opd --opd-type megatron --opd-teacher-load %s",
             teacher);
    must_run(save, 1, flags);
    CHECK(figure(save, 0, "rollout/opd_reverse_kl") > 0);
    CHECK(shell("sed -i 's/\"vocab\"/\"vocab_\"/; s/\"a\": *\\([0-9]*\\)/\"@@\": \\1/' "
                "%s/tokenizer.json; sed -i 's/\"vocab_\"/\"vocab\"/' %s/tokenizer.json",
                teacher, teacher));
    CHECK(run(ml_test_path("other"), 1, flags) != 0);
    CHECK_HAS(out, "expected a teacher with the same tokenizer");
}

/* The teacher's log-probs of a recorded rollout: the student's own, or others. */
static void same_for_itself(const char *path) {
    ml_sample *s;
    int64_t n, n_same = 0, n_other = 0;
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "test");
    CHECK(ml_samples_load(&s, &n, &a, path, &err) == ML_OK);
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = (size_t)s[i].n_response * sizeof(float);
        bool same = memcmp(s[i].teacher_logprob, s[i].logprob, bytes) == 0;
        bool itself = strstr(s[i].metadata.ptr, "itself") < s[i].metadata.ptr + 30 &&
                      strstr(s[i].metadata.ptr, "itself");
        CHECK(same == itself);
        n_same += same;
        n_other += !same;
    }
    CHECK(n_same && n_other);
    ml_arena_release(&a);
}

/* One of the teachers is the student itself: its samples have nothing to learn from it. */
static void samples_name_their_teachers(void) {
    const char *first = ml_test_path("first"), *save = ml_test_path("run");
    char flags[1500], teacher[600];
    ml_text t = { 0 };
    int port[2];
    pid_t pid[2];

    make_inputs();
    must_run(first, 1, "--lr 1e-2");
    for (int i = 0; i < 12; i++)
        ml_text_printf(&t,
                       "{\"input\": \"what is %d+1?\", \"label\": \"%d\", \"metadata\": "
                       "{\"by\": \"%s\"}}\n",
                       i, i + 1, i % 2 ? "itself" : "other");
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
    snprintf(teacher, sizeof teacher, "%s/iter_0000000", first);
    pid[0] = serve(ml_test_path("model"), &port[0]);
    pid[1] = serve(teacher, &port[1]);
    snprintf(flags, sizeof flags,
             "--use-opd --opd-type sglang --opd-teacher-key by --opd-teacher-urls "
             "itself=http://127.0.0.1:%d default=http://127.0.0.1:%d "
             "--save-debug-rollout-data %s/rollout_{rollout_id}.zst",
             port[0], port[1], ml_test_path(""));
    must_run(save, 1, flags);
    CHECK(figure(save, 0, "rollout/opd_reverse_kl") != 0);
    same_for_itself(ml_test_path("rollout_0.zst"));
    snprintf(flags, sizeof flags,
             "--use-opd --opd-type sglang --opd-teacher-key by --opd-teacher-urls "
             "itself=http://127.0.0.1:%d another=http://127.0.0.1:%d",
             port[0], port[1]);
    CHECK(run(ml_test_path("none"), 1, flags) != 0);
    CHECK_HAS(out, "metadata \"by\" is other, which is no teacher of --opd-teacher-urls "
                   "(itself, another)");
    end_server(pid[0]);
    end_server(pid[1]);
}

/* With its own prompt a model teaches itself nothing, to the bit; with a hint it does. */
static void a_model_teaches_itself(void) {
    static const struct {
        const char *more;
        bool learns;
    } of[] = {
        { "--opd-context-key same", false },
        { "--opd-context-key same --opd-log-prob-top-k 3", false },
        { "--opd-context-key hint", true },
        { "--opd-context-key hint --opd-log-prob-top-k 3 --opd-top-k-strategy union",
          true },
        { "--opd-context-key another --opd-sibling-reward 1e9", false },
        { "--opd-context-key another --opd-sibling-reward -1e9 --opd-log-prob-top-k 3",
          true },
    };
    ml_text t = { 0 };
    char flags[1500], name[32];

    make_inputs();
    for (int i = 0; i < 12; i++)
        ml_text_printf(&t,
                       "{\"input\": \"what is %d+1?\", \"label\": \"%d\", \"metadata\": "
                       "{\"same\": \"what is %d+1?\", \"hint\": [{\"role\": \"user\", "
                       "\"content\": \"what is %d+1? it is %d.\"}], \"another\": \"what is "
                       "%d+1? one said: {sibling}.\"}}\n",
                       i, i + 1, i, i, i + 1, i);
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        snprintf(name, sizeof name, "run_%zu", i);
        snprintf(flags, sizeof flags, "--use-opd --opd-type self %s", of[i].more);
        must_run(ml_test_path(name), 1, flags);
        if ((figure(ml_test_path(name), 0, "rollout/opd_reverse_kl") != 0) != of[i].learns)
            ml_test_fail(__FILE__, __LINE__, "%s", flags);
    }
    CHECK(run(ml_test_path("none"), 1, "--use-opd --opd-type self --opd-context-key no") !=
          0);
    CHECK_HAS(out, "metadata has no \"no\", the teacher's prompt (--opd-context-key)");
}

static void teachers_that_are_missing_are_named(void) {
    const char *save = ml_test_path("run");

    make_inputs();
    CHECK(run(save, 1, "--use-opd") == 2);
    CHECK_HAS(out, "--use-opd needs --opd-type");
    CHECK(run(save, 1, "--use-opd --opd-type sglang") == 2);
    CHECK_HAS(out, "takes the teacher from --opd-teacher-urls");
    CHECK(run(save, 1, "--opd-type megatron --opd-teacher-load x") == 2);
    CHECK_HAS(out, "need --use-opd");
    CHECK(run(save, 1, "--use-opd --opd-type megatron --opd-teacher-load /nowhere") != 0);
    CHECK_HAS(out, "--opd-teacher-load: /nowhere: ");
}

/* --- a reference -------------------------------------------------------------- */

static void the_reference_follows_and_is_saved(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    static const char flags[] =
        "--use-kl-loss --kl-loss-coef 0.1 --kl-loss-type k3 --ref-update-interval 2 ";

    make_inputs();
    must_go_on(whole, ROUNDS, flags);
    CHECK(figure(whole, 0, "train/kl_loss") == 0);
    CHECK(figure(whole, 1, "train/kl_loss") > 0);
    CHECK(figure(whole, 2, "train/kl_loss") == 0);
    CHECK(figure(whole, 3, "train/kl_loss") > 0);
    must_go_on(parts, 3, flags);
    must_go_on(parts, ROUNDS, flags);
    same_ends(whole, parts, ROUNDS);
    CHECK(run(whole, 1, "--ref-update-interval 2") == 2);
    CHECK_HAS(out, "--ref-update-interval needs a reference model");
}

/* --- starting ----------------------------------------------------------------- */

static void starts_where_miles_does(void) {
    const char *first = ml_test_path("first"), *second = ml_test_path("second"),
               *third = ml_test_path("third");
    char flags[1500];

    make_inputs();
    must_run(first, 2, "--save-interval 1");
    /* Nothing in --load: the actor starts from --ref-load, at its first round. */
    snprintf(flags, sizeof flags, "--load %s --ref-load %s --use-kl-loss", second, first);
    must_run(second, 1, flags);
    CHECK_HAS(out, "rollout 0, step 0: ");
    CHECK(figure(second, 0, "rollout/ref_log_probs") ==
          figure(second, 0, "rollout/log_probs"));
    snprintf(flags, sizeof flags, "--load %s --finetune", first);
    must_run(third, 1, flags);
    CHECK(figure(third, 0, "rollout/log_probs") == figure(second, 0, "rollout/log_probs"));
    snprintf(flags, sizeof flags,
             "--load %s --no-load-optim --start-rollout-id 5 --overwrite", first);
    must_run(third, 6, flags);
    CHECK_HAS(out, "rollout 5, step 10: ");
    snprintf(flags, sizeof flags, "--load %s --ckpt-step 0 --overwrite", first);
    must_run(third, 2, flags);
    CHECK(shell("cmp %s/iter_0000001/trainer.safetensors "
                "%s/iter_0000001/trainer.safetensors",
                first, third));
}

static void leaves_what_it_is_told_to(void) {
    const char *save = ml_test_path("run");
    char flags[1500];

    make_inputs();
    snprintf(flags, sizeof flags,
             "--save-interval 1 --save-retain-interval 3 --save-hf %s/hf/{rollout_id} "
             "--no-save-optim",
             ml_test_dir());
    must_run(save, 6, flags);
    CHECK(shell("test $(ls -d %s/iter_* | wc -l) = 3", save));
    CHECK(shell("test -d %s/iter_0000000 -a -d %s/iter_0000003 -a -d %s/iter_0000005", save,
                save, save));
    CHECK(shell("test $(ls %s/hf | wc -l) = 6", ml_test_dir()));
    CHECK(shell("cmp %s/iter_0000005/model.safetensors %s/hf/5/model.safetensors", save,
                ml_test_dir()));
    CHECK(shell("test ! -e %s/hf/5/state.json", ml_test_dir()));
    snprintf(flags, sizeof flags, "--load %s", save);
    CHECK(run(save, 7, flags) != 0);
    CHECK_HAS(out, "restart the optimizer with --no-load-optim");
    snprintf(flags, sizeof flags, "--load %s --no-load-optim", save);
    must_run(save, 7, flags);
    CHECK_HAS(out, "rollout 6, step 12: ");
}

/* --- old log-probs and moments -------------------------------------------------- */

/* Rounds that other weights drew: their log-probs are those of the old actor. */
static void an_old_actor_is_what_drew(void) {
    const char *first = ml_test_path("first"), *second = ml_test_path("second");
    char flags[1500];

    make_inputs();
    snprintf(flags, sizeof flags, "--save-debug-rollout-data %s/rounds/{rollout_id}.zst",
             ml_test_dir());
    must_run(first, 1, flags);
    CHECK(shell("cp %s/rounds/0.zst %s/rounds/1.zst", ml_test_dir(), ml_test_dir()));
    snprintf(flags, sizeof flags,
             "--load-debug-rollout-data %s/rounds/{rollout_id}.zst --keep-old-actor",
             ml_test_dir());
    must_run(second, 2, flags);
    CHECK_HAS(out, "stale tokens");
    CHECK(figure(second, 1, "rollout/log_probs") ==
          figure(second, 1, "rollout/rollout_log_probs"));
    CHECK(figure(second, 1, "train/ppo_kl") != 0);
    CHECK(run(second, 1, "--keep-old-actor --skip-actor-forward-only") == 2);
}

static void moments_may_begin_anew(void) {
    const char *first = ml_test_path("first"), *second = ml_test_path("second");

    make_inputs();
    must_run(first, 2, "");
    must_run(second, 2, "--reset-optimizer-states");
    CHECK(shell("grep -q 'optimizer_step\": 4,' %s/iter_0000001/state.json", first));
    CHECK(shell("grep -q 'optimizer_step\": 2,' %s/iter_0000001/state.json", second));
}

static const ml_test tests[] = {
    { "PPO trains and saves a critic beside the actor", a_critic_learns_beside_the_actor },
    { "PPO gives the same bytes for any division of the work",
      ppo_has_the_same_bytes_however_it_runs },
    { "a missing critic checkpoint is named", a_critic_that_is_missing_is_named },
    { "PPO kills change no byte of the run", ppo_survives_kills, 300 },
    { "a teacher's log-probs change what is trained", a_teacher_is_asked },
    { "a teacher server gives the bits of one in memory", a_teacher_may_be_a_server },
    { "top-k tokens of student and teacher are compared", top_k_tokens_are_compared },
    { "a teacher may have another architecture", another_architecture_teaches },
    { "each sample is scored by the teacher that it names", samples_name_their_teachers },
    { "a model with privileged context teaches itself", a_model_teaches_itself },
    { "a missing teacher is named", teachers_that_are_missing_are_named },
    { "--ref-update-interval updates and saves the reference",
      the_reference_follows_and_is_saved },
    { "a run starts from the checkpoints that Miles starts from", starts_where_miles_does },
    { "a run keeps the snapshots and copies it is told to", leaves_what_it_is_told_to },
    { "--keep-old-actor scores with the weights that drew", an_old_actor_is_what_drew },
    { "--reset-optimizer-states resets moments", moments_may_begin_anew },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
