/* Arena, text, map, pool, log: what every other module uses. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/log.h"
#include "base/map.h"
#include "base/oom.h"
#include "base/job_queue.h"
#include "base/pool.h"
#include "base/shown.h"
#include "base/str.h"
#include "base/utf8.h"
#include "tests/support/test.h"

static void arena_gives_zeroed_aligned_memory(void) {
    ml_arena a;

    ml_arena_init(&a, "test");
    for (size_t n = 0; n < 300; n++) {
        unsigned char *p = ml_arena_take(&a, n, 37);
        CHECK((uintptr_t)p % 16 == 0);
        for (size_t i = 0; i < n * 37; i++)
            CHECK(p[i] == 0);
        memset(p, 0xff, n * 37);
    }
    CHECK(a.total >= 299 * 300 / 2 * 37);
    ml_arena_release(&a);
    CHECK(a.total == 0 && !a.last);
}

static void arena_keeps_what_it_gave(void) {
    ml_arena a;
    char *s[200];

    ml_arena_init(&a, "test");
    for (int i = 0; i < 200; i++)
        s[i] = ml_arena_printf(&a, "number %d of %s", i, "many");
    CHECK(strcmp(s[0], "number 0 of many") == 0);
    CHECK(strcmp(s[199], "number 199 of many") == 0);
    CHECK(memcmp(ml_arena_str(&a, "a\0b", 3), "a\0b", 4) == 0);
    CHECK(strcmp(ml_arena_str(&a, NULL, 0), "") == 0);
    ml_arena_release(&a);
}

/* The byte behind an object, and the memory that no object has yet, cannot be touched. */
#if defined __SANITIZE_ADDRESS__
static void arena_objects_have_redzones(void) {
    extern int __asan_address_is_poisoned(void const volatile *p);
    ml_arena a;

    ml_arena_init(&a, "test");
    for (size_t n = 1; n < 100; n++) {
        char *p = ml_arena_take(&a, n, 1), *next = ml_arena_take(&a, 1, 1);
        CHECK(!__asan_address_is_poisoned(p + n - 1));
        CHECK(__asan_address_is_poisoned(p + n));
        CHECK(__asan_address_is_poisoned(next - 1));
    }
    ml_arena_release(&a);
}
#endif

static void strings_compare_by_length_and_bytes(void) {
    CHECK(ml_str_is((ml_str){ "abcd", 3 }, "abc"));
    CHECK(!ml_str_is((ml_str){ "abc", 3 }, "abcd"));
    CHECK(!ml_str_is((ml_str){ "a\0c", 3 }, "a"));
    CHECK(ml_str_eq((ml_str){ NULL, 0 }, (ml_str){ "x", 0 }));
}

/* A text that is cut says so, and no character of UTF-8 is halved. */
static void copies_that_are_cut_say_so(void) {
    char out[8];

    ml_str_copy(out, sizeof out, ml_str_of("1234567"));
    CHECK(strcmp(out, "1234567") == 0);
    ml_str_copy(out, sizeof out, ml_str_of("12345678"));
    CHECK(strcmp(out, "1234...") == 0);
    ml_str_copy(out, sizeof out, ml_str_of("123\xc3\xa9 and more"));
    CHECK(strcmp(out, "123...") == 0);
    ml_str_copy(out, sizeof out, ml_str_of(""));
    CHECK(strcmp(out, "") == 0);
}

static char logged_line[8000];

static void keep_logged(void *ud, ml_log_level level, const char *line) {
    (void)ud;
    (void)level;
    snprintf(logged_line, sizeof logged_line, "%s", line);
}

/* Errors end in dots where they are cut; lines of the log are whole. */
static void long_messages_are_whole_or_marked(void) {
    static char text[5000];
    ml_err err = { 0 };

    memset(text, 'x', sizeof text - 1);
    ml_fail(&err, ML_EIO, "%.1800s.", text);
    CHECK(strlen(err.msg) == 1801);
    ml_fail(&err, ML_EIO, "%s", text);
    CHECK(strlen(err.msg) < sizeof err.msg);
    CHECK(strcmp(err.msg + strlen(err.msg) - 4, "x...") == 0);
    ml_fail(&err, ML_EIO, "%.1900s.", text);
    ml_err_prefix(&err, "%.200s", text);
    CHECK(strlen(err.msg) < sizeof err.msg);
    CHECK(strcmp(err.msg + strlen(err.msg) - 4, "x...") == 0);
    ml_log_to(keep_logged, NULL);
    ml_log(ML_LOG_WARN, "%s end", text);
    CHECK(strlen(logged_line) == sizeof text - 1 + 4);
    ml_log(ML_LOG_WARN, "%s", "short");
    CHECK(strcmp(logged_line, "short") == 0);
}

