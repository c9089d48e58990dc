/* figures.h - named numbers of a step, in the order they were found.
 *
 * thread: one owner. */
#ifndef ML_RL_FIGURES_H
#define ML_RL_FIGURES_H

#include "base/arena.h"
#include "base/str.h"

typedef struct ml_figure {
    const char *name;
    double value;
    struct ml_figure *next;
} ml_figure;

typedef struct ml_figures {
    ml_arena *arena; /* names and rows live there */
    ml_figure *first, **last;
} ml_figures;

void ml_figures_init(ml_figures *f, ml_arena *a);
/* The name may be put together: prefix, then name. */
void ml_figures_add(ml_figures *f, const char *prefix, const char *name, double value);
/* The last value of that name, or `absent`. */
double ml_figures_get(const ml_figures *f, const char *name, double absent);
/* Appends "name": value pairs with commas between; what is not finite is null. */
void ml_figures_write(ml_text *out, const ml_figures *f);

#endif
