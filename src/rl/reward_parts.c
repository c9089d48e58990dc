#include "rl/reward_parts.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

const ml_json *ml_reward_pick(const ml_json *v, const char *key) {
    const ml_json *found;

    if (v->type != ML_JSON_OBJECT)
        return v;
    if (key)
        return ml_json_get(v, key);
    found = ml_json_get(v, "reward");
    return found ? found : ml_json_get(v, "score");
}

bool ml_reward_number(const ml_json *v, double *out) {
    if (v && (v->type == ML_JSON_TRUE || v->type == ML_JSON_FALSE)) {
        *out = v->type == ML_JSON_TRUE;
        return true;
    }
    return v && ml_json_f64(v, out) && isfinite(*out);
}

static void take_name(char out[40], ml_str name) {
    size_t n = 0;

    for (; n < name.len && n < 39; n++) {
        unsigned char c = (unsigned char)name.ptr[n];
        out[n] = isalnum(c) || (c && strchr("_-./", c)) ? (char)c : '_';
    }
    out[n] = 0;
}

int ml_reward_parts_of(ml_reward_value *out, const ml_json *object,
                       const ml_json *without) {
    int n = 0;

    for (const ml_json *v = object->child; v && n < ML_REWARD_PARTS; v = v->next)
        if (v != without && v->key.len && ml_reward_number(v, &out[n].value))
            take_name(out[n++].name, v->key);
    return n;
}

int ml_reward_parts(ml_reward_value *out, ml_str json, const char *key) {
    const ml_json *doc = NULL;
    ml_arena arena;
    int n = 0;

    if (!json.len || json.ptr[0] != '{')
        return 0;
    ml_arena_init(&arena, "parts of a reward");
    if (ml_json_parse(&doc, &arena, json, "the reward", NULL) == ML_OK)
        n = ml_reward_parts_of(out, doc, ml_reward_pick(doc, key));
    ml_arena_release(&arena);
    return n;
}
