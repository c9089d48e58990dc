#include "cli/flags/flag.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"

#define TRAINS (ML_CMD_SFT | ML_CMD_TRAIN)

/* The rows of a table without commands name their own. */
const ml_flag_table ml_flag_tables[] = {
    { ml_flags_model, 0, ML_FROM_OURS },
    { ml_flags_serve, ML_CMD_SERVE, ML_FROM_SGLANG },
    { ml_flags_router, ML_CMD_ROUTER, ML_FROM_SGLANG },
    { ml_flags_tinker, ML_CMD_TINKER, ML_FROM_OURS },
    { ml_flags_access, ML_CMD_SERVE | ML_CMD_ROUTER | ML_CMD_DASHBOARD | ML_CMD_TINKER,
      ML_FROM_OURS },
    { ml_flags_score, ML_CMD_SCORE, ML_FROM_OURS },
    { ml_flags_convert, ML_CMD_CONVERT, ML_FROM_MILES },
    { ml_flags_text, 0, ML_FROM_OURS },
    { ml_flags_sandbox, ML_CMD_SANDBOX, ML_FROM_OURS },
    { ml_flags_bench, ML_CMD_BENCH_ENGINE | ML_CMD_BENCH_SERVE, ML_FROM_SGLANG },
    { ml_flags_inspect, ML_CMD_INSPECT, ML_FROM_OURS },
    { ml_flags_plan, ML_CMD_PLAN_ONLY, ML_FROM_OURS },
    { ml_flags_run, 0, ML_FROM_OURS },
    { ml_flags_algo, ML_CMD_LOSS | ML_CMD_TRAIN, ML_FROM_MILES },
    { ml_flags_train, TRAINS, ML_FROM_MILES },
    { ml_flags_optimizer, TRAINS, ML_FROM_MEGATRON },
    { ml_flags_models, ML_CMD_TRAIN, ML_FROM_MILES },
    { ml_flags_lora, TRAINS, ML_FROM_MILES },
    { ml_flags_checkpoint, TRAINS, ML_FROM_MEGATRON },
    { ml_flags_rollout, ML_CMD_TRAIN | ML_CMD_EVAL, ML_FROM_MILES },
    { ml_flags_async, ML_CMD_TRAIN, ML_FROM_MILES },
    { ml_flags_extensions, ML_CMD_TRAIN, ML_FROM_MILES },
    { ml_flags_sessions, ML_CMD_TRAIN, ML_FROM_MILES },
    { ml_flags_reward, ML_CMD_REWARD | ML_CMD_TRAIN | ML_CMD_EVAL, ML_FROM_MILES },
    { ml_flags_debug, TRAINS, ML_FROM_MILES },
    { ml_flags_record, TRAINS, ML_FROM_MILES },
    { ml_flags_async_eval, ML_CMD_TRAIN, ML_FROM_MILES },
    { ml_flags_arch, 0, ML_FROM_OURS },
    { ml_flags_parallel, 0, ML_FROM_OURS },
    { ml_flags_numerics, 0, ML_FROM_OURS },
    { ml_flags_logging, 0, ML_FROM_OURS },
    { ml_flags_sglang, 0, ML_FROM_OURS },
    { ml_flags_speculative, 0, ML_FROM_OURS },
    { ml_flags_run_router, ML_CMD_TRAIN, ML_FROM_SGLANG },
    { ml_flags_steps, 0, ML_FROM_OURS },
    { ml_flags_serve_compat, ML_CMD_SERVE, ML_FROM_SGLANG },
    { ml_flags_router_compat, ML_CMD_ROUTER, ML_FROM_SGLANG },
    { ml_flags_compat, 0, ML_FROM_OURS },
    { 0 },
};

const ml_rule *const ml_rule_tables[] = { ml_rules, ml_rules_train, NULL };

void ml_flag_list_init(ml_flag_list *l, unsigned cmds) {
    l->n = 0;
    for (const ml_flag_table *t = ml_flag_tables; t->row; t++)
        for (const ml_flag *f = t->row; f->name; f++)
            if ((f->cmds ? f->cmds : t->cmds) & cmds) {
                ML_BUG_IF(l->n == ML_FLAG_MAX);
                l->table[l->n] = t;
                l->row[l->n++] = f;
            }
}

unsigned ml_flag_cmds(const ml_flag_list *l, int i) {
    return l->row[i]->cmds ? l->row[i]->cmds : l->table[i]->cmds;
}

ml_flag_origin ml_flag_from(const ml_flag_list *l, int i) {
    return l->row[i]->from ? l->row[i]->from : l->table[i]->from;
}

int ml_flag_list_find(const ml_flag_list *l, ml_str name) {
    for (int i = 0; i < l->n; i++)
        if (ml_str_is(name, l->row[i]->name))
            return i;
    return -1;
}

/* ---- values: from text to the flag's field ---- */

static void expect_bounds(const ml_flag *f, ml_text *out) {
    if (f->min < f->max)
        ml_text_printf(out, " from %.15g to %.15g", f->min, f->max);
}

