/* kill.h - kills runs of miles at random moments.
 *
 * The directory a run saves to shows its activity: while a snapshot is being written, a
 * name in it contains ".tmp-PID".  A kill waits until the run has begun or finished its
 * first save, then for a random time; the files left on disk show what it interrupted.
 * Runs must save after every rollout. */
#ifndef ML_TESTS_SUPPORT_KILL_H
#define ML_TESTS_SUPPORT_KILL_H

#include <stdbool.h>

typedef enum ml_hit {
    ML_HIT_START, /* before the run's first save */
    ML_HIT_ROUND, /* in a rollout after it */
    ML_HIT_SAVE,
    ML_HIT_END, /* the run had ended already */
    ML_HITS
} ml_hit;

typedef struct ml_kills {
    int n_want; /* kills */
    unsigned seed;
    unsigned reach_us[ML_HITS]; /* maximum delay of a kill after its trigger */
    int n[ML_HITS], n_kill;
} ml_kills;

/* n kills, at least 3 of 5 in rollouts and 1 of 5 in saves.  Prints the seed. */
void ml_kills_init(ml_kills *k, int n);

/* Rollouts that a run needs so that it does not end before all kills. */
int ml_kills_rounds(const ml_kills *k);

/* False when there were enough kills, or far too many. */
bool ml_kills_go_on(const ml_kills *k);

/* Starts miles with this command line, whose snapshots go to `save`, and kills it. */
void ml_kills_once(ml_kills *k, const char *args, const char *save);

/* Prints the counts; fails the test if they miss the targets of ml_kills_init. */
void ml_kills_tell(const ml_kills *k);

#endif
