/* Extensions of the RL loop: prompts, turns, groups, samples, metrics. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "example.h"

/* The sum of a group's rewards; *i advances to the next group. */
static double take_group(const miles_answers *a, int64_t *i, int64_t *group) {
    double sum = 0;

    *group = a->answer[*i]->group;
    while (*i < a->n && a->answer[*i]->group == *group)
        sum += a->answer[(*i)++]->reward;
    return sum;
}

/* Generates answers to twice as many prompts as the rollout batch needs and keeps the
 * harder half: groups below the mean, then others until there are enough. */
static int hardest(miles_rollout_host *host, miles_error *err) {
    const miles_answers *a;
    int64_t n = 0, i, group;
    double mean = 0;

    if (host->generate(host, 2 * host->n_want, &a, err))
        return 1;
    for (i = 0; i < a->n;)
        mean += take_group(a, &i, &group) / (double)(2 * host->n_want);
    for (int easy = 0; easy < 2; easy++)
        for (i = 0; i < a->n && n < host->n_want;)
            if ((take_group(a, &i, &group) >= mean) == easy) {
                if (host->keep_group(host, group, err))
                    return 1;
                n++;
            }
    host->add_metric(host, "rollout/reward_of_all", mean);
    return 0;
}

/* Evaluates the first set only, and reports how many of its answers have a positive
 * reward. */
static int first_set(miles_eval_host *host, miles_error *err) {
    const miles_answers *a;
    char name[200];
    double n = 0;

    if (host->generate(host, 0, &a, err))
        return 1;
    for (int64_t i = 0; i < a->n; i++)
        n += a->answer[i]->reward > 0;
    snprintf(name, sizeof name, "eval/%.100s/worth_something", host->set[0]);
    host->add_metric(host, name, n / (double)a->n);
    return 0;
}

const miles_eval example_first_set = {
    { sizeof(miles_eval), MILES_EVAL, "first_set", 0,
      "evaluates one data set and counts rewards above 0" },
    first_set
};

/* Trains on the newest groups first; drops groups more than two weight versions old. */
static int newest_first(const miles_waiting *w, int32_t *fate, miles_error *err) {
    int64_t want = w->n_want;

    (void)err;
    for (int64_t i = w->n_group - 1; i >= 0; i--)
        if (w->staleness[i] > 2)
            fate[i] = MILES_DROP;
        else if (want-- > 0)
            fate[i] = MILES_TRAIN;
    return 0;
}

const miles_buffer example_newest_first = {
    { sizeof(miles_buffer), MILES_BUFFER, "newest_first", 0,
      "trains on the newest groups and drops old ones" },
    newest_first
};

/* An endless sequence of addition problems. */
static int sums(int64_t group, int64_t seed, miles_prompt_out *out, miles_error *err) {
    long long a = (group * 7 + seed) % 10, b = (group * 3) % 10;
    char row[200];

    (void)err;
    snprintf(row, sizeof row, "{\"input\": \"what is %lld+%lld?\", \"label\": \"%lld\"}", a,
             b, a + b);
    out->emit(out, row, strlen(row));
    return 0;
}

const miles_prompts example_sums = {
    { sizeof(miles_prompts), MILES_PROMPTS, "sums", 0, "creates arithmetic problems" }, sums
};

const miles_rollout example_hardest = {
    { sizeof(miles_rollout), MILES_ROLLOUT, "hardest", 0,
      "generates twice as many groups and keeps those with lower rewards" },
    hardest
};

/* Selects the rows of the data in reverse order. */
static int64_t backwards(int64_t group, int64_t n_row, int64_t seed) {
    (void)seed;
    return n_row - 1 - group % n_row;
}

const miles_source example_backwards = { { sizeof(miles_source), MILES_SOURCE, "backwards",
                                           0, "reverses the order of the prompts" },
                                         backwards };

/* The number in the label, which is JSON: a number or a string. */
static long number_in(const char *text, size_t len) {
    char digits[24] = "";
    size_t n = 0;

    for (size_t i = 0; i < len && n + 1 < sizeof digits; i++)
        if ((text[i] >= '0' && text[i] <= '9') || (n == 0 && text[i] == '-'))
            digits[n++] = text[i];
        else if (n)
            break;
    return n ? strtol(digits, 0, 10) : -1;
}

