#include "cli/flag.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/log.h"
#include "base/pool.h"
#include "cli/cli.h"

const ml_flag *const ml_flag_tables[] = {
    ml_flags_model,
    ml_flags_serve,
    ml_flags_router,
    ml_flags_score,
    ml_flags_convert,
    ml_flags_text,
    ml_flags_bench,
    ml_flags_run,
    ml_flags_algo,
    ml_flags_train,
    ml_flags_rollout,
    ml_flags_reward,
    ml_flags_train_compat,
    ml_flags_serve_compat,
    ml_flags_router_compat,
    ml_flags_compat,
    NULL,
};

void ml_flag_list_init(ml_flag_list *l, unsigned cmds) {
    l->n = 0;
    for (const ml_flag *const *t = ml_flag_tables; *t; t++)
        for (const ml_flag *f = *t; f->name; f++)
            if (f->cmds & cmds) {
                ML_BUG_IF(l->n == ML_FLAG_MAX);
                l->row[l->n++] = f;
            }
}

int ml_flag_list_find(const ml_flag_list *l, ml_str name) {
    for (int i = 0; i < l->n; i++)
        if (ml_str_is(name, l->row[i]->name))
            return i;
    return -1;
}

/* ---- values: text to the field of a row ---- */

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
    case ML_FLAG_WORD: ml_text_printf(out, "a word"); break;
    case ML_FLAG_LIST: ml_text_printf(out, "one word or several"); break;
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

static int word_index(const ml_flag *f, const char *s) {
    for (int i = 0; f->words[i]; i++)
        if (strcmp(f->words[i], s) == 0)
            return i;
    return -1;
}

/* Writes the field; false when the text is not a value of this flag. */
static bool set(ml_config *c, const ml_flag *f, const char *s) {
    void *field = (char *)c + f->at;
    const char *rest;
    int64_t i;
    double d;

    switch (f->type) {
    case ML_FLAG_BOOL: *(bool *)field = s != NULL; return true;
    case ML_FLAG_I64:
        if (!parse_i64(s, &i, &rest) || *rest || !within(f, (double)i))
            return false;
        *(int64_t *)field = i;
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
    case ML_FLAG_WORD: *(int *)field = word_index(f, s); return *(int *)field >= 0;
    case ML_FLAG_TEXT:
    case ML_FLAG_PATH:
        *(const char **)field = s;
        return *s && (!f->words || word_index(f, s) >= 0);
    case ML_FLAG_LIST: return *s; /* parse_list, which sees all words, writes the field */
    }
    return false;
}

/* ---- parsing ---- */

typedef struct parser {
    ml_config *c;
    ml_cmd cmd;
    ml_flag_list flags;
    const char *given[ML_FLAG_MAX]; /* the word of argv that gave the flag, or NULL */
    ml_err *err;
} parser;

/* `dashes` is empty when the name is that of an environment variable. */
static ml_status bad_value(parser *p, const ml_flag *f, const char *dashes,
                           const char *name, const char *value) {
    ml_text want = { 0 };
    ml_status st;

    ml_flag_expect(f, &want);
    st =
        ml_fail(p->err, ML_EUSAGE, "%s%s '%s': expected %s", dashes, name, value, want.ptr);
    ml_text_release(&want);
    return st;
}

static ml_status set_defaults(parser *p) {
    for (int i = 0; i < p->flags.n; i++) {
        const ml_flag *f = p->flags.row[i];
        const char *env = f->env ? getenv(f->env) : NULL;

        if (f->state != ML_FLAG_LIVE)
            continue;
        if (f->unset)
            *(double *)((char *)p->c + f->at) = (double)NAN;
        ML_BUG_IF(f->def && !set(p->c, f, f->def));
        if (env && *env && !set(p->c, f, env))
            return bad_value(p, f, "", f->env, env);
    }
    return ML_OK;
}

/* "did you mean": the names at the smallest distance, when that is small. */
static void add_nearest(const parser *p, ml_str name, ml_text *out) {
    int best = 2 + (int)name.len / 4, n = 0;

    for (int i = 0; i < p->flags.n; i++) {
        int d = ml_str_distance(name, ml_str_of(p->flags.row[i]->name));
        if (d < best)
            best = d;
    }
    for (int i = 0; i < p->flags.n; i++)
        if (ml_str_distance(name, ml_str_of(p->flags.row[i]->name)) == best)
            ml_text_printf(out, "%s--%s", n++ ? " or " : "; did you mean ",
                           p->flags.row[i]->name);
}

static const char *command_name(ml_cmd cmd) {
    for (const ml_command *c = ml_commands; c->name; c++)
        if (c->bit & cmd)
            return c->name;
    return "";
}

static ml_status unknown(parser *p, ml_str name) {
    ml_flag_list all;
    ml_text hint = { 0 };
    ml_status st;
    int i;

    ml_flag_list_init(&all, ML_CMD_ALL);
    i = ml_flag_list_find(&all, name);
    if (i >= 0)
        ml_text_printf(&hint, "; it belongs to miles %s",
                       command_name((ml_cmd)all.row[i]->cmds));
    else
        add_nearest(p, name, &hint);
    if (!hint.len)
        ml_text_printf(&hint, "; miles %s --help lists the flags", command_name(p->cmd));
    st = ml_fail(p->err, ML_EUSAGE, "there is no flag --%.*s%s", (int)name.len, name.ptr,
                 hint.ptr);
    ml_text_release(&hint);
    return st;
}

