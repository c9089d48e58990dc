#include "model/spec.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "io/quant.h"
#include "model/build.h"
#include "model/plugin_family.h"
#include "tensor/codes.h"

/* Keys that describe training, generation or bookkeeping, not the computation.  They
 * include all keys that transformers writes to every config.json. */
static const char *const ignored_keys[] = {
    /* identification */
    "architectures",
    "model_type",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "auto_map",
    "_name_or_path",
    "_commit_hash",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "attn_implementation",
    "_experts_implementation",
    "name_or_path",
    "transformers_weights",
    "transformers.js_config",
    "is_llama_config",
    "unsloth_version",
    "unsloth_fixed",
    "tokenizer_class",
    "prefix",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "pruned_heads",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "is_decoder",
    "add_cross_attention",
    "cross_attention_hidden_size",
    "tie_encoder_decoder",
    "base_model_tp_plan",
    "base_model_pp_plan",
    /* multimodal models */
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "vision_token_id",
    "mrope_section",
    "mrope_interleaved",
    /* training */
    "initializer_range",
    "attention_dropout",
    "hidden_dropout",
    "gradient_checkpointing",
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    /* special tokens and generation */
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "output_scores",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "return_dict_in_generate",
};
/* Switches of features that these families do not have: only `off` is supported. */
static const char *const off_keys[] = { "rope_interleaved", "use_mrope", "lm_head_bias",
                                        "mlp_bias" };
#define N_IGNORED (sizeof ignored_keys / sizeof *ignored_keys)

static ml_status refuse(const ml_hf_config *c, const char *key, const char *found,
                        ml_err *err) {
    ml_text list = { 0 };
    ml_status st;

    for (const ml_family *const *f = ml_families; *f; f++)
        ml_text_printf(&list, "%s%s", f == ml_families ? "" : ", ",
                       !strcmp(key, "model_type") ? (*f)->model_type : (*f)->architecture);
    st = ml_fail(err, ML_EUNSUP, "%s: %s \"%s\" is not supported; supported are %s",
                 c->path, key, found, list.ptr);
    ml_text_release(&list);
    return st;
}

/* Multimodal models whose text model is one of the families.  Rotary positions of images
 * (mrope) are those of text where there is no image. */
static const struct {
    const char *model_type;
    const char *text; /* family of the text model; NULL: the model_type of text_config */
} wrappers[] = {
    { "gemma3", "gemma3_text" },   { "gemma4", "gemma4_text" },
    { "qwen3_5", "qwen3_5_text" }, { "qwen3_5_moe", "qwen3_5_moe_text" },
    { "kimi_k25", NULL },          { "mistral3", "mistral" },
    { "qwen2_5_vl", "qwen2" },     { "qwen3_vl", "qwen3" },
    { "llama4", "llama4_text" },   { "gemma3n", "gemma3n_text" },
};

/* Enters text_config of a multimodal model; `text` receives the family if the wrapper
 * determines it.  Older configs of qwen2_5_vl have no text_config. */
static void enter_wrapper(ml_hf_config *c, ml_spec *s, const char **text) {
    const ml_json *type = ml_json_get(c->root, "model_type");

    *text = NULL;
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        if (type && type->type == ML_JSON_STRING &&
            ml_str_is(type->text, wrappers[i].model_type)) {
            s->inside = wrappers[i].model_type;
            *text = wrappers[i].text;
            ml_hf_config_enter(c, "text_config");
            return;
        }
}

/* The checkpoint reader dequantizes these formats (io/quant.h). */
static void check_quantization(ml_hf_config *c) {
    const ml_json *q = ml_hf_config_get(c, "quantization_config");
    const char *known, *how;

    if (!q && c->outer)
        q = ml_json_get(c->outer, "quantization_config");
    how = q ? ml_hf_config_str_in(c, q, "quantization_config.", "quant_method", "unnamed")
            : NULL;
    if (how && !ml_quant_method_known(how, &known))
        ml_hf_config_fail(c, ML_EUNSUP,
                          "%s:%u: the weights are quantized by the method %s; supported "
                          "are %s",
                          c->path, q->line, how, known);
}

