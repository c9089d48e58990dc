/* Slots for recurrent state: who has which, and what goes when there is no other. */
#include "engine/state_slots.h"

#include "engine/prefix_cache.h"
#include "tests/support/test.h"

enum { N_SLOT = 3, N_PAGE = 8 };

static ml_arena arena;

static ml_state_slots *fresh(void) {
    static ml_state_slots s;
    ml_arena_init(&arena, "slots");
    ml_state_slots_init(&s, &arena, N_SLOT, N_PAGE);
    return &s;
}

static void all_are_taken_once(void) {
    ml_state_slots *s = fresh();
    int32_t a = ml_state_slots_take(s), b = ml_state_slots_take(s),
            c = ml_state_slots_take(s);

    CHECK(a != b && b != c && a != c);
    CHECK(a >= 0 && a < N_SLOT && b >= 0 && b < N_SLOT && c >= 0 && c < N_SLOT);
    CHECK(ml_state_slots_take(s) == ML_NO_SLOT);
    ml_state_slots_drop(s, b);
    ml_state_slots_drop(s, ML_NO_SLOT);
    CHECK(ml_state_slots_take(s) == b);
    ml_arena_release(&arena);
}

static void the_oldest_copy_goes(void) {
    ml_state_slots *s = fresh();
    int32_t running = ml_state_slots_take(s), a = ml_state_slots_take(s),
            b = ml_state_slots_take(s);

    ml_state_slots_keep(s, a, 5);
    ml_state_slots_keep(s, b, 2);
    CHECK(ml_state_slots_of_page(s, 5, false) == a &&
          ml_state_slots_of_page(s, 2, false) == b);
    CHECK(ml_state_slots_of_page(s, 3, true) == ML_NO_SLOT);
    CHECK(ml_state_slots_of_page(s, 5, true) == a); /* now the other one is older */
    CHECK(ml_state_slots_take(s) == b);
    CHECK(ml_state_slots_of_page(s, 2, false) == ML_NO_SLOT);
    CHECK(ml_state_slots_take(s) == a);
    CHECK(ml_state_slots_of_page(s, 5, false) == ML_NO_SLOT);
    CHECK(ml_state_slots_take(s) == ML_NO_SLOT); /* what runs stays */
    ml_state_slots_drop(s, running);
    CHECK(ml_state_slots_take(s) == running);
    ml_arena_release(&arena);
}

/* A page that leaves the tree takes the state behind it along. */
static void copies_leave_with_their_page(void) {
    ml_state_slots *s = fresh();
    int32_t token[ML_PAGE] = { 7 }, slot = ml_state_slots_take(s), page;
    ml_prefix_cache p;

    ml_prefix_cache_init(&p, &arena, N_PAGE);
    p.slots = s;
    page = ml_prefix_cache_alloc(&p);
    ml_prefix_cache_insert(&p, page, ML_NO_PAGE, token);
    ml_state_slots_keep(s, slot, page);
    ml_prefix_cache_unref(&p, page);
    CHECK(ml_state_slots_of_page(s, page, false) == slot);
    ml_prefix_cache_clear(&p);
    CHECK(ml_state_slots_of_page(s, page, false) == ML_NO_SLOT);
    CHECK(s->n_free == N_SLOT);
    ml_arena_release(&arena);
}

static void a_model_without_state_has_none(void) {
    ml_state_slots s;
    ml_arena_init(&arena, "slots");
    ml_state_slots_init(&s, &arena, 0, N_PAGE);
    CHECK(ml_state_slots_take(&s) == ML_NO_SLOT);
    ml_state_slots_leave(&s, 3);
    CHECK(ml_state_slots_of_page(&s, 3, true) == ML_NO_SLOT);
    ml_arena_release(&arena);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "each state slot is taken once", all_are_taken_once, 10 },
        { "the oldest copy of recurrent state is evicted", the_oldest_copy_goes, 10 },
        { "recurrent state leaves with its page", copies_leave_with_their_page, 10 },
        { "a model without recurrent state has no slots", a_model_without_state_has_none,
          10 },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
