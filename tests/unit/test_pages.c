/* Pages of keys and values: who has them, and which goes first. */
#include "engine/pages.h"

#include "tests/support/test.h"

static void fill(int32_t *token, int32_t first) {
    for (int32_t i = 0; i < ML_PAGE; i++)
        token[i] = first + i;
}

static void pages_are_shared(void) {
    ml_arena a;
    ml_pages p;
    int32_t x[ML_PAGE], y[ML_PAGE], one, two;

    ml_arena_init(&a, "test");
    ml_pages_init(&p, &a, 3);
    fill(x, 0);
    fill(y, 100);
    one = ml_pages_take(&p);
    two = ml_pages_take(&p);
    ml_pages_publish(&p, one, ML_NO_PAGE, x);
    ml_pages_publish(&p, two, one, y);
    CHECK(ml_pages_find(&p, ML_NO_PAGE, x) == one);
    CHECK(ml_pages_find(&p, one, y) == two);
    CHECK(ml_pages_find(&p, ML_NO_PAGE, y) == ML_NO_PAGE); /* another prefix */
    ml_pages_use(&p, one);
    ml_pages_drop(&p, two);
    ml_pages_drop(&p, one);
    CHECK(p.n_unused == 1 && p.n_free == 1); /* `one` still has a user */
    ml_pages_drop(&p, one);
    CHECK(ml_pages_available(&p) == 3);
    ml_arena_release(&a);
}

static void the_longest_unused_page_goes_first(void) {
    ml_arena a;
    ml_pages p;
    int32_t token[ML_PAGE], page[3];

    ml_arena_init(&a, "test");
    ml_pages_init(&p, &a, 3);
    for (int32_t i = 0; i < 3; i++) { /* a chain */
        fill(token, i);
        page[i] = ml_pages_take(&p);
        ml_pages_publish(&p, page[i], i ? page[i - 1] : ML_NO_PAGE, token);
    }
    CHECK(ml_pages_take(&p) == ML_NO_PAGE);
    for (int32_t i = 2; i >= 0; i--)
        ml_pages_drop(&p, page[i]);
    CHECK(ml_pages_take(&p) == page[2]); /* the leaf */
    fill(token, 2);
    CHECK(ml_pages_find(&p, page[1], token) == ML_NO_PAGE);
    fill(token, 1);
    CHECK(ml_pages_find(&p, page[0], token) == page[1]);
    ml_pages_forget(&p);
    CHECK(p.n_free == 2 && p.n_unused == 0);
    ml_arena_release(&a);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "pages are shared", pages_are_shared },
        { "the longest unused page goes first", the_longest_unused_page_goes_first },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
