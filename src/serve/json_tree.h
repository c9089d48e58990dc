/* json_tree.h - copies and writes parsed JSON values. */
#ifndef ML_SERVE_JSON_TREE_H
#define ML_SERVE_JSON_TREE_H

#include "base/json.h"
#include "base/json_out.h"

/* A copy in `a` that shares nothing with v. */
ml_json *ml_json_tree_copy(ml_arena *a, const ml_json *v);
void ml_json_tree_write(ml_json_out *o, const ml_json *v);

/* Equal values: numbers by their text, objects in any order of their members if
 * `any_order`, otherwise in the same. */
bool ml_json_tree_equal(const ml_json *a, const ml_json *b, bool any_order);

/* An array or object to append to. */
typedef struct ml_json_list {
    ml_arena *arena;
    ml_json *list;
    const ml_json **link;
} ml_json_list;

ml_json_list ml_json_list_begin(ml_arena *a, ml_json_type type);
/* Appends a value, or all children of one; their content is shared, not copied. */
void ml_json_list_add(ml_json_list *l, const ml_json *v);
void ml_json_list_join(ml_json_list *l, const ml_json *v);

#endif
