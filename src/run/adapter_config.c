/* The configuration of an adapter: reading it, and what the flags add to it. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "io/yaml.h"
#include "run/adapter_registry.h"

typedef enum field_kind { TEXT, WHOLE, NUMBER } field_kind;

typedef struct field {
    const char *name;
    field_kind kind;
    size_t at;
} field;

#define AT(member) offsetof(ml_adapter_config, member)

static const field fields[] = {
    { "data", TEXT, AT(data) },
    { "rank", WHOLE, AT(rank) },
    { "alpha", NUMBER, AT(alpha) },
    { "rollout_batch_size", WHOLE, AT(rollout_batch_size) },
    { "n_samples_per_prompt", WHOLE, AT(n_samples_per_prompt) },
    { "save", TEXT, AT(save) },
    { "input_key", TEXT, AT(input_key) },
    { "label_key", TEXT, AT(label_key) },
    { "metadata_key", TEXT, AT(metadata_key) },
    { "rm_type", TEXT, AT(rm_type) },
    { "custom_rm_path", TEXT, AT(custom_rm_path) },
    { "num_step", WHOLE, AT(num_step) },
    { "num_epoch", WHOLE, AT(num_epoch) },
};

/* Not given and 0 are different: 0 is no valid number of anything. */
static bool set_field(ml_adapter_config *c, const field *f, const ml_json *v, ml_arena *a) {
    void *at = (char *)c + f->at;
    int64_t n;

    switch (f->kind) {
    case TEXT:
        if (v->type != ML_JSON_STRING || memchr(v->text.ptr, 0, v->text.len))
            return false;
        *(const char **)at = ml_arena_str(a, v->text.ptr, v->text.len);
        return true;
    case WHOLE:
        if (!ml_json_i64(v, &n))
            return false;
        *(int64_t *)at = n ? n : -1;
        return true;
    default:
        if (!ml_json_f64(v, at))
            return false;
        if (*(double *)at == 0)
            *(double *)at = -1;
        return true;
    }
}

static const field *find_field(ml_str name) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (ml_str_is(name, fields[i].name))
            return &fields[i];
    return NULL;
}

static ml_status read_member(ml_adapter_config *out, const ml_json *v, ml_arena *a,
                             const char **member, ml_err *err) {
    const field *f = find_field(v->key);

    *member = ml_arena_str(a, v->key.ptr, v->key.len);
    if (ml_str_is(v->key, "metadata"))
        return v->type == ML_JSON_NULL || (v->type == ML_JSON_OBJECT && !v->child)
                   ? ML_OK
                   : ml_fail(err, ML_EFORMAT,
                             "\"metadata\" is not supported: put it into the rows of the "
                             "data");
    if (!f)
        return ml_fail(err, ML_EFORMAT,
                       "\"%s\" is not a field of an adapter's configuration", *member);
    if (v->type == ML_JSON_NULL || set_field(out, f, v, a))
        return ML_OK;
    return ml_fail(err, ML_EFORMAT, "\"%s\" is %s; expected %s", *member, ml_json_what(v),
                   f->kind == TEXT    ? "a string"
                   : f->kind == WHOLE ? "a whole number"
                                      : "a number");
}

ml_status ml_adapter_config_read(ml_adapter_config *out, const ml_json *object, ml_arena *a,
                                 const char **member, ml_err *err) {
    ml_status st = ML_OK;

    *out = (ml_adapter_config){ .input_key = "text" };
    *member = NULL;
    if (!object || object->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EFORMAT, "an adapter's configuration is an object");
    for (const ml_json *v = object->child; v && st == ML_OK; v = v->next)
        st = read_member(out, v, a, member, err);
    if (st == ML_OK && !out->data) {
        *member = "data";
        st = ml_fail(err, ML_EFORMAT, "\"data\" is required: a file of prompts");
    }
    return st;
}

ml_status ml_adapter_config_read_file(ml_adapter_config *out, const char *path, ml_arena *a,
                                      ml_err *err) {
    const ml_json *doc;
    const char *member;
    ml_file f = { 0 };
    ml_status st = ml_file_map(&f, path, err);

    if (st == ML_OK)
        st = ml_yaml_parse(&doc, a, f.bytes, path, err);
    if (st == ML_OK) {
        st = ml_adapter_config_read(out, doc, a, &member, err);
        if (st != ML_OK)
            ml_err_prefix(err, "%s", path);
    }
    ml_file_unmap(&f);
    return st;
}

