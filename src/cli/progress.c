#include "cli/progress.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/shown.h"
#include "cli/wrap.h"
#include "cli/stop.h"

enum {
    BAR = 30,
    COLUMNS = 80
}; /* width of the bar; width of a terminal that reports none */

#define TICK_S 0.2 /* between two redraws */
#define SILENCE_S                                                                          \
    30 /* without a terminal, a line is printed after this time without output */

static struct {
    pthread_mutex_t lock; /* of the terminal, and of the following fields */
    pthread_cond_t wake;
    pthread_t ticker;
    bool ticks, ending;
    bool bar, drawn;                  /* there is a terminal; the bar is drawn */
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
} the = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

/* --- the status line ---------------------------------------------------------------- */

static int width(void) {
    struct winsize size = { 0 };

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col
                                                                       : COLUMNS;
}

static void erase(void) {
    if (the.drawn)
        fputs("\r\033[K", stdout);
    the.drawn = false;
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

static void draw(void) {
    int columns = width() - 1, bar, full;
    ml_text t = { 0 };

    if (!the.bar || !the.total || the.ending)
        return;
    add_state(&t);
    bar = columns - (int)t.len - (int)strlen("[] ");
    bar = bar > BAR ? BAR : bar;
    full = (int)(bar * the.done / the.total);
    putchar('\r');
    if (bar >= 4) {
        putchar('[');
        for (int i = 0; i < bar; i++)
            putchar(i < full ? '#' : '-');
        fputs("] ", stdout);
    }
    printf("%.*s\033[K", columns, t.ptr);
    the.drawn = true;
    ml_text_release(&t);
}

static void print_line(const char *line) {
    ml_text shown = { 0 }, wrapped = { 0 };

    ml_text_add(&shown, "", 0);
    ml_text_show(&shown, ml_str_of(line), ML_SHOWN_LINES);
    erase();
    if (the.bar)
        ml_wrap(&wrapped, shown.ptr, width());
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

static ml_status on(void *self, const ml_loop_event *e, ml_err *err) {
    (void)self, (void)err;
    if (e->kind > ML_ON_RUN_END)
        return ML_OK; /* not of the loop */
    pthread_mutex_lock(&the.lock);
    the.rollout = e->rollout;
    the.last = e->last;
    if (e->kind == ML_ON_STAGE || e->stage == ML_STAGE_EVAL)
        the.stage = (int)e->stage;
    if (e->kind == ML_ON_SAVED)
        the.saved = e->rollout;
    if (e->kind == ML_ON_RUN_BEGIN || e->kind == ML_ON_ROLLOUT_END)
        begin_rollout(e);
    pthread_mutex_unlock(&the.lock);
    return ML_OK;
}

ml_display ml_progress_open(const atomic_int *stop, const char *save, bool lines) {
    the.bar = !lines && isatty(STDOUT_FILENO) == 1;
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
