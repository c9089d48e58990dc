#include "cli/progress.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/shown.h"
#include "cli/wrap.h"
#include "cli/stop.h"
#include "rl/loop/iteration.h"
#include "train/memory.h"

enum {
    BAR = 30,      /* width of the bar */
    COLUMNS = 80,  /* of a terminal that reports no size */
    HISTORY = 60,  /* rollouts in the curve */
    VIEW = 3,      /* lines of the live view */
    LEAST_ROWS = 8 /* of a terminal that shows more than the first of them */
};

#define TICK_S 0.2 /* between two redraws */
#define SILENCE_S                                                                          \
    30 /* without a terminal, a line is printed after this time without output */

static struct {
    pthread_mutex_t lock; /* of the terminal, and of the following fields */
    pthread_cond_t wake;
    pthread_t ticker;
    bool ticks, ending;
    bool bar;                         /* the live view is on */
    int drawn;                        /* its lines that are on the screen */
    double began_s, round_s, spoke_s; /* start of the run; of the rollout; time of the
                                         last line */
    int64_t first, done, total;       /* rollouts: at the start, now, in total; total 0:
                                         not known */
    const atomic_int *stop;
    const char *save;
    bool told;             /* the stop message was printed */
    int stage;             /* ml_stage; ML_N_STAGE: none yet */
    int64_t rollout, last; /* the current rollout; the last, if a stop is requested now */
    int64_t saved;         /* the newest snapshot that this process wrote; -1: none */
    ml_work_count answers, micro; /* of the current rollout; workers count without the
                                     lock */
    /* Of the last train step: */
    const char *curve; /* the name of what history holds: the reward, or the loss of runs
                          without rewards; NULL: no step yet */
    double history[HISTORY]; /* the newest n_history values, the oldest first */
    int n_history;
    double length, max_diff; /* NaN: nothing was generated */
    double rollout_rate, train_rate;
} the = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

/* --- the live view ------------------------------------------------------------------ */

static struct winsize screen(void) {
    struct winsize size = { 0 };

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        size = (struct winsize){ 0 };
    size.ws_col = size.ws_col ? size.ws_col : COLUMNS;
    return size;
}

static void to_first_line(void) {
    putchar('\r');
    if (the.drawn > 1)
        printf("\033[%dA", the.drawn - 1);
}

static void erase(void) {
    if (the.drawn) {
        to_first_line();
        fputs("\033[J", stdout);
    }
    the.drawn = 0;
}

static void add_time(ml_text *t, double s) {
    long n = (long)(s + 0.5);
    if (n >= 3600)
        ml_text_printf(t, "%ld:%02ld:%02ld", n / 3600, n / 60 % 60, n % 60);
    else
        ml_text_printf(t, "%ld:%02ld", n / 60, n % 60);
}

/* "37/64 answers"; work begun before counting started may exceed the expected number. */
static void add_tally(ml_text *t, ml_work_count *of, const char *what) {
    int64_t done = atomic_load(&of->done), total = atomic_load(&of->total);

    if (total > 0 && done <= total)
        ml_text_printf(t, " %lld/%lld %s", (long long)done, (long long)total, what);
    else if (done > 0)
        ml_text_printf(t, " %lld %s", (long long)done, what);
}

/* The current phase and its progress. */
static void add_phase(ml_text *t) {
    static const char *const names[ML_N_STAGE + 1] = { "generating", "training",
                                                       "saving",     "waiting",
                                                       "publishing", "evaluating",
                                                       "starting" };
    int stage = the.stage;

    ml_text_printf(t, "%s", names[stage]);
    if (stage == ML_STAGE_ROLLOUT || stage == ML_STAGE_EVAL || stage == ML_STAGE_REST)
        add_tally(t, &the.answers, "answers");
    else if (stage == ML_STAGE_LEARN)
        add_tally(t, &the.micro, "micro-batches");
}

/* Average seconds of a rollout; 0: not known yet. */
static double per_rollout(void) {
    return the.done > the.first
               ? (the.round_s - the.began_s) / (double)(the.done - the.first)
               : 0.0;
}

/* The text after the bar, the least important part last. */
static void add_state(ml_text *t) {
    double now = ml_clock_s(), round = per_rollout();

    ml_text_printf(t, "%lld/%lld  ", (long long)the.done, (long long)the.total);
    add_phase(t);
    ml_text_printf(t, "  ");
    add_time(t, now - the.began_s);
    if (round > 0) {
        double left = round * (double)(the.total - the.done) - (now - the.round_s);
        ml_text_printf(t, " gone, ");
        add_time(t, left > 0 ? left : 0);
        ml_text_printf(t, " left");
    }
}

/* "[####----] 4/100  training ...". */
static void add_status(ml_text *line, int columns) {
    ml_text t = { 0 };
    int bar, full;

    add_state(&t);
    bar = columns - (int)t.len - (int)strlen("[] ");
    bar = bar > BAR ? BAR : bar;
    full = (int)(bar * the.done / the.total);
    if (bar >= 4) {
        ml_text_printf(line, "[");
        for (int i = 0; i < bar; i++)
            ml_text_printf(line, "%c", i < full ? '#' : '-');
        ml_text_printf(line, "] ");
    }
    ml_text_printf(line, "%.*s", columns, t.ptr);
    ml_text_release(&t);
}