static void text_grows(void) {
    ml_text t = { 0 };

    for (int i = 0; i < 1000; i++)
        ml_text_printf(&t, "%03d,", i);
    ml_text_add(&t, "end", 3);
    CHECK(t.len == 4003 && strlen(t.ptr) == 4003);
    CHECK(memcmp(t.ptr + 4 * 517, "517,", 4) == 0);
    CHECK(strcmp(t.ptr + 3996, "999,end") == 0);
    ml_text_release(&t);
    CHECK(!t.ptr && !t.len);
    ml_text_add(&t, "", 0);
    CHECK(t.ptr && !t.ptr[0]);
    ml_text_release(&t);
}

static int distance(const char *a, const char *b) {
    return ml_str_distance(ml_str_of(a), ml_str_of(b));
}

static void distance_counts_edits(void) {
    CHECK(distance("", "") == 0);
    CHECK(distance("", "abc") == 3);
    CHECK(distance("kitten", "sitting") == 3);
    CHECK(distance("--lr", "--lrr") == 1);
    CHECK(distance("flaw", "lawn") == distance("lawn", "flaw"));
}

static void errors_are_sentences_with_a_prefix(void) {
    ml_err e = { 0 };

    CHECK(ml_fail(&e, ML_EIO, "%s: cannot be %s", "x", "read") == ML_EIO);
    CHECK(e.code == ML_EIO && strcmp(e.msg, "x: cannot be read") == 0);
    ml_err_prefix(&e, "step %d", 7);
    CHECK(strcmp(e.msg, "step 7: x: cannot be read") == 0);
    CHECK(ml_fail(NULL, ML_EFORMAT, "nobody listens") == ML_EFORMAT);
    ml_err_prefix(NULL, "nor here");
}

static void map_holds_many_keys(void) {
    enum { N = 20000 };
    ml_arena a;
    ml_map m;
    ml_str key[N];

    ml_arena_init(&a, "test");
    ml_map_init(&m, &a, 0);
    CHECK(ml_map_get(&m, ml_str_of("none"), -7) == -7);
    for (int i = 0; i < N; i++) {
        const char *s = ml_arena_printf(&a, "model.layers.%d.weight", i);
        key[i] = ml_str_of(s);
        CHECK(ml_map_add(&m, key[i], i));
    }
    CHECK(m.n == N);
    for (int i = 0; i < N; i++)
        CHECK(ml_map_get(&m, key[i], -1) == i);
    CHECK(ml_map_get(&m, ml_str_of("model.layers.20000.weight"), -1) == -1);
    ml_arena_release(&a);
}

static void map_keeps_the_first_of_equal_keys(void) {
    ml_arena a;
    ml_map m;

    ml_arena_init(&a, "test");
    ml_map_init(&m, &a, 2);
    CHECK(ml_map_add(&m, ml_str_of("k"), 1));
    CHECK(!ml_map_add(&m, ml_str_of("k"), 2));
    CHECK(ml_map_get(&m, ml_str_of("k"), 0) == 1);
    /* Length is part of a key, and so are NULs; the empty key is one. */
    CHECK(ml_map_add(&m, (ml_str){ "k\0", 2 }, 3));
    CHECK(ml_map_add(&m, (ml_str){ "k\0\0", 3 }, 4));
    CHECK(ml_map_add(&m, (ml_str){ NULL, 0 }, 5));
    CHECK(ml_map_get(&m, (ml_str){ "k\0", 2 }, 0) == 3);
    CHECK(ml_map_get(&m, ml_str_of(""), 0) == 5);
    CHECK(m.n == 4);
    ml_arena_release(&a);
}

typedef struct tally {
    atomic_int times[1000];
    atomic_int bad_worker;
    int n_thread;
} tally;

static void count_each(void *ud, int64_t begin, int64_t end, int worker) {
    tally *t = ud;
    if (worker < 0 || worker >= t->n_thread)
        t->bad_worker++;
    for (int64_t i = begin; i < end; i++)
        t->times[i]++;
}

static void pool_runs_every_index_once(void) {
    static const int threads[] = { 1, 2, 3, 8 };
    static const int64_t grains[] = { 1, 7, 64, 1000, 5000 };

    for (int i = 0; i < 4; i++) {
        ml_pool *p;
        ml_err err;
        CHECK(!ml_pool_new(&p, threads[i], &err));
        CHECK(ml_pool_size(p) == threads[i]);
        for (int j = 0; j < 5; j++) {
            tally t = { .n_thread = threads[i] };
            ml_pool_run(p, 1000, grains[j], count_each, &t);
            for (int k = 0; k < 1000; k++)
                CHECK(t.times[k] == 1);
            CHECK(!t.bad_worker);
            ml_pool_run(p, 0, grains[j], count_each, &t);
            CHECK(t.times[0] == 1);
        }
        ml_pool_free(p);
    }
}

