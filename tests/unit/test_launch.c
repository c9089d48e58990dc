/* share/launch: the Slurm script with a stand-in for srun, and the Kubernetes files, whose
 * command lines the flag parser takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/file.h"
#include "cli/cli.h"
#include "io/yaml.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

/* --- Slurm ------------------------------------------------------------------- */

static void write_program(const char *dir, const char *name, const char *text) {
    char path[4200];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    CHECK(f && fprintf(f, "#!/bin/sh\n%s\n", text) > 0 && fclose(f) == 0);
    CHECK(chmod(path, 0755) == 0);
}

static char *read_text(const char *dir, const char *name) {
    static char text[8192];
    char path[4200];
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "r");
    n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f)
        fclose(f);
    return text;
}

/* Runs the script with these words; srun ends with `code`.  Returns the script's code. */
static int run_slurm(const char *dir, int code, const char *restarts, const char *words) {
    char command[9000], fake[4300];
    int rc;

    snprintf(fake, sizeof fake, "echo \"$@\" > %s/srun.log\nexit %d", dir, code);
    write_program(dir, "srun", fake);
    snprintf(fake, sizeof fake, "echo \"$@\" > %s/scontrol.log", dir);
    write_program(dir, "scontrol", fake);
    snprintf(command, sizeof command,
             "rm -f %s/scontrol.log; PATH=%s:$PATH SLURM_JOB_ID=77 SLURM_RESTART_COUNT=%s "
             "MILES=/opt/miles bash share/launch/slurm.sh %s 2>/dev/null",
             dir, dir, restarts, words);
    rc = system(command);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

static void slurm(void) {
    const char *dir = ml_test_dir();

    CHECK(run_slurm(dir, 0, "0", "train --lr 1e-6 --rm-type \"a b\"") == 0);
    CHECK_HAS(read_text(dir, "srun.log"), "--mpi=pmix --kill-on-bad-exit=1");
    CHECK_HAS(read_text(dir, "srun.log"), "/opt/miles train --lr 1e-6 --rm-type a b");
    CHECK(!*read_text(dir, "scontrol.log"));
    /* Another process failed: the job is queued again, up to the limit. */
    CHECK(run_slurm(dir, 3, "0", "train") == 3);
    CHECK_HAS(read_text(dir, "scontrol.log"), "requeue 77");
    CHECK(run_slurm(dir, 3, "20", "train") == 3);
    CHECK(!*read_text(dir, "scontrol.log"));
    CHECK(run_slurm(dir, 1, "0", "train") == 1);
    CHECK(!*read_text(dir, "scontrol.log"));
    CHECK(run_slurm(dir, 0, "0", "") == 2);
}

/* --- Kubernetes ---------------------------------------------------------------- */

enum { MOST = 4 };

/* The documents of a file, which lines of --- divide. */
static int parse_all(const ml_json **out, ml_arena *a, const char *path) {
    ml_file f = { 0 };
    char *text, *next;
    int n = 0;

    MUST(ml_file_map(&f, path, &err));
    text = ml_arena_str(a, f.bytes.ptr, f.bytes.len);
    ml_file_unmap(&f);
    for (; text; text = next) {
        next = strstr(text, "\n---\n");
        if (next)
            *next++ = 0;
        CHECK(n < MOST);
        MUST(ml_yaml_parse(&out[n++], a, ml_str_of(text), path, &err));
    }
    return n;
}

/* A member of a member: "spec.template.spec"; a number is the place in a list. */
static const ml_json *at(const ml_json *v, const char *path) {
    char key[64];

    while (v && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        if (v->type == ML_JSON_ARRAY) {
            const ml_json *item = v->child;
            for (int i = atoi(key); item && i > 0; i--)
                item = item->next;
            v = item;
        } else {
            v = ml_json_get(v, key);
        }
        path += n + (path[n] == '.');
    }
    return v;
}

static bool is(const ml_json *v, const char *text) {
    return v && ml_str_is(v->text, text);
}

static int64_t number(const ml_json *v) {
    int64_t n = -1;
    return v && v->type == ML_JSON_STRING ? atoll(v->text.ptr)
                                          : (ml_json_i64(v, &n) ? n : -1);
}

/* The words of a list from the word after `from` on. */
static int words_after(char **out, ml_arena *a, const ml_json *list, const char *from) {
    const ml_json *v = list ? list->child : NULL;
    int n = 0;

    for (; v && !is(v, from); v = v->next)
        continue;
    for (v = v ? v->next : NULL; v; v = v->next)
        out[n++] = ml_arena_str(a, v->text.ptr, v->text.len);
    return n;
}

static void parses(ml_cmd cmd, ml_config *c, char **word, int n) {
    ml_text wrong = { 0 };
    ml_help_asked help;

    if (ml_flags_parse(c, &help, cmd, n, word, &wrong) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", wrong.ptr);
    ml_text_release(&wrong);
}

/* A model that the parser finds, for the one in the file. */
static void put_model(char **word, int n, const char *flag) {
    static char dir[] = "share/configs/Qwen3-8B";

    for (int i = 0; i + 1 < n; i++)
        if (strcmp(word[i], flag) == 0)
            word[i + 1] = dir;
}

static void mpijob(void) {
    const ml_json *doc[MOST], *args;
    char *word[100];
    ml_config c;
    ml_arena a;
    int64_t ranks;
    int n;

    ml_arena_init(&a, "test");
    CHECK(parse_all(doc, &a, "share/launch/mpijob.yaml") == 1);
    CHECK(is(at(doc[0], "apiVersion"), "kubeflow.org/v2beta1"));
    CHECK(is(at(doc[0], "kind"), "MPIJob"));
    ranks = number(at(doc[0], "spec.slotsPerWorker")) *
            number(at(doc[0], "spec.mpiReplicaSpecs.Worker.replicas"));
    args = at(doc[0], "spec.mpiReplicaSpecs.Launcher.template.spec.containers.0.args");
    n = words_after(word, &a, args, "-n");
    CHECK(n && atoll(word[0]) == ranks);
    CHECK(number(at(doc[0], "spec.mpiReplicaSpecs.Worker.template.spec.containers.0."
                            "resources.limits")
                     ->child) == number(at(doc[0], "spec.slotsPerWorker")));
    n = words_after(word, &a, args, "train");
    put_model(word, n, "--hf-checkpoint");
    parses(ML_CMD_TRAIN, &c, word, n);
    CHECK(c.run.place.nodes * c.run.place.gpus_per_node == ranks);
    ml_config_release(&c);
    ml_arena_release(&a);
}

static void engines(void) {
    const ml_json *doc[MOST];
    char *word[100];
    ml_config c;
    ml_arena a;
    int n;

    ml_arena_init(&a, "test");
    CHECK(parse_all(doc, &a, "share/launch/engines.yaml") == 3);
    CHECK(is(at(doc[0], "kind"), "Deployment") && is(at(doc[1], "kind"), "Deployment"));
    CHECK(is(at(doc[2], "kind"), "Service"));
    n = words_after(word, &a, at(doc[0], "spec.template.spec.containers.0.args"), "serve");
    put_model(word, n, "--model-path");
    parses(ML_CMD_SERVE, &c, word, n);
    CHECK(c.server.port == number(at(doc[0], "spec.template.spec.containers.0.ports.0."
                                             "containerPort")));
    ml_config_release(&c);
    n = words_after(word, &a, at(doc[1], "spec.template.spec.containers.0.args"), "router");
    parses(ML_CMD_ROUTER, &c, word, n);
    CHECK(c.router.port == number(at(doc[2], "spec.ports.0.port")));
    ml_config_release(&c);
    /* Labels that select pods are those of the pods. */
    for (int i = 0; i < 2; i++)
        CHECK(ml_str_eq(at(doc[i], "spec.selector.matchLabels.app")->text,
                        at(doc[i], "spec.template.metadata.labels.app")->text));
    CHECK(ml_str_eq(at(doc[2], "spec.selector.app")->text,
                    at(doc[1], "spec.template.metadata.labels.app")->text));
    ml_arena_release(&a);
}

static const ml_test tests[] = {
    { "the Slurm script passes its words to srun and requeues jobs that end with 3",
      slurm },
    { "the MPIJob starts a rank per GPU with flags that miles train takes", mpijob },
    { "the engines' Deployment has flags that miles serve and router take", engines },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