/* By the first of the variables that decide about it and is set. */
static bool shows_utf8(void) {
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };

    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return false;
}

/* A sparkline of the newest values, the smallest of them at the bottom. */
static void add_curve(ml_text *line, int columns) {
    static const char *const blocks[] = { "\u2581", "\u2582", "\u2583", "\u2584",
                                          "\u2585", "\u2586", "\u2587", "\u2588" },
                             *const ascii[] = { "_", ".", "-", "~", "=", "+", "*", "#" };
    const char *const *levels = shows_utf8() ? blocks : ascii;
    int n = the.n_history < columns ? the.n_history : columns;
    const double *x = the.history + the.n_history - n;
    double low = HUGE_VAL, high = -HUGE_VAL;

    for (int i = 0; i < n; i++) {
        low = fmin(low, x[i]);
        high = fmax(high, x[i]);
    }
    for (int i = 0; i < n; i++)
        ml_text_printf(
            line, "%s",
            levels[high > low ? (int)((x[i] - low) / (high - low) * 7.0 + 0.5) : 0]);
}

static void add_reward(ml_text *line, int columns) {
    ml_text after = { 0 };

    ml_text_printf(line, "%s %.4g  ", the.curve, the.history[the.n_history - 1]);
    ml_text_add(&after, "", 0);
    if (!isnan(the.length))
        ml_text_printf(&after, "  length %.0f", the.length);
    if (!isnan(the.max_diff))
        ml_text_printf(&after, "  |dlogp| %g", the.max_diff);
    if ((int)(line->len + after.len) < columns) {
        add_curve(line, columns - (int)(line->len + after.len));
        ml_text_add(line, after.ptr, after.len);
    }
    ml_text_release(&after);
}

static void add_rates(ml_text *line, int columns) {
    ml_text t = { 0 };

    if (the.rollout_rate > 0)
        ml_text_printf(&t, "rollout %.0f tokens/s  ", the.rollout_rate);
    ml_text_printf(&t, "training %.0f tokens/s  memory %.0f MB", the.train_rate,
                   (double)ml_memory_resident() / 1e6);
    ml_text_printf(line, "%.*s", columns, t.ptr);
    ml_text_release(&t);
}

static void draw(void) {
    static void (*const add[VIEW])(ml_text *, int) = { add_status, add_reward, add_rates };
    struct winsize size = screen();
    int n = !the.curve || (size.ws_row && size.ws_row < LEAST_ROWS) ? 1 : VIEW;

    if (!the.bar || !the.total || the.ending)
        return;
    if (the.drawn != n)
        erase();
    to_first_line();
    for (int i = 0; i < n; i++) {
        ml_text line = { 0 };
        add[i](&line, size.ws_col - 1);
        printf("%s%s\033[K", i ? "\n" : "", line.ptr);
        ml_text_release(&line);
    }
    the.drawn = n;
}

static void print_line(const char *line) {
    ml_text shown = { 0 }, wrapped = { 0 };

    ml_text_add(&shown, "", 0);
    ml_text_show(&shown, ml_str_of(line), ML_SHOWN_LINES);
    erase();
    if (the.bar)
        ml_wrap(&wrapped, shown.ptr, screen().ws_col);
    puts(the.bar ? wrapped.ptr : shown.ptr);
    ml_text_release(&wrapped);
    ml_text_release(&shown);
    the.spoke_s = ml_clock_s();
    draw();
    fflush(stdout);
}

/* --- stopping ------------------------------------------------------------------------ */

static void prepare_last_words(int64_t rollout) {
    int64_t saved = the.saved;
    ml_text t = { 0 };

    ml_text_printf(&t, "%smiles: stopped immediately; rollout %lld is lost",
                   the.bar ? "\r\033[K" : "", (long long)rollout);
    if (saved >= 0)
        ml_text_printf(&t, "; the last snapshot is %s/iter_%07lld", the.save,
                       (long long)saved);
    ml_text_printf(&t, "\n");
    ml_stop_last_words(t.ptr);
    ml_text_release(&t);
}

/* Printed once, when the run was requested to stop. */
static void tell_stop(void) {
    int64_t ends = the.last, saved = the.saved;
    double round = per_rollout(), now = ml_clock_s(),
           left = round * (double)(ends + 1 - the.done) - (now - the.round_s);
    ml_text t = { 0 };

    the.told = true;
    prepare_last_words(ends);
    ml_text_printf(&t, "stopping after rollout %lld", (long long)ends);
    if (round > 0 && saved < ends)
        ml_text_printf(&t, ", about %.0f s", left > 1 ? left : 1);
    ml_text_printf(&t, "; %s",
                   saved >= ends ? "it is already saved"
                   : the.save
                       ? "Ctrl-C again: stop immediately and lose it"
                       : "without --save it is lost; Ctrl-C again: stop immediately");
    print_line(t.ptr);
    ml_text_release(&t);
}

