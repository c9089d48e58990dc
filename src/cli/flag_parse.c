/* Parses a command line into a config.  All errors are reported at once, so that a launch
 * script of another program can be fixed in one pass. */
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "cli/flags/flag_family.h"
#include "cli/flags/flag_foreign.h"
#include "cli/flags/flag_spelling.h"
#include "cli/model_path.h"
#include "io/yaml.h"

/* The last occurrence of a flag. */
typedef struct given {
    const char *name;  /* as written, with dashes; NULL: not given */
    const char *value; /* for a list, all values; NULL: a bool, which has none */
    const char *file;  /* that contains it; NULL: the command line */
} given;

typedef struct parser {
    ml_config *c;
    ml_cmd cmd;
    ml_flag_list flags;
    given given[ML_FLAG_MAX]; /* by flag index */
    const char *file;         /* being read; NULL: the command line */
    ml_text *wrong;           /* one line per error */
    struct {
        const char *name, *why;
    } ignored[ML_FLAG_MAX]; /* flags without effect, in the order of the command line */
    int n_ignored;
} parser;

/* ---- errors ---- */

__attribute__((format(printf, 2, 3))) static void complain(parser *p, const char *fmt,
                                                           ...) {
    va_list ap;

    va_start(ap, fmt);
    ml_text_vprintf(p->wrong, fmt, ap);
    va_end(ap);
    ml_text_printf(p->wrong, "\n");
}

/* `dashes` is empty if the name is that of an environment variable. */
static void bad_value(parser *p, const ml_flag *f, const char *dashes, const char *name,
                      const char *value) {
    ml_text want = { 0 };

    ml_flag_expect(f, &want);
    complain(p, "%s%s '%s': expected %s", dashes, name, value, want.ptr);
    ml_text_release(&want);
}

static void no_value(parser *p, const char *word) {
    complain(p, "%s needs a value: write %s VALUE, or %s=VALUE if the value begins with --",
             word, word, word);
}

/* "did you mean": the names at the smallest edit distance, if that is small. */
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

static const char *command_name(unsigned cmds) {
    for (const ml_command *c = ml_commands; c->name; c++)
        if (c->bit == cmds)
            return c->name;
    for (const ml_command *c = ml_commands; c->name; c++)
        if (c->bit & cmds)
            return c->name;
    return "";
}

/* The flag here that corresponds to a flag of TRL or vLLM, of this command or of another
 * one. */
static bool add_ours(const parser *p, const ml_flag_list *all, ml_str name, ml_text *out) {
    const ml_foreign_flag *f = ml_foreign_find(name);
    int i = 0, at;

    if (!f)
        return false;
    while (i < 3 && f->ours[i] && ml_flag_list_find(&p->flags, ml_str_of(f->ours[i])) < 0)
        i++;
    if (i < 3 && f->ours[i]) {
        ml_text_printf(out, ": miles calls this --%s", f->ours[i]);
    } else {
        at = ml_flag_list_find(all, ml_str_of(f->ours[0]));
        if (at >= 0)
            ml_text_printf(out, ": miles %s calls this --%s; miles %s has no such flag",
                           command_name(ml_flag_cmds(all, at)), f->ours[0],
                           command_name(p->cmd));
    }
    if (f->note)
        ml_text_printf(out, "; %s", f->note);
    return true;
}

static void unknown(parser *p, ml_str name) {
    ml_flag_list all;
    ml_text hint = { 0 };
    int i;

    ml_flag_list_init(&all, ML_CMD_ALL);
    i = ml_flag_list_find(&all, name);
    if (!add_ours(p, &all, name, &hint) && i >= 0)
        ml_text_printf(&hint, "; it is a flag of miles %s",
                       command_name(ml_flag_cmds(&all, i)));
    if (!hint.len)
        add_nearest(p, name, &hint);
    if (!hint.len)
        ml_text_printf(&hint, "; miles %s --help-all lists all flags",
                       command_name(p->cmd));
    complain(p, "unknown flag --%.*s%s", (int)name.len, name.ptr, hint.ptr);
    ml_text_release(&hint);
}

/* ---- words ---- */

