/* What a run shows on a terminal while it works, and what Ctrl-C does. */
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/progress.h"
#include "cli/wrap.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

enum { WIDTH = 80 };

/* --- wrapped lines ------------------------------------------------------------------- */

static void check_wrap(const char *line, int width, const char *want) {
    ml_text t = { 0 };

    ml_wrap(&t, line, width);
    if (strcmp(t.ptr, want) != 0)
        ml_test_fail(__FILE__, __LINE__, "wrapped to '%s', not '%s'", t.ptr, want);
    ml_text_release(&t);
}

static void lines_are_wrapped(void) {
    check_wrap("short", 20, "short");
    check_wrap("", 20, "");
    check_wrap("words that do not fit one line", 20, "words that do not\n    fit one line");
    check_wrap("    1  loss 0.1  grad 0.2  roll 1s 9t/s", 26,
               "    1  loss 0.1  grad 0.2\n    roll 1s 9t/s");
    check_wrap("aaaaaaaaaaaaaaaaaaaaaaaaa", 20, "aaaaaaaaaaaaaaaaaaaa\n    aaaaa");
    check_wrap("\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad"
               "\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad",
               20,
               "\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad"
               "\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\n    \xe4\xb8\xad");
}

/* --- a terminal ------------------------------------------------------------------------ */

typedef struct terminal {
    pid_t pid;
    int fd;
    ml_text out;
} terminal;

/* Reads until the text is there, or the process has ended. */
static bool read_until(terminal *t, const char *text) {
    for (;;) {
        struct pollfd p = { .fd = t->fd, .events = POLLIN };
        char piece[4096];
        ssize_t n;
        if (text && t->out.ptr && strstr(t->out.ptr, text))
            return true;
        if (poll(&p, 1, 60000) <= 0)
            return false;
        n = read(t->fd, piece, sizeof piece);
        if (n <= 0)
            return text == NULL;
        ml_text_add(&t->out, piece, (size_t)n);
        ml_text_add(&t->out, "", 0);
    }
}

