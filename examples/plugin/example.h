/* example.h - the extensions of this shared object. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include "miles/plugin.h"

/* algorithm.c */
extern const miles_advantage example_ramp;
extern const miles_correction example_halve;
extern const miles_reducer example_by_ten;
extern const miles_loss example_reinforce;
extern const miles_reward example_length;
/* loop.c */
extern const miles_rollout example_hardest;
extern const miles_eval example_first_set;
extern const miles_buffer example_newest_first;
extern const miles_prompts example_sums;
extern const miles_source example_backwards;
extern const miles_generate example_guess;
extern const miles_group_reward example_shortest;
extern const miles_group_filter example_some_finished;
extern const miles_buffer_filter example_newest;
extern const miles_reward_post example_round_mean;
extern const miles_sample_filter example_finished;
extern const miles_metrics example_longest;
/* journal.c */
extern const miles_samples_hook example_journal_samples;
extern const miles_hook example_journal;

#endif
