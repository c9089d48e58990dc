#include "rl/rollout/drop_reasons.h"

#include <stdio.h>
#include <string.h>

static ml_drop_reason *new_row(ml_drop_reasons *r, const char *reason) {
    ml_drop_reason *more = ML_NEW(r->arena, ml_drop_reason, r->n + 1);

    for (int k = 0; k < r->n; k++)
        more[k] = r->row[k];
    snprintf(more[r->n].reason, sizeof more->reason, "%s", reason);
    r->row = more;
    return &r->row[r->n++];
}

void ml_drop_reasons_count(ml_drop_reasons *r, const char *reason) {
    ml_drop_reason *row = NULL;

    for (int i = 0; i < r->n && !row; i++)
        row = strcmp(r->row[i].reason, reason) == 0 ? &r->row[i] : NULL;
    if (!row)
        row = new_row(r, reason);
    row->n++;
}

void ml_drop_reasons_report(const ml_drop_reasons *r, ml_metrics *out) {
    for (int i = 0; i < r->n; i++)
        ml_metrics_add(out, "rollout/dynamic_filter/drop_", r->row[i].reason,
                       (double)r->row[i].n);
}
