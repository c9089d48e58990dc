#include "rl/rejections.h"

#include <stdio.h>
#include <string.h>

static ml_rejection *new_row(ml_rejections *r, const char *reason) {
    ml_rejection *more = ML_NEW(r->arena, ml_rejection, r->n + 1);

    for (int k = 0; k < r->n; k++)
        more[k] = r->row[k];
    snprintf(more[r->n].reason, sizeof more->reason, "%s", reason);
    r->row = more;
    return &r->row[r->n++];
}

void ml_rejections_count(ml_rejections *r, const char *reason) {
    ml_rejection *row = NULL;

    for (int i = 0; i < r->n && !row; i++)
        row = strcmp(r->row[i].reason, reason) == 0 ? &r->row[i] : NULL;
    if (!row)
        row = new_row(r, reason);
    row->n++;
}

void ml_rejections_report(const ml_rejections *r, ml_figures *out) {
    for (int i = 0; i < r->n; i++)
        ml_figures_add(out, "rollout/dynamic_filter/drop_", r->row[i].reason,
                       (double)r->row[i].n);
}