/* --- the thread ----------------------------------------------------------------------- */

/* Without a terminal, prints a line after a long time without output. */
static void break_silence(void) {
    ml_text t = { 0 };

    if (the.bar || !the.total || ml_clock_s() - the.spoke_s < SILENCE_S)
        return;
    ml_text_printf(&t, "rollout %lld: ", (long long)the.rollout);
    add_phase(&t);
    print_line(t.ptr);
    ml_text_release(&t);
}

static void *tick(void *ud) {
    struct timespec until;

    (void)ud;
    pthread_mutex_lock(&the.lock);
    while (!the.ending) {
        if (the.stop && *the.stop && !the.told)
            tell_stop();
        break_silence();
        draw();
        fflush(stdout);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)(TICK_S * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&the.wake, &the.lock, &until);
    }
    pthread_mutex_unlock(&the.lock);
    return NULL;
}

static void say(const char *line) {
    pthread_mutex_lock(&the.lock);
    print_line(line);
    pthread_mutex_unlock(&the.lock);
}

static void begin_rollout(const ml_loop_event *e) {
    the.round_s = ml_clock_s();
    the.done = e->rollout + (e->kind == ML_ON_ROLLOUT_END);
    the.total = e->n_rollout;
    if (e->kind == ML_ON_RUN_BEGIN) {
        the.first = the.done;
        the.began_s = the.round_s;
    }
    draw();
    fflush(stdout);
}

static void add_to_history(const char *name, double value) {
    if (isnan(value))
        return;
    if (the.curve && strcmp(the.curve, name) != 0)
        the.n_history = 0;
    if (the.n_history == HISTORY)
        memmove(the.history, the.history + 1, (HISTORY - 1) * sizeof *the.history);
    else
        the.n_history++;
    the.history[the.n_history - 1] = value;
    the.curve = name;
}

/* The figures of a rollout that was trained on. */
static void take_figures(const ml_iteration *r) {
    const ml_metrics *f = &r->result.rollout;
    double reward = ml_metrics_get(f, "rollout/raw_reward", (double)NAN);
    const ml_step_metrics *last =
        r->result.n_step ? &r->result.step[r->result.n_step - 1] : NULL;

    if (!isnan(reward))
        add_to_history("reward", reward);
    else if (last && last->has_step)
        add_to_history("loss", last->step.loss);
    the.length = r->batch.n_drawn
                     ? ml_metrics_get(f, "rollout/response_lengths", (double)NAN)
                     : (double)NAN;
    the.max_diff = r->batch.n_drawn ? r->result.max_diff : (double)NAN;
    the.rollout_rate =
        r->batch.n_drawn ? ml_rate(r->batch.n_drawn, ml_iteration_seconds(r)) : 0;
    the.train_rate = ml_rate(ml_iteration_tokens(r), r->result.train_s);
}

static ml_status on(void *self, const ml_loop_event *e, ml_err *err) {
    (void)self, (void)err;
    if (e->kind > ML_ON_RUN_END)
        return ML_OK; /* not of the loop */
    pthread_mutex_lock(&the.lock);
    the.rollout = e->rollout;
    the.last = e->last;
    if (e->kind == ML_ON_STAGE || e->stage == ML_STAGE_EVAL)
        the.stage = (int)e->stage;
    if (e->kind == ML_ON_LEARNED)
        take_figures(e->iteration);
    if (e->kind == ML_ON_SAVED)
        the.saved = e->rollout;
    if (e->kind == ML_ON_RUN_BEGIN || e->kind == ML_ON_ROLLOUT_END)
        begin_rollout(e);
    pthread_mutex_unlock(&the.lock);
    return ML_OK;
}

ml_display ml_progress_open(const atomic_int *stop, const char *save, ml_live_view view) {
    the.bar = view == ML_VIEW_AUTO ? isatty(STDOUT_FILENO) == 1 : view == ML_VIEW_ON;
    the.curve = NULL;
    the.n_history = 0;
    the.began_s = the.round_s = the.spoke_s = ml_clock_s();
    the.stop = stop;
    the.save = save;
    the.ending = the.told = false;
    the.stage = ML_N_STAGE;
    the.saved = -1;
    the.ticks = pthread_create(&the.ticker, NULL, tick, NULL) == 0;
    return (ml_display){ .say = say,
                         .compact = the.bar,
                         .progress = { NULL, on },
                         .answers = &the.answers,
                         .micro = &the.micro };
}

void ml_progress_end(void) {
    pthread_mutex_lock(&the.lock);
    the.ending = true;
    pthread_cond_signal(&the.wake);
    pthread_mutex_unlock(&the.lock);
    if (the.ticks)
        pthread_join(the.ticker, NULL);
    the.ticks = false;
    erase();
    the.total = 0;
    fflush(stdout);
}

void ml_progress_pause(void) {
    pthread_mutex_lock(&the.lock);
    if (!the.drawn)
        return;
    erase();
    fflush(stdout);
}

void ml_progress_resume(void) {
    draw();
    fflush(stdout);
    pthread_mutex_unlock(&the.lock);
}