static void set_defaults(parser *p) {
    for (int i = 0; i < p->flags.n; i++) {
        const ml_flag *f = p->flags.row[i];
        const char *env = f->env ? getenv(f->env) : NULL;
        void *field = (char *)p->c + f->at;

        if (f->state != ML_FLAG_LIVE)
            continue;
        if (f->unset)
            *(double *)field = (double)NAN;
        ML_BUG_IF(f->def && !ml_flag_set(p->c, f, f->def));
        if (env && *env && !ml_flag_set(p->c, f, env))
            bad_value(p, f, "", f->env, env);
    }
}

/* Values of these flags are not printed in messages. */
static bool is_secret(const char *name) {
    return strstr(name, "api-key") || strstr(name, "wandb-key");
}

static const char *say_given(ml_arena *a, const given *g, bool with_name) {
    const char *value = is_secret(g->name) ? "(not shown)" : g->value;

    if (!g->value)
        return g->name;
    return with_name ? ml_arena_printf(a, "%s %s", g->name, value) : value;
}

static void tell_override(parser *p, const given *old, const given *now) {
    ml_arena *a = &p->c->arena;
    bool same_name = strcmp(old->name, now->name) == 0;
    const char *what = say_given(a, old, !same_name), *by = say_given(a, now, true);

    if (same_name && (!now->value || strcmp(old->value, now->value) == 0))
        return;
    if (old->file && !now->file)
        ml_log(ML_LOG_WARN, "%s on the command line overrides %s of %s", by, what,
               old->file);
    else
        ml_log(ML_LOG_WARN, "%s overrides %s, given earlier%s%s", by, what,
               old->file ? " in " : "", old->file ? old->file : "");
}

/* Joins the words from argv[i] on into one text. */
static const char *join(ml_arena *a, char **word, int n) {
    const char *all = word[0];

    for (int i = 1; i < n; i++)
        all = ml_arena_printf(a, "%s %s", all, word[i]);
    return all;
}

static void ignore(parser *p, const char *name, const char *why) {
    for (int i = 0; i < p->n_ignored; i++)
        if (strcmp(p->ignored[i].name, name) == 0)
            return;
    if (p->n_ignored == ML_FLAG_MAX)
        return;
    p->ignored[p->n_ignored].name = name;
    p->ignored[p->n_ignored++].why = why;
}

/* The words of a list, after those that were given before if they add up. */
static void set_list(parser *p, const ml_flag *f, char **word, int n) {
    ml_string_list *list = (ml_string_list *)((char *)p->c + f->at);
    const char **all;

    if (!f->append || !list->n) {
        *list = (ml_string_list){ (const char *const *)word, n };
        return;
    }
    all = ML_NEW(&p->c->arena, const char *, list->n + n);
    for (int i = 0; i < list->n + n; i++)
        all[i] = i < list->n ? list->word[i] : word[i - list->n];
    *list = (ml_string_list){ all, list->n + n };
}

/* Stores a flag and its n words; a bool has none and is set to `on`. */
static void take(parser *p, int i, const char *name, char **word, int n, bool on) {
    const ml_flag *f = p->flags.row[i];
    bool list = f->type == ML_FLAG_LIST;
    int at = 0; /* of a list: the first word that is not valid, or the last one */
    given now = { .name = name, .file = p->file };

    if (n)
        now.value = join(&p->c->arena, word, n);
    if (f->state == ML_FLAG_REFUSED)
        complain(p, "--%s is not supported: %s", f->name, f->why);
    else if (p->given[i].name && !f->append)
        tell_override(p, &p->given[i], &now);
    p->given[i] = now;
    if (f->state == ML_FLAG_NOOP)
        ignore(p, ml_arena_printf(&p->c->arena, "--%s", f->name), f->why);
    if (f->state != ML_FLAG_LIVE)
        return;
    while (list && at + 1 < n && ml_flag_set(p->c, f, word[at]))
        at++;
    if (!ml_flag_set(p->c, f, n ? word[at] : on ? name : NULL))
        bad_value(p, f, "", name, word[at]);
    else if (list)
        set_list(p, f, word, n);
}

static void take_of_family(parser *p, const ml_flag_family *f, const char *name) {
    if (f->state == ML_FLAG_REFUSED)
        complain(p, "%s is not supported: %s", name, f->why);
    else
        ignore(p, name, f->why);
}

/* The number of words from argv[i] on that are not flags. */
static int count_words(int i, int argc, char **argv) {
    int n = 0;
    while (i + n < argc && strncmp(argv[i + n], "--", 2) != 0)
        n++;
    return n;
}