void ml_flag_expect(const ml_flag *f, ml_text *out) {
    if (f->words) {
        ml_text_printf(out, "one of ");
        for (int i = 0; f->words[i]; i++)
            ml_text_printf(out, "%s%s", i ? ", " : "", f->words[i]);
        return;
    }
    switch (f->type) {
    case ML_FLAG_BOOL: ml_text_printf(out, "no value"); break;
    case ML_FLAG_I64:
        ml_text_printf(out, "a whole number");
        expect_bounds(f, out);
        break;
    case ML_FLAG_F64:
        ml_text_printf(out, "a number");
        expect_bounds(f, out);
        break;
    case ML_FLAG_BYTES:
        ml_text_printf(out, "a size such as 5GB, 500MB, 2GiB or a number of bytes");
        break;
    case ML_FLAG_PATH: ml_text_printf(out, "a path"); break;
    case ML_FLAG_TEXT:
    case ML_FLAG_WORD: ml_text_printf(out, "a string"); break;
    case ML_FLAG_LIST: ml_text_printf(out, "one or more values"); break;
    }
}

static bool within(const ml_flag *f, double v) {
    return !(f->min < f->max) || (v >= f->min && v <= f->max);
}

/* Digits only after an optional minus: no blanks, no plus, no hexadecimal. */
static bool parse_i64(const char *s, int64_t *out, const char **rest) {
    char *end;
    if (!(s[0] >= '0' && s[0] <= '9') && !(s[0] == '-' && s[1] >= '0' && s[1] <= '9'))
        return false;
    errno = 0;
    *out = strtoll(s, &end, 10);
    *rest = end;
    return errno == 0;
}

static bool parse_f64(const char *s, double *out) {
    char *end;
    if (!*s || strspn(s, "0123456789+-.eE") != strlen(s)) /* no blanks, inf, nan, hex */
        return false;
    *out = strtod(s, &end);
    return !*end && isfinite(*out);
}

static bool parse_bytes(const char *s, int64_t *out) {
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {
        { "", 1 },
        { "KB", 1000 },
        { "MB", 1000 * 1000 },
        { "GB", 1000 * 1000 * 1000 },
        { "TB", (int64_t)1000 * 1000 * 1000 * 1000 },
        { "KiB", (int64_t)1 << 10 },
        { "MiB", (int64_t)1 << 20 },
        { "GiB", (int64_t)1 << 30 },
        { "TiB", (int64_t)1 << 40 },
    };
    const char *unit;
    int64_t n;

    if (!parse_i64(s, &n, &unit))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(unit, units[i].name) == 0)
            return !__builtin_mul_overflow(n, units[i].bytes, out);
    return false;
}

/* dtype names of PyTorch, Megatron and SGLang, and ours. */
static const char *dtype_word(const char *s) {
    static const char *const same[][2] = {
        { "float32", "f32" }, { "float", "f32" }, { "fp32", "f32" }, { "bfloat16", "bf16" },
        { "float16", "f16" }, { "half", "f16" },  { "fp16", "f16" },
    };

    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strcmp(same[i][0], s) == 0)
            return same[i][1];
    return s;
}

static int word_index(const ml_flag *f, const char *s) {
    const char *dtype = strcmp(f->name, "dtype") == 0 ? dtype_word(s) : s;

    for (int i = 0; f->words[i]; i++)
        if (strcmp(f->words[i], dtype) == 0)
            return i;
    return -1;
}

/* Writes a field of one of the widths that options have. */
static void set_int(void *field, size_t size, int64_t i) {
    if (size == sizeof(int64_t))
        *(int64_t *)field = i;
    else if (size == sizeof(int32_t))
        *(int32_t *)field = (int32_t)i;
    else
        *(bool *)field = i != 0;
}

static bool set_word(void *field, const ml_flag *f, int index) {
    if (index >= 0)
        set_int(field, f->size, index);
    return index >= 0;
}

static bool set_text(const char **out, const ml_flag *f, const char *s) {
    bool right = *s && (!f->words || word_index(f, s) >= 0);

    if (right)
        *out = s;
    return right;
}

bool ml_flag_set(ml_config *c, const ml_flag *f, const char *s) {
    void *field = (char *)c + f->at;
    const char *rest;
    int64_t i;
    double d;

    switch (f->type) {
    case ML_FLAG_BOOL: *(bool *)field = s != NULL; return true;
    case ML_FLAG_I64:
        if (!parse_i64(s, &i, &rest) || *rest || !within(f, (double)i))
            return false;
        set_int(field, f->size, i);
        return true;
    case ML_FLAG_BYTES:
        if (!parse_bytes(s, &i) || !within(f, (double)i))
            return false;
        *(int64_t *)field = i;
        return true;
    case ML_FLAG_F64:
        if (!parse_f64(s, &d) || !within(f, d))
            return false;
        *(double *)field = d;
        return true;
    case ML_FLAG_WORD: return set_word(field, f, word_index(f, s));
    case ML_FLAG_TEXT:
    case ML_FLAG_PATH: return set_text(field, f, s);
    case ML_FLAG_LIST: /* the parser, which has all words, writes the field */
        return *s && (!f->words || word_index(f, s) >= 0);
    }
    return false;
}