/* Waiting threads prefetch; neither the pieces of a run nor unmapped memory notice that. */
static void pool_prefetches_while_it_waits(void) {
    const size_t size = 1 << 20;
    void *gone = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const ml_pool_ahead ahead[] = {
        { gone, 1 << 10, 1 << 10 }, { gone, 1, 100 }, { gone, 3, 1 << 18 }, { 0 }
    };
    ml_pool *p;
    ml_err err;

    CHECK(gone != MAP_FAILED && munmap(gone, size) == 0);
    CHECK(!ml_pool_new(&p, 2, &err));
    for (int i = 0; i < 400; i++) {
        tally t = { .n_thread = 2 };
        ml_pool_run_ahead(p, 1000, 7, count_each, &t, &ahead[i / 2 % 4]);
        ml_pool_run(p, 1000, 500, count_each, &t);
        for (int k = 0; k < 1000; k++)
            CHECK(t.times[k] == 2);
    }
    ml_pool_free(p);
}

typedef struct numbered_job {
    ml_job job;
    int n_run, order;
} numbered_job;

static void run_job(void *order, int64_t thread, ml_job *job) {
    numbered_job *j = (numbered_job *)job;

    CHECK(thread >= 0 && thread < 3);
    j->n_run++;
    j->order = atomic_fetch_add((atomic_int *)order, 1);
}

/* Closing waits for all jobs; one thread runs them in the order in which they were posted. */
static void job_queue_runs_every_job_once(void) {
    for (int n_thread = 1; n_thread <= 3; n_thread += 2) {
        numbered_job job[200] = { 0 };
        atomic_int order = 0;
        ml_job_queue *q;
        ml_err err;

        CHECK(ml_job_queue_open(&q, n_thread, run_job, &order, &err) == ML_OK);
        for (int i = 0; i < 200; i++)
            ml_job_queue_post(q, &job[i].job);
        ml_job_queue_close(q);
        CHECK(order == 200);
        for (int i = 0; i < 200; i++)
            CHECK(job[i].n_run == 1 && (n_thread > 1 || job[i].order == i));
    }
    ml_job_queue_close(NULL);
}

