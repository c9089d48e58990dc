/* The CPU as a backend: its levels, its memory, the seal. */
#include "tests/support/test.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/backend.h"

static void levels_open_by_name(void) {
    const char *const *levels = ml_backend_cpu_levels();
    const char *best = NULL;
    ml_backend b;
    ml_err err;

    CHECK(strcmp(levels[0], "c") == 0);
    for (; *levels; levels++) {
        CHECK(ml_backend_cpu_open(&b, 2, *levels, &err) == ML_OK);
        CHECK(strcmp(b.level, *levels) == 0 && b.n_thread == 2);
        ml_backend_close(&b);
        best = *levels;
    }
    CHECK(ml_backend_cpu_open(&b, 1, NULL, &err) == ML_OK);
    CHECK(strcmp(b.level, best) == 0);
    ml_backend_close(&b);
}

static void unknown_level_names_the_known_ones(void) {
    ml_backend b;
    ml_err err;
    CHECK(ml_backend_cpu_open(&b, 1, "sse9", &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "\"sse9\"");
    CHECK_HAS(err.msg, "it supports c");
    ml_backend_close(&b); /* of one that did not open: nothing */
}

static void bad_thread_count_is_refused(void) {
    ml_backend b;
    ml_err err;
    CHECK(ml_backend_cpu_open(&b, 0, NULL, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "0 threads");
}

static void memory_is_zeroed_aligned_and_copied(void) {
    const char text[] = "sixteen lanes";
    char back[sizeof text];
    ml_backend b;
    ml_buf buf;
    ml_err err;

    CHECK(ml_backend_cpu_open(&b, 1, "c", &err) == ML_OK);
    CHECK(b.dev->alloc(b.dev, &buf, 100000, ML_MEM_ACT, &err) == ML_OK);
    CHECK((uintptr_t)buf.ptr % 64 == 0);
    for (size_t i = 0; i < buf.bytes; i++)
        CHECK(((const char *)buf.ptr)[i] == 0);
    b.dev->copy_in(b.stream, buf.ptr, text, sizeof text);
    b.dev->copy_out(b.stream, back, buf.ptr, sizeof text);
    CHECK(b.dev->sync(b.stream, &err) == ML_OK);
    CHECK(memcmp(back, text, sizeof text) == 0);
    b.dev->free(&buf);
    CHECK(!buf.ptr);
    b.dev->free(&buf);
    CHECK(b.dev->alloc(b.dev, &buf, 0, ML_MEM_ACT, &err) == ML_OK);
    CHECK(buf.ptr != NULL); /* NULL would read as an absent tensor */
    b.dev->free(&buf);
    ml_backend_close(&b);
}

static void too_much_memory_is_refused_with_the_size(void) {
    ml_backend b;
    ml_buf buf = { 0 };
    ml_err err;

    CHECK(ml_backend_cpu_open(&b, 1, "c", &err) == ML_OK);
    CHECK(b.dev->alloc(b.dev, &buf, SIZE_MAX / 4, ML_MEM_KV, &err) == ML_ENOMEM);
    CHECK_HAS(err.msg, "4611686018427387903 bytes");
    CHECK_HAS(err.msg, ml_mem_name(ML_MEM_KV));
    ml_backend_close(&b);
}

/* Allocates in a child process; true when that aborted it. */
static bool alloc_aborts(ml_backend *b) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        ml_buf buf;
        ml_err err;
        b->dev->alloc(b->dev, &buf, 64, ML_MEM_ACT, &err);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void sealed_memory_cannot_grow(void) {
    ml_backend b;
    ml_err err;

    CHECK(ml_backend_cpu_open(&b, 1, "c", &err) == ML_OK);
    CHECK(!ml_mem_sealed() && !alloc_aborts(&b));
    ml_mem_seal();
    ml_mem_seal();
    ml_mem_unseal();
    CHECK(ml_mem_sealed() && alloc_aborts(&b));
    ml_mem_unseal();
    CHECK(!ml_mem_sealed() && !alloc_aborts(&b));
    ml_backend_close(&b);
}

static const ml_test tests[] = {
    { "every CPU level opens by its name", levels_open_by_name },
    { "an unknown CPU level is refused with the known ones",
      unknown_level_names_the_known_ones },
    { "a backend with 0 threads is refused", bad_thread_count_is_refused },
    { "device memory is zeroed, aligned and copied both ways",
      memory_is_zeroed_aligned_and_copied },
    { "an allocation that is too large is refused with its size",
      too_much_memory_is_refused_with_the_size },
    { "sealed device memory cannot grow", sealed_memory_cannot_grow },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
