/* console.h - the lines that a run prints: its first rollout, a line per train step, a
 * table per evaluation.
 *
 * thread: the loop's. */
#ifndef ML_RL_LOOP_CONSOLE_H
#define ML_RL_LOOP_CONSOLE_H

#include "base/work_count.h"
#include "rl/observer.h"
#include "rl/recipe.h"

/* Where the output of a run goes. */
typedef struct ml_display {
    void (*say)(const char *line);
    bool compact;         /* lines are short, for a terminal */
    ml_observer progress; /* redraws the live view */
    /* Counters of the current rollout that the live view shows; NULL: not wanted. */
    ml_work_count *answers, *micro;
} ml_display;

typedef struct ml_console {
    const ml_display *display;
    const ml_recipe *recipe;
    int64_t print_every; /* rollouts between two printed samples; 0: the first only */
    bool summarized;     /* internal: the first rollout was printed */
} ml_console;

/* An observer, see observer.h. */
ml_status ml_console_on(void *console, const ml_loop_event *e, ml_err *err);

#endif
