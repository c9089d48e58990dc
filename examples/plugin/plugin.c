/* A shared object as a user would write it: one extension of each kind, using only the
 * installed header. */
#include "example.h"

static const miles_extension *const rows[] = {
    &example_ramp.row,          &example_halve.row,
    &example_by_ten.row,        &example_reinforce.row,
    &example_length.row,        &example_hardest.row,
    &example_first_set.row,     &example_newest_first.row,
    &example_sums.row,          &example_backwards.row,
    &example_guess.row,         &example_shortest.row,
    &example_some_finished.row, &example_newest.row,
    &example_round_mean.row,    &example_finished.row,
    &example_longest.row,       &example_journal_samples.row,
    &example_journal.row,       0,
};

miles_plugin_fn miles_plugin_entry;
__attribute__((visibility("default"))) const miles_plugin *miles_plugin_entry(void) {
    static const miles_plugin plugin = { sizeof plugin, MILES_ABI, rows };
    return &plugin;
}