/* Replies whether the number in the answer is too small or too large; fewer turns give a
 * higher reward. */
static int guess(const miles_turn_in *in, miles_turn_out *out, miles_error *err) {
    long answer = number_in(in->answer, in->answer_len), label;

    if (!in->label) {
        strcpy(err->text, "the row has no label (the number to guess)");
        return 1;
    }
    label = number_in(in->label, in->label_len);
    if (answer == label)
        out->reward = 1.0 / in->turn;
    else if (in->turn == in->max_turn)
        out->reward = 0.0;
    else if (answer < label)
        out->append_message(out, "user", "more", 4);
    else
        out->append_message(out, "user", "less", 4);
    return 0;
}

const miles_generate example_guess = { { sizeof(miles_generate), MILES_GENERATE, "guess", 0,
                                         "a game: guess the number" },
                                       MILES_ROLE_USER,
                                       guess };

/* The fraction of the other answers that are longer. */
static int shortest(const miles_reward_in *const *in, int64_t n,
                    miles_reward_out *const *out, miles_error *err) {
    (void)err;
    for (int64_t i = 0; i < n; i++) {
        double longer = 0;
        for (int64_t k = 0; k < n; k++)
            longer += in[k]->response_len > in[i]->response_len;
        out[i]->reward = n > 1 ? longer / (double)(n - 1) : 0.0;
    }
    return 0;
}

const miles_group_reward example_shortest = {
    { sizeof(miles_group_reward), MILES_GROUP_REWARD, "shortest", 0,
      "fraction of longer responses in the group" },
    shortest
};

static int some_finished(const miles_answers *group, bool *keep, char reason[40],
                         miles_error *err) {
    (void)err;
    *keep = false;
    for (int64_t i = 0; i < group->n; i++)
        *keep |= group->answer[i]->status == MILES_COMPLETED;
    if (!*keep)
        strcpy(reason, "all_cut_off");
    return 0;
}

const miles_group_filter example_some_finished = {
    { sizeof(miles_group_filter), MILES_GROUP_FILTER, "some_finished", 0,
      "keeps groups with a response that was not truncated" },
    some_finished
};

static int newest(const miles_answers *held, int64_t n_group, int64_t want, int64_t *pick,
                  int64_t *n_pick, miles_error *err) {
    (void)held;
    (void)err;
    while (*n_pick < want && *n_pick < n_group) {
        pick[*n_pick] = n_group - 1 - *n_pick;
        ++*n_pick;
    }
    return 0;
}

const miles_buffer_filter example_newest = { { sizeof(miles_buffer_filter),
                                               MILES_BUFFER_FILTER, "newest", 0,
                                               "continues the newest group first" },
                                             newest };

/* The reward minus the mean over all answers of the rollout. */
static int round_mean(const miles_answers *round, double *shaped, miles_error *err) {
    double mean = 0;

    (void)err;
    for (int64_t i = 0; i < round->n; i++)
        mean += shaped[i] / (double)round->n;
    for (int64_t i = 0; i < round->n; i++)
        shaped[i] -= mean;
    return 0;
}

const miles_reward_post example_round_mean = { { sizeof(miles_reward_post),
                                                 MILES_REWARD_POST, "round_mean", 0,
                                                 "mean reward of the rollout as baseline" },
                                               round_mean };

static int finished(const miles_answers *round, uint8_t *remove, miles_error *err) {
    (void)err;
    for (int64_t i = 0; i < round->n; i++)
        remove[i] = round->answer[i]->status == MILES_TRUNCATED;
    return 0;
}

const miles_sample_filter example_finished = { { sizeof(miles_sample_filter),
                                                 MILES_SAMPLE_FILTER, "finished", 0,
                                                 "does not train on truncated samples" },
                                               finished };

static int longest(const miles_answers *answers, const char *set, miles_metrics_out *out,
                   miles_error *err) {
    double most = 0;

    (void)err;
    for (int64_t i = 0; i < answers->n; i++)
        if ((double)answers->answer[i]->n_response > most)
            most = (double)answers->answer[i]->n_response;
    out->add(out, set[0] ? "eval/longest_response" : "rollout/longest_response", most);
    return 0;
}

const miles_metrics example_longest = { { sizeof(miles_metrics), MILES_METRICS, "longest",
                                          0, "length of the longest response in tokens" },
                                        longest };