/* architectures[0], or NULL: there is none. */
static const char *architecture(ml_hf_config *c) {
    const ml_json *arch = ml_hf_config_get(c, "architectures");

    return arch && arch->type == ML_JSON_ARRAY && arch->n > 0
               ? ml_arena_str(c->arena, arch->child->text.ptr, arch->child->text.len)
               : NULL;
}

#define CLASSIFIER "ForSequenceClassification"

/* The length of an architecture's name up to "For". */
static size_t before_for(const char *arch) {
    const char *end = strstr(arch, "For");
    return end ? (size_t)(end - arch) : strlen(arch);
}

static ml_status check_architecture(ml_hf_config *c, const ml_family *f, const char *arch,
                                    const ml_spec_opts *o, ml_err *err) {
    size_t n = before_for(f->architecture);
    bool classifier =
        arch && strncmp(arch, f->architecture, n) == 0 && !strcmp(arch + n, CLASSIFIER);

    if (!arch || strcmp(arch, f->architecture) == 0 || (classifier && o->reward))
        return ML_OK;
    if (classifier)
        return ml_fail(
            err, ML_EUNSUP,
            "%s: architecture \"%s\" is a reward model, which generates no tokens; "
            "miles reward-model trains it, --reward-model-path uses it",
            c->path, arch);
    return refuse(c, "architecture", arch, err);
}

/* Rewards are one number, read at the last token that is no padding. */
static void read_classifier(ml_spec *s, ml_hf_config *c) {
    const ml_json *labels = ml_hf_config_get(c, "id2label");
    const char *arch = architecture(c);

    s->pad_token =
        (int32_t)ml_hf_config_int(c, "pad_token_id", ML_NONE, ML_NONE, INT32_MAX);
    if (labels && labels->n != 1 && arch && strstr(arch, CLASSIFIER))
        ml_hf_config_fail(c, ML_EUNSUP,
                          "%s:%u: the model has %d labels; a reward model has one", c->path,
                          labels->line, labels->n);
}

static ml_status find_builtin(const ml_family **out, ml_hf_config *c, const char *type,
                              const char *arch, const ml_spec_opts *o, ml_err *err) {
    for (const ml_family *const *f = ml_families; *f; f++)
        if (!strcmp(type, (*f)->model_type)) {
            *out = *f;
            return check_architecture(c, *f, arch, o, err);
        }
    return refuse(c, "model_type", type, err);
}

static ml_status check_plugin(const miles_family *f, const ml_hf_config *c,
                              const char *type, const char *arch, ml_err *err) {
    if (strcmp(type, f->model_type) != 0)
        return ml_fail(err, ML_EUNSUP,
                       "%s: model_type is \"%s\", but the family '%s' of --spec builds "
                       "\"%s\": select the family of this model, or remove --spec",
                       c->path, type, f->name, f->model_type);
    if (arch && f->architecture && strcmp(arch, f->architecture) != 0)
        return ml_fail(err, ML_EUNSUP,
                       "%s: architecture is \"%s\", but the family '%s' of --spec builds "
                       "\"%s\": select the family of this model, or remove --spec",
                       c->path, arch, f->name, f->architecture);
    return ML_OK;
}

/* The first heads that were released call themselves LlamaForCausalLM. */
static ml_status check_head(const ml_hf_config *c, const char *arch, ml_err *err) {
    bool first = arch && strcmp(arch, "LlamaForCausalLM") == 0 &&
                 ml_json_get(c->root, "draft_vocab_size");

    if (!first && (!arch || strcmp(arch, ml_family_eagle3.architecture) != 0))
        return ml_fail(err, ML_EUNSUP,
                       "%s: the architecture is \"%s\", but an EAGLE-3 head has \"%s\": "
                       "name the directory of such a head",
                       c->path, arch ? arch : "", ml_family_eagle3.architecture);
    return ML_OK;
}

