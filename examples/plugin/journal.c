/* Extensions that only observe: they append a line per event to the file
 * $EXAMPLE_JOURNAL. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "example.h"

static FILE *open_journal(miles_error *err) {
    const char *path = getenv("EXAMPLE_JOURNAL");
    FILE *f = path ? fopen(path, "a") : 0;

    if (!path)
        snprintf(err->text, sizeof err->text,
                 "set the environment variable EXAMPLE_JOURNAL to a file");
    else if (!f)
        snprintf(err->text, sizeof err->text, "cannot open %.200s: %s", path,
                 strerror(errno));
    return f;
}

static int journal(const miles_event *event, miles_error *err) {
    static const char *const when[] = { "after init",        "before log-probs",
                                        "before train step", "after save",
                                        "data ready",        "weights written" };
    FILE *f = open_journal(err);

    if (!f)
        return 1;
    fprintf(f, "%s: rollout %lld, step %lld, \"%s\"", when[event->when],
            (long long)event->rollout, (long long)event->step, event->what);
    if (event->when == MILES_DATA_READY)
        fprintf(f, ", %lld samples, %s advantages", (long long)event->batch->n,
                event->batch->sample[0]->advantage ? "with" : "without");
    fprintf(f, "\n");
    return fclose(f) != 0;
}

const miles_hook example_journal = {
    { sizeof(miles_hook), MILES_HOOK, "journal", 0, "writes a line per event" }, journal
};

static int journal_samples(const miles_answers *all, const uint8_t *kept,
                           miles_error *err) {
    FILE *f = open_journal(err);
    long long n = 0;

    if (!f)
        return 1;
    for (int64_t i = 0; i < all->n; i++)
        n += kept[i];
    fprintf(f, "rollout %lld: %lld of %lld samples kept\n", (long long)all->rollout, n,
            (long long)all->n);
    return fclose(f) != 0;
}

const miles_samples_hook example_journal_samples = { { sizeof(miles_samples_hook),
                                                       MILES_SAMPLES_HOOK, "journal", 0,
                                                       "writes the number of samples" },
                                                     journal_samples };
