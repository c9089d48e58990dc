/* schema_priv.h - what the files that read JSON schemas share. */
#ifndef ML_TEXT_GRAMMAR_SCHEMA_PRIV_H
#define ML_TEXT_GRAMMAR_SCHEMA_PRIV_H

#include "text/grammar/grammar_priv.h"

enum { ML_SCHEMA_MAX_LAYERS = 32 };

typedef struct ml_schema {
    ml_grules *g;
    const ml_json *root;
    ml_map refs;                           /* pointers to rules */
    int32_t any, string, character, space; /* rules; 0: not made yet */
    int depth;
    ml_text path; /* the place that is read, for messages */
    ml_err *err;
    bool failed;
} ml_schema;

/* A schema with those that hold at the same place: allOf, $ref beside other keywords. */
typedef struct ml_schema_view {
    const ml_json *layer[ML_SCHEMA_MAX_LAYERS];
    int n;
} ml_schema_view;

/* --- schema_rules.c --- */
/* Fails with the place and a sentence; the first failure is reported.  Returns NULL, as all
 * functions below do after a failure. */
__attribute__((format(printf, 2, 3))) ml_gnode *ml_schema_refuse(ml_schema *s,
                                                                 const char *fmt, ...);
ml_gnode *ml_schema_value(ml_schema *s, const ml_json *v);
/* A value at a keyword of this place. */
ml_gnode *ml_schema_value_at(ml_schema *s, const ml_json *v, const char *key, ml_str name);
/* A value of all layers together; none: any value. */
ml_gnode *ml_schema_value_of(ml_schema *s, const ml_schema_view *v);
/* A keyword's value, or NULL; two layers may not disagree. */
const ml_json *ml_schema_get(ml_schema *s, const ml_schema_view *v, const char *key);
int32_t ml_schema_count(ml_schema *s, const ml_schema_view *v, const char *key,
                        int32_t absent);
void ml_schema_add_layer(ml_schema *s, ml_schema_view *v, const ml_json *layer);

/* --- schema_values.c --- */
ml_gnode *ml_schema_any(ml_schema *s);
ml_gnode *ml_schema_any_string(ml_schema *s);
ml_gnode *ml_schema_literals(ml_schema *s, const ml_schema_view *v); /* enum, const */
ml_gnode *ml_schema_typed(ml_schema *s, const ml_schema_view *v);
ml_gnode *ml_schema_seq(ml_schema *s, ml_gnode *a, ml_gnode *b);
ml_gnode *ml_schema_comma(ml_schema *s);
ml_gnode *ml_schema_quoted(ml_schema *s, ml_gnode *body);
ml_gnode *ml_schema_member(ml_schema *s, ml_gnode *key, ml_gnode *value);
/* A body in brackets, with space inside. */
ml_gnode *ml_schema_list(ml_schema *s, const char *open, ml_gnode *body, const char *close);
/* min to max items with commas between them; the item is a rule; max -1: any number. */
ml_gnode *ml_schema_separated(ml_schema *s, int32_t item, int32_t min, int32_t max);
int32_t ml_schema_rule(ml_schema *s, const char *name, ml_gnode *body);

/* --- schema_object.c --- */
ml_gnode *ml_schema_object(ml_schema *s, const ml_schema_view *v);

#endif