/* The built-in family, or none with a family of a plug-in. */
static ml_status find_family(const ml_family **out, ml_hf_config *c, const char *text,
                             const ml_spec_opts *o, ml_err *err) {
    const char *type = text ? text : ml_hf_config_str(c, "model_type", NULL);
    const char *arch = text ? NULL : architecture(c);

    if (!type && c->first.code != ML_OK)
        return ml_fail(err, c->first.code, "%s", c->first.msg);
    if (!type)
        return ml_fail(err, ML_EFORMAT, "%s: key \"model_type\" is missing", c->path);
    if (o->plugin)
        return check_plugin(o->plugin, c, type, arch, err);
    if (o->eagle3) {
        *out = &ml_family_eagle3;
        return check_head(c, arch, err);
    }
    if (o->layers_of && strncmp(type, o->layers_of, strlen(o->layers_of)) != 0)
        return ml_fail(err, ML_EUSAGE,
                       "--spec %s has the layers of %s, but %s has the model_type %s: "
                       "remove --spec, or name the layers of this model",
                       o->layers_name, o->layers_of, c->path, type);
    return find_builtin(out, c, type, arch, o, err);
}

/* The family's list and the common one, concatenated. */
static const char *const *all_ignored(ml_arena *a, const char *const *own) {
    size_t n = 0;
    const char **list;
    while (own && own[n])
        n++;
    list = ML_NEW(a, const char *, n + N_IGNORED + 1);
    if (n)
        memcpy(list, own, n * sizeof *list);
    memcpy(list + n, ignored_keys, sizeof ignored_keys);
    return list;
}

static void take_off_keys(ml_hf_config *c) {
    for (size_t i = 0; i < sizeof off_keys / sizeof *off_keys; i++) {
        const ml_json *v = ml_json_get(c->root, off_keys[i]);
        if (v && v->type == ML_JSON_FALSE)
            ml_hf_config_get(c, off_keys[i]);
    }
}

/* Each size alone is within bounds; the number of parameters must be as well. */
static ml_status check_total(const ml_spec *s, const char *path, ml_err *err) {
    double total = 0, most = 2e13;

    for (int32_t i = 0; i < s->n_param; i++)
        total += (double)ml_param_count(&s->param[i]);
    if (total > most)
        return ml_fail(err, ML_EFORMAT,
                       "%s: the sizes give a model of %.3g parameters; the maximum is %.3g",
                       path, total, most);
    return ML_OK;
}

#define MEMBER_BITS 20 /* bits of the member in a map value; the parameter has the rest */

static void index_names(ml_spec *s) {
    char buf[512];

    ml_map_init(&s->by_name, &s->arena, s->n_param);
    for (int32_t i = 0; i < s->n_param; i++)
        for (int32_t e = 0; e < s->param[i].n_stack; e++) {
            const char *name = ml_param_name(&s->param[i], e, buf, sizeof buf);
            name = ml_arena_str(&s->arena, name, strlen(name));
            ml_map_add(&s->by_name, ml_str_of(name), (int64_t)i << MEMBER_BITS | e);
        }
}

int32_t ml_spec_find_part(const ml_spec *s, ml_str name) {
    return (int32_t)ml_map_get(&s->by_part, name, ML_NONE);
}

/* Links the parameters stored in one tensor, in the order of the spec. */
static void index_parts(ml_spec *s) {
    ml_map_init(&s->by_part, &s->arena, 64);
    for (int32_t i = 0; i < s->n_param; i++) {
        ml_part *part = s->param[i].part;
        int32_t at = part ? ml_spec_find_part(s, ml_str_of(part->name)) : ML_NONE;
        if (!part)
            continue;
        part->next = ML_NONE;
        if (at == ML_NONE)
            ml_map_add(&s->by_part, ml_str_of(part->name), i);
        while (at != ML_NONE && s->param[at].part->next != ML_NONE)
            at = s->param[at].part->next;
        if (at != ML_NONE)
            s->param[at].part->next = i;
    }
}

void ml_spec_index(ml_spec *s) {
    index_names(s);
    index_parts(s);
}

int32_t ml_spec_find(const ml_spec *s, ml_str name, int32_t *member) {
    int64_t v = ml_map_get(&s->by_name, name, ML_NONE);
    if (v == ML_NONE)
        return ML_NONE;
    *member = (int32_t)(v & ((1 << MEMBER_BITS) - 1));
    return (int32_t)(v >> MEMBER_BITS);
}

