/* Pages of keys and values: who has them, and which goes first. */
#include "engine/prefix_cache.h"

#include "tests/support/test.h"

static void fill(int32_t *token, int32_t first) {
    for (int32_t i = 0; i < ML_PAGE; i++)
        token[i] = first + i;
}

static void pages_are_shared(void) {
    ml_arena a;
    ml_prefix_cache p;
    int32_t x[ML_PAGE], y[ML_PAGE], one, two;

    ml_arena_init(&a, "test");
    ml_prefix_cache_init(&p, &a, 3);
    fill(x, 0);
    fill(y, 100);
    one = ml_prefix_cache_alloc(&p);
    two = ml_prefix_cache_alloc(&p);
    ml_prefix_cache_insert(&p, one, ML_NO_PAGE, x);
    ml_prefix_cache_insert(&p, two, one, y);
    CHECK(ml_prefix_cache_find(&p, ML_NO_PAGE, x) == one);
    CHECK(ml_prefix_cache_find(&p, one, y) == two);
    CHECK(ml_prefix_cache_find(&p, ML_NO_PAGE, y) == ML_NO_PAGE); /* another prefix */
    ml_prefix_cache_ref(&p, one);
    ml_prefix_cache_unref(&p, two);
    ml_prefix_cache_unref(&p, one);
    CHECK(p.n_unused == 1 && p.n_free == 1); /* `one` still has a user */
    ml_prefix_cache_unref(&p, one);
    CHECK(ml_prefix_cache_available(&p) == 3);
    ml_arena_release(&a);
}

static void the_longest_unused_page_goes_first(void) {
    ml_arena a;
    ml_prefix_cache p;
    int32_t token[ML_PAGE], page[3];

    ml_arena_init(&a, "test");
    ml_prefix_cache_init(&p, &a, 3);
    for (int32_t i = 0; i < 3; i++) { /* a chain */
        fill(token, i);
        page[i] = ml_prefix_cache_alloc(&p);
        ml_prefix_cache_insert(&p, page[i], i ? page[i - 1] : ML_NO_PAGE, token);
    }
    CHECK(ml_prefix_cache_alloc(&p) == ML_NO_PAGE);
    for (int32_t i = 2; i >= 0; i--)
        ml_prefix_cache_unref(&p, page[i]);
    CHECK(ml_prefix_cache_alloc(&p) == page[2]); /* the leaf */
    fill(token, 2);
    CHECK(ml_prefix_cache_find(&p, page[1], token) == ML_NO_PAGE);
    fill(token, 1);
    CHECK(ml_prefix_cache_find(&p, page[0], token) == page[1]);
    ml_prefix_cache_clear(&p);
    CHECK(p.n_free == 2 && p.n_unused == 0);
    ml_arena_release(&a);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "the prefix cache shares pages", pages_are_shared },
        { "the prefix cache evicts the least recently used page",
          the_longest_unused_page_goes_first },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
