/* flight_priv.h - what the files of flights share. */
#ifndef ML_RL_FLIGHT_PRIV_H
#define ML_RL_FLIGHT_PRIV_H

#include "rl/flight.h"

/* --- flight.c --- */

/* Asks the generator for the rest of the sample. */
ml_status ml_flight_launch(ml_flight *x, ml_err *err);
/* The text of n tokens of the response from the given one on, in the flights' arena. */
ml_str ml_flight_text(const ml_flight *x, int32_t from, int32_t n, bool skip_special);
/* The sample has ended; its text is there. */
void ml_flight_land(ml_flight *x, ml_sample_status status);

/* --- flight_turns.c --- */

/* The model's turn has ended: the sample waits for ml_flights_go_on. */
void ml_flight_hear(ml_flight *x);

/* --- flight_reward.c --- */

/* Asks for the reward of a sample that has ended, where there is one to be had; after that it
 * belongs to who waits for it. */
void ml_flight_grade(ml_flight *x);

/* n samples that are graded together, where the run wants that. */
void ml_crowd_open(ml_flights *f, ml_flight **mate /* [n] */, int32_t n);
/* Those that could not be begun will not end. */
void ml_crowd_give_up(ml_flights *f, ml_flight *const *mate /* [n] */, int32_t n);

#endif