/* Finds the flag of a name; *negated: it was written --no-name. */
static int find_row(const parser *p, ml_str name, bool *negated) {
    int at = ml_flag_list_find(&p->flags, name);

    *negated = false;
    if (at < 0 && name.len > 3 && memcmp(name.ptr, "no-", 3) == 0) {
        at = ml_flag_list_find(&p->flags, (ml_str){ name.ptr + 3, name.len - 3 });
        *negated = at >= 0 && p->flags.row[at]->type == ML_FLAG_BOOL;
        at = *negated ? at : -1;
    }
    if (at >= 0 && p->flags.row[at]->same_as)
        at = ml_flag_list_find(&p->flags, ml_str_of(p->flags.row[at]->same_as));
    return at;
}

static bool has_operands(const parser *p) {
    int i = 0;
    while (i < p->flags.n && !p->flags.row[i]->operand)
        i++;
    return i < p->flags.n;
}

/* Scripts also write --name 1 for a flag without a value. */
static bool truth(const char *word, bool *on) {
    *on = strcmp(word, "1") == 0 || strcmp(word, "true") == 0;
    return *on || strcmp(word, "0") == 0 || strcmp(word, "false") == 0;
}

/* Parses one flag at argv[*i]; moves *i to the last word it used. */
static void parse_flag(parser *p, int *i, int argc, char **argv) {
    char *word = argv[*i], *eq = strchr(word, '='), *after = eq ? eq + 1 : NULL;
    ml_str name = { word + 2, eq ? (size_t)(eq - word - 2) : strlen(word + 2) };
    const char *written = ml_arena_str(&p->c->arena, word, name.len + 2);
    int n = count_words(*i + 1, argc, argv), at;
    bool negated;
    const ml_flag *f;

    at = find_row(p, name, &negated);
    f = at >= 0 ? p->flags.row[at] : NULL;
    if (!f) {
        const ml_flag_family *family = ml_family_find(p->cmd, name);
        if (family)
            take_of_family(p, family, written);
        else
            unknown(p, name);
        *i += eq ? 0 : n; /* its values, which are valid or not */
    } else if (f->type == ML_FLAG_BOOL && eq) {
        complain(p, "--%s takes no value: write --%s or --no-%s", f->name, f->name,
                 f->name);
    } else if (f->type == ML_FLAG_BOOL) {
        bool on = true, says = n > 0 && !has_operands(p) && truth(argv[*i + 1], &on);
        take(p, at, written, NULL, 0, (says ? on : true) != negated);
        *i += says;
    } else if (f->type == ML_FLAG_LIST && eq) {
        complain(p, "%s takes a list: write %s A B C", written, written);
    } else if (eq) {
        take(p, at, written, &after, 1, true);
    } else if (n == 0 && f->alone) {
        char *alone = ml_arena_str(&p->c->arena, f->alone, strlen(f->alone));
        take(p, at, written, &alone, 1, true);
    } else if (n == 0) {
        no_value(p, word);
    } else {
        n = f->type == ML_FLAG_LIST ? n : 1;
        take(p, at, written, argv + *i + 1, n, true);
        *i += n;
    }
}

/* Reports an unexpected word; vLLM takes a model in this place. */
static void complain_of_word(parser *p, const char *word) {
    int at = 0;

    while (at < p->flags.n &&
           !(p->flags.row[at]->model && p->flags.row[at]->required && !p->given[at].name))
        at++;
    if (at < p->flags.n)
        complain(p,
                 "'%s' is not a flag: flags begin with --, and the model is given by --%s",
                 word, p->flags.row[at]->name);
    else
        complain(p, "'%s' is not a flag: flags begin with --", word);
}

/* Parses a word that is not a flag, at argv[*i]. */
static void parse_operand(parser *p, int *i, int argc, char **argv) {
    int at = 0, n;

    while (at < p->flags.n && !(p->flags.row[at]->operand && !p->given[at].name))
        at++;
    if (at == p->flags.n) {
        complain_of_word(p, argv[*i]);
        return;
    }
    n = p->flags.row[at]->rest                   ? argc - *i
        : p->flags.row[at]->type == ML_FLAG_LIST ? count_words(*i, argc, argv)
                                                 : 1;
    take(p, at, argv[*i], argv + *i, n, true);
    *i += n - 1;
}

/* ---- a file of flags ---- */

#define CONFIG "--custom-config-path"

