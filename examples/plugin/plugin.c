/* A shared object as a user would write it: one extension of each kind, using only the
 * installed header. */
#include "example.h"

static const miles_extension *const extensions[] = {
    &example_ramp.base,          &example_halve.base,
    &example_by_ten.base,        &example_reinforce.base,
    &example_length.base,        &example_hardest.base,
    &example_first_set.base,     &example_newest_first.base,
    &example_sums.base,          &example_backwards.base,
    &example_guess.base,         &example_shortest.base,
    &example_some_finished.base, &example_newest.base,
    &example_round_mean.base,    &example_finished.base,
    &example_longest.base,       &example_journal_samples.base,
    &example_journal.base,       0,
};

miles_plugin_fn miles_plugin_entry;
__attribute__((visibility("default"))) const miles_plugin *miles_plugin_entry(void) {
    static const miles_plugin plugin = { sizeof plugin, MILES_ABI_VERSION, extensions };
    return &plugin;
}
