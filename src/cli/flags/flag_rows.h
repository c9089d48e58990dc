/* flag_rows.h - macros for table entries that are mostly a reason: flags of other
 * programs in launch scripts.
 *
 *     ML_NOOP("swiglu", BOOL, MEGATRON, TRAIN, "the architecture is read from config.json")
 *
 * TRAIN stands for a file's own mask of commands. */
#ifndef ML_CLI_FLAGS_FLAG_ROWS_H
#define ML_CLI_FLAGS_FLAG_ROWS_H

#include "cli/flags/flag.h"

#define ML_ROW_WITHOUT_EFFECT(word, kind, origin, commands, how, reason)                   \
    {                                                                                      \
        .name = word, .type = ML_FLAG_##kind, .state = how, .group = "compatibility",      \
        .cmds = commands, .from = ML_FROM_##origin, .why = reason                          \
    }
#define ML_NOOP(word, kind, origin, commands, reason)                                      \
    ML_ROW_WITHOUT_EFFECT(word, kind, origin, commands, ML_FLAG_NOOP, reason)
#define ML_REFUSED(word, kind, origin, commands, reason)                                   \
    ML_ROW_WITHOUT_EFFECT(word, kind, origin, commands, ML_FLAG_REFUSED, reason)

/* An alias of a live flag of the same commands. */
#define ML_SAME(word, kind, form, origin, commands, heading, target)                       \
    {                                                                                      \
        .name = word, .same_as = target, .type = ML_FLAG_##kind, .value = form,            \
        .group = heading, .cmds = commands, .from = ML_FROM_##origin,                      \
        .help = "Same as --" target "."                                                    \
    }

/* A flag that accepts only its fixed behaviour: one of `values`. */
#define ML_FIXED(word, origin, commands, values, sentence)                                 \
    {                                                                                      \
        .name = word, .type = ML_FLAG_TEXT, ML_AT(train.single), .words = values,          \
        .group = "compatibility", .cmds = commands, .from = ML_FROM_##origin,              \
        .help = sentence                                                                   \
    }

#endif
