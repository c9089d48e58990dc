/* miles inspect on a terminal: the browser of a run's samples. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/wrap.h"
#include "rl/record/run_store.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/terminal.h"
#include "tests/support/test.h"

enum { ROLLOUTS = 3, SAMPLES = 40 };

/* The answer has a hostile escape sequence and a second line. */
static ml_sample make_sample(int rollout, int i, char answer[100]) {
    static const int32_t token[] = { 5, 6, 7 };
    static float logprob[] = { -0.25F, -1.5F };

    snprintf(answer, 100, "answer %d.%d of the run\033]0;x\nits second line", rollout, i);
    return (ml_sample){ .index = rollout * SAMPLES + i,
                        .group = i / 4,
                        .row = -1,
                        .prompt = ml_str_of("what is it?"),
                        .response = ml_str_of(answer),
                        .label = ml_str_of("\"it\""),
                        .token = token,
                        .n_token = 3,
                        .n_response = 2,
                        .logprob = logprob,
                        .reward = i % 2,
                        .has_reward = true,
                        .status = ML_SAMPLE_COMPLETED };
}

static void write_store(void) {
    ml_run_store *store;

    MUST(ml_run_store_open(&store, ml_test_path("run.db"), 0, &err));
    MUST(ml_run_store_begin(store, &err));
    for (int r = 0; r < ROLLOUTS; r++) {
        char answer[SAMPLES][100];
        ml_sample sample[SAMPLES];
        const ml_sample *at[SAMPLES];
        for (int i = 0; i < SAMPLES; i++) {
            sample[i] = make_sample(r, i, answer[i]);
            at[i] = &sample[i];
        }
        MUST(ml_run_store_add_samples(store, r, at, SAMPLES, NULL, &err));
    }
    MUST(ml_run_store_end(store, &err));
    ml_run_store_close(store);
}

static void browse(ml_terminal *t) {
    write_store();
    if (ml_terminal_open(t, 80)) {
        char program[1000];
        snprintf(program, sizeof program, "%s/miles", getenv("MILES_UNDER_TEST"));
        execl(program, "miles", "inspect", ml_test_path("run.db"), (char *)NULL);
        _exit(127);
    }
    CHECK(ml_terminal_until(t, "q: quit"));
}

static void the_list_scrolls_and_a_sample_opens(void) {
    ml_terminal t;

    browse(&t);
    CHECK_HAS(t.out.ptr, "answer 0.0 of the run\\x1b]0;x\\nits ");
    CHECK(strstr(t.out.ptr, "\033]0;") == NULL);
    CHECK_HAS(t.out.ptr, "answer 0.21 of the run");
    CHECK(strstr(t.out.ptr, "answer 0.22 ") == NULL);
    ml_terminal_type(&t, "\033[6~"); /* page down */
    CHECK(ml_terminal_until(&t, "q: quit"));
    CHECK_HAS(t.out.ptr,
              "\033[7m      0       5        0  completed       2  answer 0.22 ");
    ml_terminal_type(&t, "\n");
    CHECK(ml_terminal_until(&t, "q: back"));
    CHECK_HAS(t.out.ptr, "rollout 0, sample 22 of group 5: reward 0, completed, 2 tokens");
    CHECK_HAS(t.out.ptr, "--- prompt\033[K\r\nwhat is it?");
    CHECK_HAS(t.out.ptr, "answer 0.22 of the run\\x1b]0;x\033[K\r\nits second line");
    ml_terminal_type(&t, "t");
    CHECK(ml_terminal_until(&t, "q: back"));
    CHECK_HAS(t.out.ptr, "     1   -0.25000        -       6");
    ml_terminal_type(&t, "\033[C"); /* the next sample */
    CHECK(ml_terminal_until(&t, "q: back"));
    CHECK_HAS(t.out.ptr, "sample 23 of group 5: reward 1");
    ml_terminal_type(&t, "q");
    CHECK(ml_terminal_until(&t, "q: quit"));
    ml_terminal_type(&t, "q");
    CHECK(ml_terminal_close(&t) == 0);
    CHECK_HAS(t.out.ptr, "\033[?1049l"); /* the screen as it was */
    ml_text_release(&t.out);
}

static void rollouts_and_texts_are_found(void) {
    ml_terminal t;

    browse(&t);
    ml_terminal_type(&t, "]");
    CHECK(ml_terminal_until(&t, "a: all rollouts"));
    CHECK_HAS(t.out.ptr, "answer 1.0 of the run");
    CHECK(strstr(t.out.ptr, "answer 0.") == NULL);
    ml_terminal_type(&t, "a");
    CHECK(ml_terminal_until(&t, "q: quit"));
    CHECK_HAS(t.out.ptr, "answer 0.0 of the run");
    ml_terminal_type(&t, "/answer 2.7 \n");
    CHECK(ml_terminal_until(&t, "q: quit"));
    CHECK_HAS(t.out.ptr, "\033[7m      2       1        1  completed       2  answer 2.7 ");
    ml_terminal_type(&t, "n");
    CHECK(ml_terminal_until(&t, "no later sample contains 'answer 2.7 '"));
    ml_terminal_type(&t, "\003");
    CHECK(ml_terminal_close(&t) != 0);
    CHECK_HAS(t.out.ptr, "\033[?1049l");
    ml_text_release(&t.out);
}

static void the_end_of_the_list_is_kept(void) {
    ml_terminal t;

    browse(&t);
    for (int i = 0; i < 9; i++) {
        ml_terminal_type(&t, " ");
        CHECK(ml_terminal_until(&t, "q: quit"));
    }
    CHECK_HAS(t.out.ptr,
              "\033[7m      2       9        1  completed       2  answer 2.39 ");
    ml_terminal_type(&t, "q");
    CHECK(ml_terminal_close(&t) == 0);
    ml_text_release(&t.out);
}

static void text_is_clipped_between_characters(void) {
    ml_str wide = ml_str_of("a\xe4\xb8\xad\xe4\xb8\xad");

    CHECK(ml_clip(wide, 2).len == 1);
    CHECK(ml_clip(wide, 3).len == 4);
    CHECK(ml_clip(wide, 9).len == wide.len);
}

static const ml_test tests[] = {
    { "the list scrolls, and a sample opens", the_list_scrolls_and_a_sample_opens },
    { "rollouts are chosen and texts are found", rollouts_and_texts_are_found },
    { "the end of the list is kept", the_end_of_the_list_is_kept },
    { "text is clipped between characters", text_is_clipped_between_characters },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