/* The first node of a layer reads the stream, and so does the final norm. */
int32_t ml_spec_layer_input(const ml_spec *s, int32_t layer) {
    int32_t normed = s->node[s->n_node - 1].in[0], i = 0, x;

    while (i < s->n_node &&
           (layer < s->n_layer ? s->node[i].layer != layer : s->node[i].out[0] != normed))
        i++;
    if (layer < 0 || layer > s->n_layer || i == s->n_node)
        return ML_NONE;
    x = s->node[i].in[0];
    return x != ML_NONE && s->value[x].axis == ML_PER_TOKEN && s->value[x].mul == 1 &&
                   s->value[x].width == s->n_hidden
               ? x
               : ML_NONE;
}

static void build(ml_builder *b, const ml_family *family, const ml_spec_opts *o) {
    const char *type = family ? family->model_type : o->plugin->model_type;

    b->spec->family = ml_arena_str(&b->spec->arena, type, strlen(type));
    check_quantization(b->config);
    if (family)
        family->build(b);
    else
        ml_plugin_family_build(b, o->plugin);
    take_off_keys(b->config);
}

/* Whether the output of a linear layer selects experts. */
static bool is_router(const ml_spec *s, const ml_node *n) {
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_MOE_ROUTE && s->node[i].in[0] == n->out[0])
            return true;
    return false;
}

static void mark_linear(ml_spec *s) {
    bool experts = false;

    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *n = &s->node[i];
        ml_param *p = n->w[0] == ML_NONE ? NULL : &s->param[n->w[0]];
        if ((n->op == ML_OP_LINEAR || n->op == ML_OP_MOE_LINEAR) && n->layer != ML_NONE)
            p->linear = p->shape[0] >= ML_LANES && !p->keep_f32 && !is_router(s, n);
        experts |= n->op == ML_OP_MOE_LINEAR;
    }
    for (int32_t i = 0; i < s->n_param; i++)
        s->param[i].qat = s->param[i].linear && (!experts || s->param[i].name_after);
}

static ml_status parse(ml_spec *out, ml_str text, const char *path, const ml_spec_opts *o,
                       ml_err *err) {
    ml_hf_config c;
    ml_builder b = { .spec = out,
                     .config = &c,
                     .mtp = o->mtp,
                     .own_embedding = o->own_embedding,
                     .layer = ML_NONE };
    const ml_family *family = NULL;
    const char *inner;
    ml_status st;

    *out = (ml_spec){ .critic = o->critic || o->reward,
                      .reward = o->reward,
                      .pad_token = ML_NONE,
                      .head_seed = 1234 };
    ml_arena_init(&out->arena, "model spec");
    st = ml_hf_config_open(&c, &out->arena, text, path, err);
    if (st == ML_OK) {
        enter_wrapper(&c, out, &inner);
        st = find_family(&family, &c, inner, o, err);
    }
    if (st == ML_OK && o->reward)
        read_classifier(out, &c);
    if (st == ML_OK) {
        build(&b, family, o);
        st = ml_hf_config_check(
            &c, all_ignored(&out->arena, family ? family->ignored : o->plugin->ignored),
            err);
    }
    if (st == ML_OK && o->mtp && !out->mtp)
        st = ml_fail(err, ML_EUNSUP,
                     "%s: a %s model has no multi-token prediction layer that is "
                     "supported; remove the flag that asks for it",
                     path, out->family);
    if (st == ML_OK)
        st = check_total(out, path, err);
    if (st == ML_OK)
        mark_linear(out);
    if (st == ML_OK)
        ml_spec_index(out);
    else
        ml_spec_close(out);
    return st;
}

ml_status ml_spec_parse(ml_spec *out, ml_str text, const char *path, ml_err *err) {
    return parse(out, text, path, &(ml_spec_opts){ 0 }, err);
}

ml_status ml_spec_open_with(ml_spec *out, const char *dir, const ml_spec_opts *o,
                            ml_err *err) {
    ml_text path = { 0 };
    ml_file file = { 0 };
    ml_status st;

    *out = (ml_spec){ 0 };
    ml_text_printf(&path, "%s/config.json", dir);
    st = ml_file_map(&file, path.ptr, err);
    if (st == ML_OK)
        st = parse(out, file.bytes, path.ptr, o, err);
    ml_file_unmap(&file);
    ml_text_release(&path);
    return st;
}

ml_dtype ml_value_dtype(const ml_value *v, ml_dtype act) {
    return v->dtype == ML_F32 && !v->exact ? act : v->dtype;
}

