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
#include "rl/loop/iteration.h"
#include "tests/support/scratch.h"
#include "tests/support/terminal.h"
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

/* What was drawn never goes beyond the last column.  Lines that begin with `but` and what
 * follows them may. */
static void check_width(const ml_terminal *t, int columns, const char *but) {
    ml_text line = { 0 };

    for (const char *s = t->out.ptr; *s; s++) {
        if (but && strncmp(s, but, strlen(but)) == 0)
            break;
        if (*s == '\033') { /* erases, or moves up */
            s += strcspn(s, "KJA");
            if (!*s)
                break;
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

/* Rollouts whose reward rises, and the figures of the last. */
static void tell_learned(const ml_display *d, int n) {
    for (int i = 0; i < n; i++) {
        ml_iteration r = { .rollout = i,
                           .batch = { .n_drawn = 1000, .made_s = 2.0 },
                           .result = { .train_s = 0.5, .max_diff = 0 } };
        ml_loop_event e = { .kind = ML_ON_LEARNED, .rollout = i, .n_rollout = 100 };
        ml_arena_init(&r.arena, "iteration");
        ml_metrics_init(&r.result.rollout, &r.arena);
        ml_metrics_add(&r.result.rollout, "rollout/", "raw_reward", i / 10.0);
        ml_metrics_add(&r.result.rollout, "rollout/", "response_lengths", 12);
        e.iteration = &r;
        CHECK(d->progress.on(d->progress.self, &e, NULL) == ML_OK);
        ml_arena_release(&r.arena);
    }
}

/* The child's part: a rollout, slower than the view is drawn. */
_Noreturn static void pretend_to_work(const char *locale) {
    ml_display d = ml_progress_open(NULL, NULL, ML_VIEW_AUTO);

    setenv("LC_ALL", locale, 1);

    tell(&d, ML_ON_RUN_BEGIN, ML_STAGE_ROLLOUT);
    tell(&d, ML_ON_STAGE, ML_STAGE_ROLLOUT);
    ml_work_count_expect(d.answers, 8);
    for (int i = 0; i < 3; i++)
        ml_work_count_add(d.answers);
    usleep(500000);
    d.say("    4  reward 0.500  len 12  cut 0%  |dlogp| 0  loss 0.0100  grad 0.123");
    tell_learned(&d, 8);
    tell(&d, ML_ON_STAGE, ML_STAGE_LEARN);
    ml_work_count_expect(d.micro, 2);
    ml_work_count_add(d.micro);
    usleep(500000);
    d.say("a line above the view");
    tell(&d, ML_ON_ROLLOUT_END, ML_STAGE_LEARN);
    ml_progress_end();
    _exit(0);
}

static void the_view_moves_inside_a_round(void) {
    for (unsigned short columns = 40; columns <= 120; columns += 40) {
        ml_terminal t;
        if (ml_terminal_open(&t, columns))
            pretend_to_work("C.UTF-8");
        CHECK(ml_terminal_close(&t) == 0);
        CHECK_HAS(t.out.ptr, "4/100  generating 3/8 answers");
        CHECK_HAS(t.out.ptr, "4/100  training 1/2 micro-batches");
        CHECK_HAS(t.out.ptr, "    4  reward 0.500");
        CHECK_HAS(t.out.ptr,
                  columns == 40
                      ? "reward 0.7  "
                      : "reward 0.7  \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
                        "  length 12  |dlogp| 0");
        CHECK_HAS(t.out.ptr, "rollout 500 tokens/s  training ");
        check_width(&t, columns, NULL);
        ml_text_release(&t.out);
    }
}

static void without_utf8_the_curve_is_ascii(void) {
    ml_terminal t;

    if (ml_terminal_open(&t, WIDTH))
        pretend_to_work("C");
    CHECK(ml_terminal_close(&t) == 0);
    CHECK_HAS(t.out.ptr, "reward 0.7  _.-~=+*#  length 12");
    ml_text_release(&t.out);
}

static void the_view_leaves_only_lines(void) {
    ml_screen screen = { { 0 } };
    ml_terminal t;

    if (ml_terminal_open(&t, WIDTH))
        pretend_to_work("C");
    CHECK(ml_terminal_close(&t) == 0);
    ml_terminal_screen(&t, screen);
    CHECK_HAS(screen[0], "    4  reward 0.500  len 12  cut 0%");
    CHECK(strcmp(screen[1], "a line above the view") == 0);
    for (int i = 2; i < 24; i++)
        CHECK(!screen[i][0]);
    ml_text_release(&t.out);
}

/* --- Ctrl-C ------------------------------------------------------------------------------ */

/* A run whose rewards take a while, on a terminal. */
static void start_run(ml_terminal *t, const char *save, const char *seconds) {
    char args[3000], command[4000];

    ml_toy_file("slow.sh", "while read -r line; do sleep $1; echo 1; done\n");
    snprintf(command, sizeof command,
             "--custom-rm-path 'cmd:sh %s %s' --reward-workers 2 --eval-interval 1000 "
             "--skip-eval-before-train",
             ml_test_path("slow.sh"), seconds);
    ml_toy_run_args(args, sizeof args, "train", save, 1000, command);
    snprintf(command, sizeof command, "exec \"$MILES_UNDER_TEST\"/miles %s", args);
    if (ml_terminal_open(t, WIDTH)) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
}

static void ctrl_c_tells_what_happens(void) {
    const char *save = ml_test_path("run");
    char command[6000], out[16000], *go_on;
    ml_terminal t;

    ml_toy_run_inputs();
    start_run(&t, save, "0.1");
    CHECK(ml_terminal_until(&t, "1/1000  generating "));
    CHECK(write(t.fd, "\003", 1) == 1);
    CHECK(ml_terminal_until(&t, "; Ctrl-C again: stop immediately and lose it"));
    CHECK(ml_terminal_close(&t) == 0);
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
    ml_terminal t;

    ml_toy_run_inputs();
    start_run(&t, ml_test_path("run"), "0.5");
    CHECK(ml_terminal_until(&t, "generating"));
    CHECK(write(t.fd, "\003", 1) == 1);
    CHECK(ml_terminal_until(&t, "; Ctrl-C again: stop immediately and lose it"));
    CHECK(write(t.fd, "\003", 1) == 1);
    CHECK(ml_terminal_close(&t) != 0);
    CHECK_HAS(t.out.ptr, "stopped immediately; rollout ");
    CHECK_HAS(t.out.ptr, " is lost");
    ml_text_release(&t.out);
}

static const ml_test tests[] = {
    { "lines are wrapped at the terminal's width", lines_are_wrapped },
    { "the live view moves inside a round", the_view_moves_inside_a_round },
    { "without UTF-8 the curve is ASCII", without_utf8_the_curve_is_ascii },
    { "the live view leaves only the lines of the run", the_view_leaves_only_lines },
    { "Ctrl-C finishes the round and says how to continue", ctrl_c_tells_what_happens,
      120 },
    { "a second Ctrl-C stops the run at once", a_second_ctrl_c_stops_at_once, 120 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
