/* Any text as config.json: a spec or a sentence, never a crash.  A spec that opens is planned
 * for a small batch, since a planner trusts what a spec says. */
#include <stddef.h>
#include <stdint.h>

#include "base/bug.h"
#include "model/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ml_backend be;
    ml_spec spec;
    ml_plan *plan;
    ml_err err = { 0 };
    ml_plan_opts opts = { .caps = { 4, 1, 4, 1 }, .backward = true };

    if (!be.name)
        ML_BUG_IF(ml_backend_cpu_open(&be, 1, NULL, &err) != ML_OK);
    if (ml_spec_parse(&spec, (ml_str){ (const char *)data, size }, "config.json", &err) !=
        ML_OK) {
        ML_BUG_IF(err.msg[0] == 0);
        return 0;
    }
    /* Placement is quadratic in the number of values; deep models say nothing new. */
    if (spec.n_layer <= 8 && ml_plan_new(&plan, &spec, &be, opts, &err) == ML_OK)
        ml_plan_free(plan);
    ml_spec_close(&spec);
    return 0;
}