static ml_status take(parser *p, int i, const char *word, const char *value) {
    const ml_flag *f = p->flags.row[i];

    if (f->state == ML_FLAG_REFUSED)
        return ml_fail(p->err, ML_EUSAGE, "--%s is not offered: %s", f->name, f->why);
    if (p->given[i])
        return ml_fail(p->err, ML_EUSAGE,
                       "--%s is given twice, as '%s' and as '%s': keep one", f->name,
                       p->given[i], f->type == ML_FLAG_BOOL ? word : value);
    p->given[i] = f->type == ML_FLAG_BOOL ? word : value;
    if (f->state == ML_FLAG_NOOP) {
        ml_log(ML_LOG_WARN, "--%s changes nothing: %s", f->name, f->why);
        return ML_OK;
    }
    return set(p->c, f, value) ? ML_OK : bad_value(p, f, "--", f->name, value);
}

static ml_status no_value(parser *p, const char *word) {
    return ml_fail(p->err, ML_EUSAGE,
                   "%s needs a value: write %s VALUE, or %s=VALUE "
                   "when it begins with two dashes",
                   word, word, word);
}

/* The words up to the next flag, left where they lie in argv. */
static ml_status parse_list(parser *p, int at, int *i, int argc, char **argv) {
    char **first = argv + *i + 1;
    ml_words *field = (ml_words *)((char *)p->c + p->flags.row[at]->at);
    ml_status st;
    int n = 0;

    while (*i + 1 + n < argc && strncmp(first[n], "--", 2) != 0)
        n++;
    if (n == 0)
        return no_value(p, argv[*i]);
    st = take(p, at, argv[*i], first[0]);
    if (!st && p->flags.row[at]->state == ML_FLAG_LIVE)
        *field = (ml_words){ (const char *const *)first, n };
    *i += n;
    return st;
}

/* One flag at argv[*i]; moves *i to the last word it used. */
static ml_status parse_flag(parser *p, int *i, int argc, char **argv) {
    const char *word = argv[*i], *eq = strchr(word, '='), *value = eq ? eq + 1 : NULL;
    ml_str name = { word + 2, eq ? (size_t)(eq - word - 2) : strlen(word + 2) };
    int at = ml_flag_list_find(&p->flags, name);
    bool negated = false;

    if (at < 0 && name.len > 3 && memcmp(name.ptr, "no-", 3) == 0) {
        at = ml_flag_list_find(&p->flags, (ml_str){ name.ptr + 3, name.len - 3 });
        negated = at >= 0 && p->flags.row[at]->type == ML_FLAG_BOOL;
        at = negated ? at : -1;
    }
    if (at < 0)
        return unknown(p, name);
    if (p->flags.row[at]->type == ML_FLAG_BOOL) {
        if (eq)
            return ml_fail(p->err, ML_EUSAGE, "--%s takes no value: write --%s or --no-%s",
                           p->flags.row[at]->name, p->flags.row[at]->name,
                           p->flags.row[at]->name);
        return take(p, at, word, negated ? NULL : word);
    }
    if (p->flags.row[at]->type == ML_FLAG_LIST) {
        if (eq)
            return ml_fail(p->err, ML_EUSAGE, "--%s takes a list: write --%s A B C",
                           p->flags.row[at]->name, p->flags.row[at]->name);
        return parse_list(p, at, i, argc, argv);
    }
    if (!eq) {
        if (*i + 1 == argc || strncmp(argv[*i + 1], "--", 2) == 0)
            return no_value(p, word);
        value = argv[++*i];
    }
    return take(p, at, word, value);
}

static ml_status check_required(parser *p) {
    for (int i = 0; i < p->flags.n; i++) {
        const ml_flag *f = p->flags.row[i];
        if (f->required && !p->given[i])
            return ml_fail(p->err, ML_EUSAGE, "--%s %s is required", f->name, f->value);
    }
    return ML_OK;
}

static ml_status check_rules(parser *p) {
    for (const ml_rule *r = ml_rules; r->id; r++)
        if ((r->cmds & p->cmd) && r->broken(p->c))
            return ml_fail(p->err, ML_EUSAGE, "%s", r->sentence);
    return ML_OK;
}

/* The cores this process may use, which in a container are fewer than are online. */
static int64_t n_core(void) {
    cpu_set_t set;
    int n;

    CPU_ZERO(&set);
    n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < ML_POOL_MAX ? n : ML_POOL_MAX;
}

static bool asks_help(int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

ml_status ml_flags_parse(ml_config *c, bool *help, ml_cmd cmd, int argc, char **argv,
                         ml_err *err) {
    parser p = { .c = c, .cmd = cmd, .err = err };
    ml_status st;

    *c = (ml_config){ 0 };
    *help = asks_help(argc, argv);
    if (*help)
        return ML_OK;
    ml_flag_list_init(&p.flags, cmd);
    st = set_defaults(&p);
    for (int i = 0; i < argc && !st; i++) {
        if (strncmp(argv[i], "--", 2) == 0 && argv[i][2])
            st = parse_flag(&p, &i, argc, argv);
        else
            st = ml_fail(err, ML_EUSAGE, "'%s' is not a flag: flags begin with two dashes",
                         argv[i]);
    }
    if (!st)
        st = check_required(&p);
    if (!st)
        st = check_rules(&p);
    if (!c->run.n_thread)
        c->run.n_thread = n_core();
    return st;
}