static void pool_names_a_wrong_count(void) {
    ml_pool *p;
    ml_err err;

    CHECK(ml_pool_new(&p, 0, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "0 threads");
    CHECK(ml_pool_new(&p, ML_POOL_MAX + 1, &err) == ML_EUSAGE);
    ml_pool_free(NULL);
}

typedef struct shortage {
    ml_arena *arena;
    ml_text *text;
    size_t bytes;
    bool inner, after;
} shortage;

static void take_bytes(void *ud) {
    shortage *s = ud;

    if (s->arena)
        ml_arena_take(s->arena, s->bytes, 1);
    else
        ml_text_add(s->text, "", s->bytes);
    s->after = true;
}

static void try_inside(void *ud) {
    shortage *s = ud;

    s->inner = ml_memory_try(take_bytes, s);
    ml_arena_take(s->arena, s->bytes, 1);
}

/* A block beyond the budget, or a text beyond all memory, is reported where it can be. */
static void shortage_is_reported(void) {
    ml_budget budget = { .max = 100000 };
    ml_text text = { 0 };
    ml_arena a;
    shortage s = { .arena = &a, .bytes = 50000 };

    ml_arena_init(&a, "test");
    a.budget = &budget;
    CHECK(!ml_memory_recoverable());
    CHECK(ml_memory_try(take_bytes, &s) && s.after);
    CHECK(atomic_load(&budget.used) == a.total && a.total > 50000);
    s.after = false;
    CHECK(!ml_memory_try(take_bytes, &s) && !s.after);
    CHECK(atomic_load(&budget.used) == a.total && a.total < 100000);
    CHECK(!ml_memory_try(try_inside, &s) && !s.inner);
    CHECK(!ml_memory_recoverable());
    ml_arena_take(&a, 1, 80000); /* nobody could be told: counted, and given */
    CHECK(atomic_load(&budget.used) > budget.max);
    CHECK(!ml_budget_take(&budget, 1));
    ml_arena_release(&a);
    CHECK(atomic_load(&budget.used) == 0 && ml_budget_take(&budget, budget.max));
    ml_text_add(&text, "kept", 4);
    s = (shortage){ .text = &text, .bytes = SIZE_MAX / 2 };
    CHECK(!ml_memory_try(take_bytes, &s) && strcmp(text.ptr, "kept") == 0);
    ml_text_release(&text);
}

typedef struct received {
    int n;
    ml_log_level level;
    char line[100];
} received;

static void listen(void *ud, ml_log_level level, const char *line) {
    received *h = ud;
    h->n++;
    h->level = level;
    memcpy(h->line, line, strlen(line) < 99 ? strlen(line) + 1 : 99);
}

static void log_reaches_its_sink(void) {
    received h = { 0 };

    ml_log(ML_LOG_WARN, "nobody is there");
    ml_log_to(listen, &h);
    ml_log(ML_LOG_INFO, "step %d", 3);
    CHECK(h.n == 1 && h.level == ML_LOG_INFO && strcmp(h.line, "step 3") == 0);
    ml_log_to(NULL, NULL);
    ml_log(ML_LOG_WARN, "nobody is there again");
    CHECK(h.n == 1);
}

static void check_shown(const char *from, const char *to, ml_shown_breaks breaks) {
    ml_text t = { 0 }, again = { 0 };

    ml_text_show(&t, ml_str_of(from), breaks);
    if (strcmp(t.ptr, to) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s became %s", to, t.ptr);
    ml_text_show(&again, ml_str_of(t.ptr), breaks);
    CHECK(strcmp(again.ptr, t.ptr) == 0);
    ml_text_release(&t);
    ml_text_release(&again);
}

static void terminal_controls_are_shown(void) {
    check_shown("plain \xc3\xa9 \xe6\x97\xa5", "plain \xc3\xa9 \xe6\x97\xa5",
                ML_SHOWN_ONE_LINE);
    check_shown("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07", ML_SHOWN_ONE_LINE);
    check_shown("a\nb\tc\rd", "a\\nb\\tc\\rd", ML_SHOWN_ONE_LINE);
    check_shown("a\nb\tc\rd", "a\nb\tc\\rd", ML_SHOWN_LINES);
    check_shown("\xc2\x9b"
                "31m\x7f",
                "\\x9b31m\\x7f", ML_SHOWN_LINES);
    check_shown("\xe2\x80\xae"
                "txt\xe2\x81\xa6\xd8\x9c",
                "\\u202etxt\\u2066\\u061c", ML_SHOWN_LINES);
    check_shown("\xff\xe6\x97", "\\xff\\xe6\\x97", ML_SHOWN_LINES);
}

static void messages_are_cut_between_characters(void) {
    char long_text[2000], last[1200] = "";
    ml_err err;

    for (size_t shift = 0; shift < 3; shift++) {
        size_t n;
        for (n = 0; n < shift; n++)
            long_text[n] = 'x';
        for (; n + 4 < sizeof long_text; n += 3)
            memcpy(long_text + n, "\xe6\x97\xa5", 3);
        long_text[n] = 0;
        ml_fail(&err, ML_EIO, "%s", long_text);
        CHECK(ml_utf8_valid(ml_str_of(err.msg)) == strlen(err.msg));
        CHECK(strlen(err.msg) > sizeof err.msg - 5 && !strstr(err.msg, "\\x"));
        ml_err_prefix(&err, "prefix");
        CHECK(ml_utf8_valid(ml_str_of(err.msg)) == strlen(err.msg));
        ml_str_copy(last, 100 + shift, ml_str_of(long_text));
        CHECK(ml_utf8_valid(ml_str_of(last)) == strlen(last) && strlen(last) > 92);
    }
    ml_fail(&err, ML_EIO, "a\x1b[31mb%.2s", "\xe6\x97\xa5");
    CHECK(strcmp(err.msg, "a\\x1b[31mb\\xe6\\x97") == 0);
}

static const ml_test tests[] = {
    { "copies that are cut say so", copies_that_are_cut_say_so },
    { "long messages are whole or marked", long_messages_are_whole_or_marked },
    { "arena gives zeroed, aligned memory", arena_gives_zeroed_aligned_memory },
    { "arena blocks keep their content while the arena grows", arena_keeps_what_it_gave },
#if defined __SANITIZE_ADDRESS__
    { "arena objects have redzones under AddressSanitizer", arena_objects_have_redzones },
#endif
    { "memory beyond the budget is reported, not taken", shortage_is_reported },
    { "strings compare by length and bytes", strings_compare_by_length_and_bytes },
    { "a text grows by every append", text_grows },
    { "edit distance counts edits", distance_counts_edits },
    { "an error keeps its message behind a prefix", errors_are_sentences_with_a_prefix },
    { "a map finds 20000 keys", map_holds_many_keys },
    { "map keeps the first of equal keys", map_keeps_the_first_of_equal_keys },
    { "pool runs every index once", pool_runs_every_index_once },
    { "a pool prefetches while it waits, and computes every piece",
      pool_prefetches_while_it_waits },
    { "a job queue runs every job once, in order", job_queue_runs_every_job_once },
    { "a pool of too few or too many threads is refused", pool_names_a_wrong_count },
    { "log lines reach the sink that is set", log_reaches_its_sink },
    { "terminal control characters are escaped", terminal_controls_are_shown },
    { "messages are cut between characters", messages_are_cut_between_characters },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