ml_status ml_spec_open(ml_spec *out, const char *dir, ml_err *err) {
    return ml_spec_open_with(out, dir, &(ml_spec_opts){ 0 }, err);
}

/* Numbers that a head of a page has for each key, next to its elements. */
static int64_t scale_width(ml_dtype dtype) {
    return ml_dtype_is_kv_codes(dtype) ? ML_KV_SCALE_BYTES : 0;
}

/* size: elements of a head's key, or of its padded value. */
static void set_page_dtype(ml_value *v, int64_t size, ml_dtype dtype) {
    v->width = v->width / (size + scale_width(v->dtype)) * (size + scale_width(dtype));
    v->dtype = dtype;
}

void ml_spec_keep_kv(ml_spec *s, ml_dtype dtype) {
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_ATTN) {
            const ml_node *n = &s->node[i];
            const int64_t e = n->attr.attn.value_dim;
            set_page_dtype(&s->value[n->out[2]], n->attr.attn.head_dim, dtype);
            if (n->out[3] != ML_NONE)
                set_page_dtype(&s->value[n->out[3]],
                               (e + ML_LANES - 1) / ML_LANES * ML_LANES, dtype);
        }
}

ml_dtype ml_spec_kv_dtype(const ml_spec *s) {
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_ATTN)
            return s->value[s->node[i].out[2]].dtype;
    return ML_F32;
}

static bool is_named(const ml_param *p, const ml_high_precision *h) {
    char name[512];

    ml_param_name(p, 0, name, sizeof name);
    for (int i = 0; i < h->n_name; i++)
        if (strstr(name, h->name[i]))
            return true;
    return false;
}

int ml_spec_keep_precision(ml_spec *s, const ml_high_precision *h) {
    int n = 0;

    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *node = &s->node[i];
        ml_param *p = node->w[0] == ML_NONE ? NULL : &s->param[node->w[0]];
        if (!p || !p->linear || p->high_precision)
            continue;
        p->high_precision =
            node->layer < h->first || node->layer >= s->n_layer - h->last || is_named(p, h);
        n += p->high_precision;
    }
    return n;
}

ml_status ml_spec_check_kv(const ml_spec *s, ml_dtype dtype, ml_err *err) {
    bool any = false;

    for (int32_t i = 0; i < s->n_node; i++) {
        any = any || s->node[i].op == ML_OP_ATTN;
        if (s->node[i].op == ML_OP_ATTN_CHOSEN || s->node[i].op == ML_OP_INDEX)
            return ml_fail(err, ML_EUNSUP,
                           "a KV cache in %s: %s has sparse attention, whose keys are not "
                           "quantized: use --kv-cache-dtype auto",
                           ml_dtype_name(dtype), s->family);
    }
    return any ? ML_OK
               : ml_fail(
                     err, ML_EUNSUP,
                     "a KV cache in %s: %s has no attention, and its recurrent state is "
                     "not quantized: use --kv-cache-dtype auto",
                     ml_dtype_name(dtype), s->family);
}

bool ml_node_is_trained(const ml_spec *s, const ml_node *n) {
    return n->w[0] != ML_NONE && !(n->op == ML_OP_EMBED && s->param[n->w[0]].frozen);
}

void ml_spec_close(ml_spec *s) {
    ml_arena_release(&s->arena);
    *s = (ml_spec){ 0 };
}

const char *ml_param_name(const ml_param *p, int32_t e, char *buf, size_t cap) {
    if (p->name_after)
        snprintf(buf, cap, "%s%d%s", p->name, p->cut ? p->cut->first + e : e,
                 p->name_after);
    else
        snprintf(buf, cap, "%s", p->name);
    return buf;
}

int64_t ml_param_count(const ml_param *p) {
    return p->n_stack * p->shape[0] * (p->n_dim == 2 ? p->shape[1] : 1);
}

int64_t ml_spec_routing_width(const ml_spec *s, ml_routing_kind route) {
    return (int64_t)s->route[route].n_layer * s->route[route].top_k;
}

int64_t ml_spec_param_count(const ml_spec *s) {
    int64_t n = 0;
    for (int32_t i = 0; i < s->n_param; i++)
        n += ml_param_count(&s->param[i]);
    return n;
}
