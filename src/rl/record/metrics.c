#include "rl/record/metrics.h"

#include <math.h>
#include <string.h>

#include "base/json.h"

void ml_metrics_init(ml_metrics *f, ml_arena *a) {
    *f = (ml_metrics){ .arena = a };
}

void ml_metrics_add(ml_metrics *f, const char *prefix, const char *name, double value) {
    ml_metric *row = ML_NEW(f->arena, ml_metric, 1);
    row->name = ml_arena_printf(f->arena, "%s%s", prefix, name);
    row->value = value;
    *(f->first ? f->last : &f->first) = row;
    f->last = &row->next;
}

double ml_metrics_get(const ml_metrics *f, const char *name, double absent) {
    double value = absent;
    for (const ml_metric *row = f->first; row; row = row->next)
        if (strcmp(row->name, name) == 0)
            value = row->value;
    return value;
}

void ml_metrics_write(ml_text *out, const ml_metrics *f) {
    for (const ml_metric *row = f->first; row; row = row->next) {
        ml_text_printf(out, row == f->first ? "" : ", ");
        ml_json_quote(out, ml_str_of(row->name));
        ml_text_printf(out, ": ");
        if (isfinite(row->value))
            ml_json_number(out, row->value);
        else
            ml_text_printf(out, "null");
    }
}
