/* kill.h - runs of miles that are killed while they are at work.
 *
 * What a run is doing shows in the directory it saves to: while a snapshot is being written
 * there is a name with ".tmp-PID" in it.  So a kill waits until the run has begun its first
 * save, or ended it and gone on, and strikes a random moment later; what it hit is told by
 * what is left on disk.  Runs must save after every round. */
#ifndef ML_TESTS_SUPPORT_KILL_H
#define ML_TESTS_SUPPORT_KILL_H

#include <stdbool.h>

typedef enum ml_hit {
    ML_HIT_START, /* before the run's first save */
    ML_HIT_ROUND, /* in a round after it */
    ML_HIT_SAVE,
    ML_HIT_END, /* there was nothing left to kill */
    ML_HITS
} ml_hit;

typedef struct ml_kills {
    int n_want; /* kills */
    unsigned seed;
    unsigned reach_us[ML_HITS]; /* how long after the sign a kill may come */
    int n[ML_HITS], n_kill;
} ml_kills;

/* So many kills, 3 of 5 in rounds and 1 of 5 in saves at least.  Prints the seed. */
void ml_kills_init(ml_kills *k, int n);

/* Rounds that a run needs so that it does not end before that. */
int ml_kills_rounds(const ml_kills *k);

/* False when there were enough, or far too many. */
bool ml_kills_go_on(const ml_kills *k);

/* Starts miles with this command line, whose snapshots go to `save`, and kills it. */
void ml_kills_once(ml_kills *k, const char *args, const char *save);

/* Prints what was hit; the test fails if it was not what was wanted. */
void ml_kills_tell(const ml_kills *k);

#endif
