#include "cli/stop.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/cli.h"

enum { LINE = 55 }; /* columns of a command before its next flag */

static atomic_int n_signal;
static char last_words[1000] = "miles: stopped immediately\n";
static atomic_bool has_words;

/* The progress display responds to the first signal, because it knows the time left. */
static void on_signal(int number) {
    (void)number;
    if (n_signal) {
        size_t n = atomic_load(&has_words) ? strlen(last_words) : 0;
        if (n && write(STDERR_FILENO, last_words, n) < 0)
            _exit(ML_EXIT_FAILED);
        _exit(ML_EXIT_FAILED);
    }
    n_signal = 1;
}

static void on_request(int number) {
    (void)number;
    n_signal = 1;
}

const atomic_int *ml_stop_on_signals(void) {
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = on_request;
    sigaction(SIGUSR1, &action, NULL);
    return &n_signal;
}

void ml_stop_last_words(const char *text) {
    if (atomic_load(&has_words))
        return;
    snprintf(last_words, sizeof last_words, "%s", text);
    atomic_store(&has_words, true);
}

/* --- the command that resumes ------------------------------------------------------ */

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_@%+=:,./-", c));
}

/* The start of the last line. */
static size_t last_line(const ml_text *t) {
    const char *at = t->len ? memrchr(t->ptr, '\n', t->len) : NULL;
    return at ? (size_t)(at - t->ptr) : 0;
}

/* Appends a word quoted for a shell; a flag starts a new line if the current one is
 * full. */
static void add_word(ml_text *t, const char *word) {
    size_t n = 0;

    if (strncmp(word, "--", 2) == 0 && t->len + strlen(word) > last_line(t) + LINE)
        ml_text_printf(t, " \\\n    ");
    else
        ml_text_printf(t, "%s", t->len ? " " : "");
    while (is_plain(word[n]))
        n++;
    if (n && !word[n]) {
        ml_text_printf(t, "%s", word);
        return;
    }
    ml_text_printf(t, "'");
    for (; *word; word++)
        if (*word == '\'')
            ml_text_printf(t, "'\\''");
        else
            ml_text_add(t, word, 1);
    ml_text_printf(t, "'");
}

/* Returns 1 for "--name", 2 for "--name=value", otherwise 0. */
static int is_flag(const char *word, const char *name) {
    size_t n = strlen(name);

    if (strncmp(word, "--", 2) != 0 || strncmp(word + 2, name, n) != 0)
        return 0;
    return word[2 + n] == '\0' ? 1 : word[2 + n] == '=' ? 2 : 0;
}

/* Flags that determine where a run starts; those before NULL have a value. */
static const char *const starts[] = { "load", "ckpt-step", "start-rollout-id",
                                      NULL,   "overwrite", "finetune" };

/* The number of words, from this one on, that belong to a flag of `starts`. */
static int words_of_start(const char *word) {
    bool has_value = true;

    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        int is = starts[i] ? is_flag(word, starts[i]) : 0;
        has_value &= starts[i] != NULL;
        if (is)
            return is == 1 && has_value ? 2 : 1;
    }
    return 0;
}

/* This process's command line, changed to start from the saved snapshot. */
static void add_command(ml_text *t, ml_str words, const char *save) {
    bool saves = false;
    int skip = 0;

    for (size_t at = 0; at < words.len; at += strlen(words.ptr + at) + 1) {
        const char *word = words.ptr + at;
        skip = skip ? skip : words_of_start(word);
        saves |= is_flag(word, "save") != 0;
        if (skip)
            skip--;
        else
            add_word(t, word);
    }
    if (!saves) {
        add_word(t, "--save");
        add_word(t, save);
    }
    add_word(t, "--load");
    add_word(t, save);
}

static ml_text words_of_process(void) {
    ml_text t = { 0 };
    char piece[4096];
    FILE *f = fopen("/proc/self/cmdline", "r");
    size_t n;

    while (f && (n = fread(piece, 1, sizeof piece, f)) > 0)
        ml_text_add(&t, piece, n);
    if (f)
        fclose(f);
    return t;
}

void ml_stop_tell(const ml_train_loop *l, const ml_config *c) {
    ml_text words = { 0 }, command = { 0 };

    if ((!l->stop || !*l->stop) && !l->orders.stop)
        return;
    if (l->run->rollout > 0)
        printf("stopped after rollout %lld", (long long)l->run->rollout - 1);
    else
        printf("stopped before rollout 0");
    if (l->saved < 0) {
        printf("; %s\n",
               c->run.save ? "there is no snapshot" : "nothing is saved without --save");
        return;
    }
    words = words_of_process();
    add_command(&command, (ml_str){ words.ptr, words.len }, c->run.save);
    printf("; saved in %s/iter_%07lld\nto resume:\n  %s\n", c->run.save,
           (long long)l->saved, command.ptr);
    ml_text_release(&words);
    ml_text_release(&command);
}