/* --name for name or na_me. */
static char *spell(ml_arena *a, const char *dashes, ml_str key) {
    char *word = ml_arena_printf(a, "%s%.*s", dashes, (int)key.len, key.ptr);

    for (char *c = word; *c; c++)
        if (*c == '_')
            *c = '-';
    return word;
}

/* Converts a member to the words of a command line; 0 of them if it has no effect. */
static int words_of(ml_arena *a, const ml_json *m, char **out) {
    int n = 0;

    switch (m->type) {
    case ML_JSON_NULL: break;
    case ML_JSON_TRUE: out[n++] = spell(a, "--", m->key); break;
    case ML_JSON_FALSE: out[n++] = spell(a, "--no-", m->key); break;
    case ML_JSON_ARRAY:
        out[n++] = spell(a, "--", m->key);
        for (const ml_json *e = m->child; e; e = e->next)
            out[n++] = ml_arena_str(a, e->text.ptr, e->text.len);
        break;
    default:
        out[n++] = ml_arena_printf(a, "%s=%.*s", spell(a, "--", m->key), (int)m->text.len,
                                   m->text.ptr);
    }
    return n;
}

static void parse_member(parser *p, ml_arena *a, const ml_json *m) {
    char **words = ML_NEW(a, char *, m->n + 2);
    int n = words_of(a, m, words), i = 0;

    if (n == 0)
        return;
    if (strncmp(words[0], CONFIG, strlen(CONFIG)) == 0) {
        complain(p, CONFIG ": %s names another YAML file; only one file is read", p->file);
        return;
    }
    parse_flag(p, &i, n, words);
    if (i + 1 < n)
        complain(p, "%s: '%s' looks like a flag and is not accepted as a value", words[0],
                 words[i + 1]);
}

static void parse_file(parser *p, const char *path) {
    ml_arena *a = &p->c->arena;
    const ml_json *doc;
    ml_err err = { 0 };
    ml_file f = { 0 };

    p->file = path;
    if (ml_file_map(&f, path, &err) != ML_OK ||
        ml_yaml_parse(&doc, a,
                      (ml_str){ ml_arena_str(a, f.bytes.ptr, f.bytes.len), f.bytes.len },
                      path, &err) != ML_OK)
        complain(p, CONFIG ": %s", err.msg);
    else if (doc->type != ML_JSON_OBJECT)
        complain(p, CONFIG ": %s: expected a mapping of flag names to values, not %s", path,
                 ml_json_what(doc));
    else
        for (const ml_json *m = doc->child; m; m = m->next)
            parse_member(p, a, m);
    ml_file_unmap(&f);
    p->file = NULL;
}

/* The last file of flags on the command line; NULL: none.  A word with two dashes is
 * never a value. */
static const char *find_file(const parser *p, int argc, char **argv) {
    size_t n = strlen(CONFIG);
    const char *path = NULL;

    if (ml_flag_list_find(&p->flags, ml_str_of(&CONFIG[2])) < 0)
        return NULL;
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], CONFIG "=", n + 1) == 0)
            path = argv[i] + n + 1;
        else if (strcmp(argv[i], CONFIG) == 0 && count_words(i + 1, argc, argv))
            path = argv[i + 1];
    return path;
}

/* ---- the whole command line ---- */

static void check_required(parser *p) {
    for (int i = 0; i < p->flags.n; i++) {
        const ml_flag *f = p->flags.row[i];
        if (f->required && !p->given[i].name && (f->model || p->cmd != ML_CMD_PLAN))
            complain(p, f->operand ? "%s%s is required" : "--%s %s is required",
                     f->operand ? "" : f->name, f->value);
    }
}

static void check_models(parser *p) {
    for (int i = 0; i < p->flags.n; i++) {
        const given *g = &p->given[i];
        if (p->flags.row[i]->model && g->name && *g->value &&
            ml_model_path_wrong(p->wrong, g->name, g->value))
            ml_text_printf(p->wrong, "\n");
    }
}

/* miles plan has the flags of train but needs no data, rewards or files. */
static void check_rules(parser *p) {
    unsigned cmds = p->cmd == ML_CMD_PLAN ? ML_CMD_PLAN_ONLY : p->cmd;

    for (const ml_rule *const *t = ml_rule_tables; *t; t++)
        for (const ml_rule *r = *t; r->id; r++)
            if ((r->cmds & cmds) && r->broken(p->c))
                complain(p, "%s", r->sentence);
}