static int close_terminal(terminal *t) {
    int status = 0;

    read_until(t, NULL);
    while (waitpid(t->pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(t->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Forks with a terminal of so many columns; true in the child. */
static bool open_terminal(terminal *t, unsigned short columns) {
    struct winsize size = { .ws_row = 24, .ws_col = columns };

    *t = (terminal){ 0 };
    t->pid = forkpty(&t->fd, NULL, NULL, &size);
    CHECK(t->pid >= 0);
    return t->pid == 0;
}

/* What was drawn never goes beyond the last column.  Lines that begin with `but` and what
 * follows them may. */
static void check_width(const terminal *t, int columns, const char *but) {
    ml_text line = { 0 };

    for (const char *s = t->out.ptr; *s; s++) {
        if (but && strncmp(s, but, strlen(but)) == 0)
            break;
        if (*s == '\033') { /* erase to the end of the line */
            s += 2;
            continue;
        }
        if (*s != '\r' && *s != '\n') {
            ml_text_add(&line, s, 1);
            continue;
        }
        if (ml_columns((ml_str){ line.ptr, line.len }) > columns)
            ml_test_fail(__FILE__, __LINE__, "more than %d columns: %.*s", columns,
                         (int)line.len, line.ptr);
        line.len = 0;
    }
    ml_text_release(&line);
}

static void tell(const ml_display *d, ml_loop_event_kind kind, ml_stage stage) {
    ml_loop_event e = { .kind = kind, .rollout = 4, .n_rollout = 100, .stage = stage };
    CHECK(d->progress.on(d->progress.self, &e, NULL) == ML_OK);
}

/* The child's part: a rollout, slower than the line is drawn. */
_Noreturn static void pretend_to_work(void) {
    ml_display d = ml_progress_open(NULL, NULL, false);

    tell(&d, ML_ON_RUN_BEGIN, ML_STAGE_ROLLOUT);
    tell(&d, ML_ON_STAGE, ML_STAGE_ROLLOUT);
    ml_work_count_expect(d.answers, 8);
    for (int i = 0; i < 3; i++)
        ml_work_count_add(d.answers);
    usleep(500000);
    d.say("    4  reward 0.500  len 12  cut 0%  |dlogp| 0  loss 0.0100  grad 0.123");
    tell(&d, ML_ON_STAGE, ML_STAGE_LEARN);
    ml_work_count_expect(d.micro, 2);
    ml_work_count_add(d.micro);
    usleep(500000);
    tell(&d, ML_ON_ROLLOUT_END, ML_STAGE_LEARN);
    ml_progress_end();
    _exit(0);
}

static void the_last_line_moves_inside_a_round(void) {
    for (unsigned short columns = 40; columns <= 120; columns += 40) {
        terminal t;
        if (open_terminal(&t, columns))
            pretend_to_work();
        CHECK(close_terminal(&t) == 0);
        CHECK_HAS(t.out.ptr, "4/100  generating 3/8 answers");
        CHECK_HAS(t.out.ptr, "4/100  training 1/2 micro-batches");
        CHECK_HAS(t.out.ptr, "    4  reward 0.500");
        check_width(&t, columns, NULL);
        ml_text_release(&t.out);
    }
}

/* --- Ctrl-C ------------------------------------------------------------------------------ */

/* A run whose rewards take a while, on a terminal. */
static void start_run(terminal *t, const char *save, const char *seconds) {
    char args[3000], command[4000];

    ml_toy_file("slow.sh", "while read -r line; do sleep $1; echo 1; done\n");
    snprintf(command, sizeof command,
             "--custom-rm-path 'cmd:sh %s %s' --reward-workers 2 --eval-interval 1000 "
             "--skip-eval-before-train",
             ml_test_path("slow.sh"), seconds);
    ml_toy_run_args(args, sizeof args, "train", save, 1000, command);
    snprintf(command, sizeof command, "exec \"$MILES_UNDER_TEST\"/miles %s", args);
    if (open_terminal(t, WIDTH)) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
}

static void ctrl_c_tells_what_happens(void) {
    const char *save = ml_test_path("run");
    char command[6000], out[16000], *go_on;
    terminal t;

    ml_toy_run_inputs();
    start_run(&t, save, "0.1");
    CHECK(read_until(&t, "1/1000  generating "));
    CHECK(write(t.fd, "\003", 1) == 1);
    CHECK(read_until(&t, "; Ctrl-C again: stop immediately and lose it"));
    CHECK(close_terminal(&t) == 0);
    CHECK_HAS(t.out.ptr, "stopping after rollout ");
    CHECK_HAS(t.out.ptr, "/16 answers");
    CHECK_HAS(t.out.ptr, "; saved in ");
    check_width(&t, WIDTH + 2, "stopped after"); /* the terminal itself shows ^C */
    go_on = strstr(t.out.ptr, "to resume:");
    CHECK(go_on != NULL);
    if (!go_on)
        return;
    CHECK_HAS(go_on, " --load ");
    for (char *s = go_on; *s; s++)
        if (*s == '\r')
            *s = ' ';
    /* The command goes on where the run was. */
    while ((go_on = strstr(go_on, "\\ \n"))) /* what the terminal made of a line's end */
        memcpy(go_on, "   ", 3);
    go_on = strstr(t.out.ptr, "to resume:") + strlen("to resume:");
    snprintf(command, sizeof command, "( %.*s --debug-exit-after-rollout 1 ) 2>&1",
             (int)strcspn(go_on + 3, "\n") + 3, go_on);
    {
        FILE *f = popen(command, "r");
        size_t n = f ? fread(out, 1, sizeof out - 1, f) : 0;
        out[n] = 0;
        CHECK(f && pclose(f) == 0);
    }
    CHECK_HAS(out, "Loaded checkpoint from ");
    ml_text_release(&t.out);
}

static void a_second_ctrl_c_stops_at_once(void) {
    terminal t;

    ml_toy_run_inputs();
    start_run(&t, ml_test_path("run"), "0.5");
    CHECK(read_until(&t, "generating"));
    CHECK(write(t.fd, "\003", 1) == 1);
    CHECK(read_until(&t, "; Ctrl-C again: stop immediately and lose it"));
    CHECK(write(t.fd, "\003", 1) == 1);
    CHECK(close_terminal(&t) != 0);
    CHECK_HAS(t.out.ptr, "stopped immediately; rollout ");
    CHECK_HAS(t.out.ptr, " is lost");
    ml_text_release(&t.out);
}

static const ml_test tests[] = {
    { "lines are wrapped at the terminal's width", lines_are_wrapped },
    { "the progress line moves inside a round", the_last_line_moves_inside_a_round },
    { "Ctrl-C finishes the round and says how to continue", ctrl_c_tells_what_happens,
      120 },
    { "a second Ctrl-C stops the run at once", a_second_ctrl_c_stops_at_once, 120 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