/* --- defaults and checks ---------------------------------------------------------------- */

static void take_defaults(ml_adapter_config *c, const ml_run_opts *flags) {
    if (!c->rank)
        c->rank = flags->lora.rank;
    if (c->alpha == 0)
        c->alpha = flags->lora.alpha;
    if (!c->rollout_batch_size)
        c->rollout_batch_size = flags->rollout_batch_size;
    if (!c->n_samples_per_prompt)
        c->n_samples_per_prompt = ml_run_per_prompt(flags);
    if (!c->label_key)
        c->label_key = flags->data.label_key;
    if (!c->metadata_key)
        c->metadata_key = flags->data.metadata_key;
}

static ml_status check_positive(const char *name, const char *what, int64_t n,
                                ml_err *err) {
    return n > 0 ? ML_OK
                 : ml_fail(err, ML_EUSAGE, "Adapter '%s' %s must be a positive integer",
                           name, what);
}

static ml_status check_numbers(const ml_adapter_config *c, const char *name,
                               const ml_run_opts *flags, ml_err *err) {
    ml_status st = check_positive(name, "rank", c->rank, err);

    if (st == ML_OK && c->rank > flags->lora.rank)
        st = ml_fail(err, ML_EUSAGE,
                     "Adapter '%s' rank %lld exceeds the allocated maximum rank %lld", name,
                     (long long)c->rank, (long long)flags->lora.rank);
    if (st == ML_OK && c->alpha <= 0)
        st = ml_fail(err, ML_EUSAGE, "Adapter '%s' must have a positive alpha", name);
    if (st == ML_OK)
        st = check_positive(name, "rollout_batch_size", c->rollout_batch_size, err);
    if (st == ML_OK)
        st = check_positive(name, "n_samples_per_prompt", c->n_samples_per_prompt, err);
    if (st == ML_OK && c->num_step)
        st = check_positive(name, "num_step", c->num_step, err);
    if (st == ML_OK && c->num_epoch)
        st = check_positive(name, "num_epoch", c->num_epoch, err);
    return st;
}

/* Without a global batch size, and a limit, any number. */
static int64_t batch_limit(const ml_run_opts *flags) {
    return flags->multi_lora.max_batch ? flags->multi_lora.max_batch
                                       : 4 * flags->trainer.batch.global_batch_size;
}

static ml_status check_batch(const ml_adapter_config *c, const char *name,
                             const ml_run_opts *flags, ml_err *err) {
    int64_t limit = batch_limit(flags), most = limit ? limit : INT32_MAX;

    if (c->rollout_batch_size <= most / c->n_samples_per_prompt)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "Adapter '%s' consumes more than %lld samples per step "
                   "(rollout_batch_size %lld x n_samples_per_prompt %lld), exceeding "
                   "--multi-lora-max-adapter-global-batch-size",
                   name, (long long)most, (long long)c->rollout_batch_size,
                   (long long)c->n_samples_per_prompt);
}

ml_status ml_adapter_resolve(ml_adapter_config *c, ml_arena *a, const char *name,
                             const ml_run_opts *flags, ml_err *err) {
    ml_status st;

    take_defaults(c, flags);
    st = check_numbers(c, name, flags, err);
    if (st == ML_OK && !strstr(c->data, "@[") && access(c->data, R_OK) != 0)
        st = ml_fail(err, ML_EUSAGE, "Adapter '%s' data path '%s' does not exist", name,
                     c->data);
    if (st == ML_OK && !c->rm_type && !c->custom_rm_path && !flags->reward.rm_type &&
        !flags->custom_rm_path)
        st = ml_fail(err, ML_EUSAGE,
                     "Adapter '%s' has no reward config: set rm_type or custom_rm_path in "
                     "the adapter config, or launch with --rm-type / --custom-rm-path",
                     name);
    if (st == ML_OK)
        st = check_batch(c, name, flags, err);
    if (st == ML_OK && !c->save && !flags->save)
        st = ml_fail(err, ML_EUSAGE,
                     "Adapter '%s' has no save dir: set 'save' in the adapter config or "
                     "pass --save",
                     name);
    if (st == ML_OK && !c->save)
        c->save = ml_arena_printf(a, "%s/adapters/%s", flags->save, name);
    return st;
}