/* Flags with the same reason share a line: a launch script has dozens of them. */
static void tell_ignored(const parser *p) {
    for (int i = 0; i < p->n_ignored; i++) {
        const char *why = p->ignored[i].why;
        ml_text names = { 0 };
        int n = 0;

        for (int k = 0; k < p->n_ignored; k++) {
            if (strcmp(p->ignored[k].why, why) != 0)
                continue;
            if (k < i)
                break; /* reported there */
            ml_text_printf(&names, "%s%s", n++ ? ", " : "", p->ignored[k].name);
        }
        if (n)
            ml_log(ML_LOG_WARN, "%s %s ignored: %s", names.ptr, n == 1 ? "is" : "are", why);
        ml_text_release(&names);
    }
}

/* The cores available to this process, which in a container are fewer than are online. */
static int64_t n_core(void) {
    cpu_set_t set;
    int n;

    CPU_ZERO(&set);
    n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < ML_POOL_MAX ? n : ML_POOL_MAX;
}

static bool is_given(const parser *p, const char *name) {
    int at = ml_flag_list_find(&p->flags, ml_str_of(name));
    return at >= 0 && p->given[at].name;
}

static ml_help_asked asks_help(int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help-all") == 0)
            return ML_HELP_ALL;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return ML_HELP_LIVE;
    }
    return ML_HELP_NONE;
}

/* The words begin with `none`, and are in the order of ml_weight_dtype. */
static void take_quantization(ml_config *c) {
    static const ml_dtype kv[] = {
        ML_F32, ML_BF16, ML_BF16, ML_KV_E4M3, ML_KV_E5M2, ML_KV_INT8,
    };

    c->run.kv_dtype = kv[c->kv_cache];
    c->run.dtype =
        (ml_weight_dtype)(c->quantization ? ML_WEIGHT_STORED + c->quantization - 1
                                          : c->dtype);
    if (c->rollout_quantization == ML_ROLLOUT_AUTO)
        c->run.rollout_dtype = ML_WEIGHT_STORED;
    else if (c->rollout_quantization)
        c->run.rollout_dtype =
            (ml_weight_dtype)(ML_WEIGHT_FP8 + c->rollout_quantization - 1);
    if (c->fake_quantization > 0)
        c->run.qat = (ml_weight_dtype)(ML_WEIGHT_QAT + c->fake_quantization - 1);
    if (c->fp8_format)
        c->run.qat = c->fp8_recipe && strcmp(c->fp8_recipe, "mxfp8") == 0
                         ? ML_WEIGHT_MXFP8
                         : ML_WEIGHT_FP8_BLOCKWISE;
    if (c->fp8_backward)
        c->run.trainer.grad_format = c->fp8_format && strcmp(c->fp8_format, "hybrid") == 0
                                         ? ML_GRAD_E5M2
                                         : ML_GRAD_E4M3;
}

ml_status ml_flags_parse(ml_config *c, ml_help_asked *help, ml_cmd cmd, int argc,
                         char **argv, ml_text *wrong) {
    parser p = { .c = c, .cmd = cmd, .wrong = wrong };
    const char *file, *why;

    *c = (ml_config){ 0 };
    ml_arena_init(&c->arena, "flags");
    c->run.mode.async = cmd == ML_CMD_TRAIN_ASYNC;
    *help = asks_help(argc, argv);
    if (*help)
        return ML_OK;
    ml_flag_list_init(&p.flags, cmd);
    set_defaults(&p);
    file = find_file(&p, argc, argv);
    if (file && *file)
        parse_file(&p, file);
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0 && argv[i][2])
            parse_flag(&p, &i, argc, argv);
        else
            parse_operand(&p, &i, argc, argv);
    }
    if (cmd & (ML_CMD_SFT | ML_CMD_TRAIN)) {
        ml_flags_respell(c, is_given(&p, "use-dynamic-batch-size"));
        why = ml_flags_take_environment(c);
        if (why)
            complain(&p, "%s", why);
    }
    check_required(&p);
    check_models(&p);
    check_rules(&p);
    tell_ignored(&p);
    if (!c->run.backend.n_thread)
        c->run.backend.n_thread = (int)n_core();
    take_quantization(c);
    c->run.backend.f32 = c->run.dtype == ML_WEIGHT_F32;
    return wrong->len ? ML_EUSAGE : ML_OK;
}

void ml_config_release(ml_config *c) {
    ml_arena_release(&c->arena);
}
