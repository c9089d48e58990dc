#include "base/gguf_files.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/json.h"

const char *const ml_gguf_file_names[] = { "config.json", "tokenizer.json",
                                           "tokenizer_config.json", NULL };

static const ml_gguf_arch archs[] = {
    { "llama", "llama", "LlamaForCausalLM", true, false, false },
    { "llama", "mistral", "MistralForCausalLM", true, false, false },
    { "qwen2", "qwen2", "Qwen2ForCausalLM", false, false, false },
    { "qwen3", "qwen3", "Qwen3ForCausalLM", false, false, false },
    { "qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", false, false, false },
    { "gemma2", "gemma2", "Gemma2ForCausalLM", false, true, true },
    { "gemma3", "gemma3_text", "Gemma3ForCausalLM", false, true, true },
};

ml_status ml_gguf_arch_of(const ml_gguf_arch **out, const ml_gguf *g, ml_err *err) {
    ml_str name = ml_gguf_text(g, "general.architecture");

    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (ml_str_is(name, archs[i].name)) {
            *out = &archs[i];
            return ML_OK;
        }
    return ml_fail(
        err, ML_EUNSUP,
        "%s: general.architecture is \"%.*s\"; supported in GGUF files are llama, "
        "qwen2, qwen3, qwen3moe, gemma2 and gemma3",
        g->path, (int)(name.len < 100 ? name.len : 100), name.ptr ? name.ptr : "");
}

const ml_gguf_arch *ml_gguf_arch_named(const char *model_type) {
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i].model_type, model_type) == 0)
            return &archs[i];
    return NULL;
}

bool ml_gguf_is_file(const char *path, size_t *n) {
    const char *slash = strrchr(path, '/');
    char model[4096];
    struct stat st;

    if (!slash || slash - path < 5 || (size_t)(slash - path) >= sizeof model ||
        strncasecmp(slash - 5, ".gguf", 5) != 0)
        return false;
    *n = (size_t)(slash - path);
    memcpy(model, path, *n);
    model[*n] = 0;
    if (stat(model, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    for (const char *const *f = ml_gguf_file_names; *f; f++)
        if (strcmp(slash + 1, *f) == 0)
            return true;
    return false;
}

/* --- config.json ------------------------------------------------------------------ */

/* Types of tokens. */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

typedef struct writer {
    ml_text *t;
    const ml_gguf *g;
    const ml_gguf_arch *arch;
    ml_err *err;
} writer;

static const ml_gguf_key *array_of(const writer *w, const char *name, ml_gguf_value type) {
    const ml_gguf_key *k = ml_gguf_get(w->g, name);
    return k && k->array && k->type == type ? k : NULL;
}

/* A float of 32 bits as the shortest decimal that gives it: 1e-06, not 9.99999997e-07. */
static void put_float(ml_text *t, double x) {
    char buf[40];
    int digits = 1;

    do
        snprintf(buf, sizeof buf, "%.*g", digits, x);
    while (strtof(buf, NULL) != (float)x && digits++ < 9);
    ml_text_printf(t, "%s", buf);
}

static void put_int(const writer *w, const char *key, int64_t v) {
    ml_text_printf(w->t, ",\n  \"%s\": %" PRId64, key, v);
}

static void put_num(const writer *w, const char *key, double v) {
    ml_text_printf(w->t, ",\n  \"%s\": ", key);
    put_float(w->t, v);
}

static void put_bool(const writer *w, const char *key, bool v) {
    ml_text_printf(w->t, ",\n  \"%s\": %s", key, v ? "true" : "false");
}

/* The rotary frequencies of Llama 3.1 are a tensor of factors. */
typedef struct llama3 {
    double factor, old; /* the largest one; original_max_position_embeddings */
} llama3;

static double freq_factor(const writer *w, const ml_gguf_tensor *t, int64_t i) {
    float f;
    memcpy(&f, ml_gguf_bytes(w->g, t).ptr + (size_t)i * 4, sizeof f);
    return (double)f;
}

/* The wave length of frequency i of n. */
static double wave_of(const writer *w, int64_t i, int64_t n) {
    double base = ml_gguf_num(w->g, "%.rope.freq_base", 10000);
    return 2 * M_PI * pow(base, (double)i / (double)n);
}

/* low_freq_factor and high_freq_factor are 1 and 4 in all releases; a factor between 1 and
 * the largest one tells the old context length.  False: other factors. */
static bool read_llama3(const writer *w, llama3 *out) {
    const ml_gguf_tensor *t = ml_gguf_find(w->g, "rope_freqs.weight");
    int64_t n = t ? t->shape[0] : 0;

    *out = (llama3){ 1, 8192 };
    if (!t)
        return true;
    if (t->type != ML_GGML_F32 || t->n_dim != 1 || n < 1)
        return false;
    for (int64_t i = 0; i < n; i++)
        out->factor = fmax(out->factor, freq_factor(w, t, i));
    for (int64_t i = 0; i < n; i++) {
        double f = freq_factor(w, t, i), k = 1 / out->factor;
        if (f > 1 && f < out->factor)
            out->old = round(wave_of(w, i, n) * (1 + 3 * (1 / f - k) / (1 - k)));
    }
    for (int64_t i = 0; i < n; i++) {
        double wave = wave_of(w, i, n), smooth = (out->old / wave - 1) / 3;
        double want = wave < out->old / 4 ? 1
                      : wave > out->old   ? out->factor
                                          : 1 / ((1 - smooth) / out->factor + smooth);
        if (!(fabs(want - freq_factor(w, t, i)) <= 1e-4 * want))
            return false;
    }
    return out->old >= 1 && out->old < INT32_MAX;
}

static ml_status put_rope(const writer *w) {
    ml_str type = ml_gguf_text(w->g, "%.rope.scaling.type");
    double factor = ml_gguf_num(w->g, "%.rope.scaling.factor", 1);
    llama3 l;

    put_num(w, "rope_theta", ml_gguf_num(w->g, "%.rope.freq_base", 10000));
    if (!read_llama3(w, &l))
        return ml_fail(w->err, ML_EUNSUP,
                       "%s: rope_freqs.weight does not have the frequencies of Llama 3.1 "
                       "and 3.2",
                       w->g->path);
    if (l.factor > 1) {
        ml_text_printf(w->t,
                       ",\n  \"rope_scaling\": {\"rope_type\": \"llama3\", "
                       "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                       "\"original_max_position_embeddings\": %.0f, \"factor\": ",
                       l.old);
    } else if (ml_str_is(type, "linear") || ml_str_is(type, "yarn")) {
        ml_text_printf(w->t, ",\n  \"rope_scaling\": {\"rope_type\": \"%.*s\", ",
                       (int)type.len, type.ptr);
        if (ml_str_is(type, "yarn"))
            ml_text_printf(
                w->t, "\"original_max_position_embeddings\": %" PRId64 ", ",
                ml_gguf_int(w->g, "%.rope.scaling.original_context_length", 4096));
        ml_text_printf(w->t, "\"factor\": ");
    } else {
        return ML_OK;
    }
    put_float(w->t, l.factor > 1 ? l.factor : factor);
    ml_text_printf(w->t, "}");
    return ML_OK;
}

/* llama.cpp scales queries of the 27B models by the width per head, others by head_dim. */
static void put_gemma(const writer *w, int64_t layers, int64_t heads, int64_t head_dim) {
    bool three = w->arch->four_norms && strcmp(w->arch->name, "gemma3") == 0;
    int64_t width = ml_gguf_int(w->g, "%.embedding_length", 0);

    put_int(w, "query_pre_attn_scalar",
            layers == (three ? 62 : 46) && heads ? width / heads : head_dim);
    put_int(w, "sliding_window", ml_gguf_int(w->g, "%.attention.sliding_window", 4096));
    if (three) {
        put_int(w, "sliding_window_pattern", 6);
        put_num(w, "rope_local_base_freq",
                ml_gguf_num(w->g, "%.rope.freq_base_swa", 10000));
        return;
    }
    put_num(w, "attn_logit_softcapping", ml_gguf_num(w->g, "%.attn_logit_softcapping", 50));
    put_num(w, "final_logit_softcapping",
            ml_gguf_num(w->g, "%.final_logit_softcapping", 30));
}

static void put_experts(const writer *w) {
    int64_t n = ml_gguf_int(w->g, "%.expert_count", 0);

    if (strcmp(w->arch->name, "qwen3moe") != 0)
        return;
    put_int(w, "num_experts", n);
    put_int(w, "num_experts_per_tok", ml_gguf_int(w->g, "%.expert_used_count", 0));
    put_int(w, "moe_intermediate_size",
            ml_gguf_int(w->g, "%.expert_feed_forward_length", 0));
    put_bool(w, "norm_topk_prob", true);
    put_int(w, "decoder_sparse_step", 1);
    ml_text_printf(w->t, ",\n  \"mlp_only_layers\": []");
}

/* Tokens that end an answer for llama.cpp by their text. */
static bool ends_answer(ml_str text) {
    static const char *const ends[] = { "<|eot_id|>",    "<|im_end|>",     "<|end|>",
                                        "<end_of_turn>", "<|endoftext|>",  "<|eom_id|>",
                                        "<EOT>",         "<|end_of_text|>" };

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ml_str_is(text, ends[i]))
            return true;
    return false;
}

/* eos_token_id: the tokens of three keys, and control tokens by their text. */
static void put_ends(const writer *w) {
    static const char *const keys[] = { "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id" };
    const ml_gguf_key *tokens = array_of(w, "tokenizer.ggml.tokens", ML_GGUF_STRING);
    const ml_gguf_key *types = array_of(w, "tokenizer.ggml.token_type", ML_GGUF_I32);
    int64_t end[3];
    size_t n = 0, at = 0;

    for (size_t i = 0; i < 3; i++)
        end[i] = ml_gguf_int(w->g, keys[i], -1);
    ml_text_printf(w->t, ",\n  \"eos_token_id\": [");
    for (size_t i = 0; i < 3; i++)
        if ((i < 1 || end[i] != end[0]) && (i < 2 || end[i] != end[1]) && end[i] >= 0)
            ml_text_printf(w->t, "%s%" PRId64, n++ ? ", " : "", end[i]);
    for (uint64_t i = 0; tokens && types && i < tokens->n && i < types->n; i++)
        if (ends_answer(ml_gguf_next(tokens, &at)) && (int64_t)i != end[0] &&
            (int64_t)i != end[1] && (int64_t)i != end[2] &&
            ml_gguf_item(types, i) == CONTROL)
            ml_text_printf(w->t, "%s%" PRIu64, n++ ? ", " : "", i);
    ml_text_printf(w->t, "]");
}

static void put_tokens(const writer *w) {
    static const struct {
        const char *key, *name;
    } rows[] = { { "tokenizer.ggml.bos_token_id", "bos_token_id" },
                 { "tokenizer.ggml.padding_token_id", "pad_token_id" } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ml_gguf_int(w->g, rows[i].key, -1) >= 0)
            put_int(w, rows[i].name, ml_gguf_int(w->g, rows[i].key, -1));
    put_ends(w);
}

static ml_status write_config(const writer *w) {
    const ml_gguf *g = w->g;
    const ml_gguf_tensor *embedding = ml_gguf_find(g, "token_embd.weight");
    int64_t layers = ml_gguf_int(g, "%.block_count", 0);
    int64_t heads = ml_gguf_int(g, "%.attention.head_count", 0);
    int64_t width = ml_gguf_int(g, "%.embedding_length", 0);
    int64_t head_dim = ml_gguf_int(g, "%.attention.key_length", heads ? width / heads : 0);
    ml_status st;

    if (!embedding)
        return ml_fail(w->err, ML_EFORMAT, "%s: tensor token_embd.weight is missing",
                       g->path);
    ml_text_printf(w->t, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\"",
                   w->arch->class_name, w->arch->model_type);
    put_int(w, "vocab_size", embedding->shape[0]);
    put_int(w, "hidden_size", width);
    put_int(w, "intermediate_size", ml_gguf_int(g, "%.feed_forward_length", 0));
    put_int(w, "num_hidden_layers", layers);
    put_int(w, "num_attention_heads", heads);
    put_int(w, "num_key_value_heads", ml_gguf_int(g, "%.attention.head_count_kv", heads));
    put_int(w, "head_dim", head_dim);
    put_num(w, "rms_norm_eps", ml_gguf_num(g, "%.attention.layer_norm_rms_epsilon", 1e-6));
    put_int(w, "max_position_embeddings", ml_gguf_int(g, "%.context_length", 4096));
    put_bool(w, "tie_word_embeddings", !ml_gguf_find(g, "output.weight"));
    ml_text_printf(w->t, ",\n  \"%s\": \"%s\"",
                   w->arch->four_norms ? "hidden_activation" : "hidden_act",
                   w->arch->four_norms ? "gelu_pytorch_tanh" : "silu");
    if (strcmp(w->arch->name, "qwen2") != 0)
        put_bool(w, "attention_bias", ml_gguf_find(g, "blk.0.attn_q.bias"));
    st = put_rope(w);
    if (w->arch->four_norms)
        put_gemma(w, layers, heads, head_dim);
    put_experts(w);
    put_tokens(w);
    ml_text_printf(w->t, ",\n  \"torch_dtype\": \"bfloat16\"\n}\n");
    return st;
}

/* --- tokenizer.json ----------------------------------------------------------------- */

typedef struct vocab {
    ml_str *token;
    float *score; /* or NULL */
    uint8_t *type;
    int64_t n;
    ml_map ids;
    ml_arena arena;
} vocab;

static ml_status read_vocab(vocab *v, const writer *w) {
    const ml_gguf_key *tokens = array_of(w, "tokenizer.ggml.tokens", ML_GGUF_STRING);
    const ml_gguf_key *types = array_of(w, "tokenizer.ggml.token_type", ML_GGUF_I32);
    const ml_gguf_key *scores = array_of(w, "tokenizer.ggml.scores", ML_GGUF_F32);
    size_t at = 0;

    if (!tokens || !tokens->n || tokens->n > INT32_MAX)
        return ml_fail(w->err, ML_EFORMAT, "%s: key tokenizer.ggml.tokens is missing",
                       w->g->path);
    if ((types && types->n != tokens->n) || (scores && scores->n != tokens->n))
        return ml_fail(w->err, ML_EFORMAT,
                       "%s: tokenizer.ggml.tokens has %" PRIu64
                       " elements; token_type and scores must have as many",
                       w->g->path, tokens->n);
    v->n = (int64_t)tokens->n;
    v->token = ML_NEW(&v->arena, ml_str, v->n);
    v->type = ML_NEW(&v->arena, uint8_t, v->n);
    v->score = scores ? ML_NEW(&v->arena, float, v->n) : NULL;
    ml_map_init(&v->ids, &v->arena, v->n);
    for (int64_t i = 0; i < v->n; i++) {
        double type = types ? ml_gguf_item(types, (uint64_t)i) : NORMAL;
        if (!(type >= 0 && type <= UINT8_MAX))
            return ml_fail(w->err, ML_EFORMAT,
                           "%s: tokenizer.ggml.token_type of token %lld is %g; expected 1 "
                           "to 6",
                           w->g->path, (long long)i, type);
        v->token[i] = ml_gguf_next(tokens, &at);
        v->type[i] = (uint8_t)type;
        if (scores)
            v->score[i] = (float)ml_gguf_item(scores, (uint64_t)i);
        ml_map_add(&v->ids, v->token[i], i);
    }
    return ML_OK;
}

/* A row of the embedding without a token, as converters name it. */
static bool is_filler(const vocab *v, int64_t i) {
    char name[40];

    snprintf(name, sizeof name, "[PAD%" PRId64 "]", i);
    return v->type[i] == UNUSED && ml_str_is(v->token[i], name);
}

static void put_vocab(const writer *w, const vocab *v) {
    bool first = true;

    ml_text_printf(w->t, "\"vocab\": {");
    for (int64_t i = 0; i < v->n; i++) {
        if (ml_map_get(&v->ids, v->token[i], -1) != i || is_filler(v, i))
            continue; /* the same text again has the first id */
        ml_text_printf(w->t, "%s", first ? "" : ",\n");
        ml_json_quote(w->t, v->token[i]);
        ml_text_printf(w->t, ": %" PRId64, i);
        first = false;
    }
    ml_text_printf(w->t, "}");
}

static void put_added(const writer *w, const vocab *v) {
    bool first = true;

    ml_text_printf(w->t, "\"added_tokens\": [");
    for (int64_t i = 0; i < v->n; i++) {
        if (v->type[i] != CONTROL && v->type[i] != USER && v->type[i] != UNKNOWN)
            continue;
        ml_text_printf(w->t, "%s{\"id\": %" PRId64 ", \"content\": ", first ? "" : ",\n",
                       i);
        ml_json_quote(w->t, v->token[i]);
        ml_text_printf(w->t,
                       ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                       "\"normalized\": false, \"special\": %s}",
                       v->type[i] == USER ? "false" : "true");
        first = false;
    }
    ml_text_printf(w->t, "],\n");
}

/* A merge of two tokens into a third. */
typedef struct merge {
    int64_t left, right;
    float score, left_score, right_score;
} merge;

static int by_score(const void *a, const void *b) {
    const merge *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_score != y->left_score)
        return x->left_score > y->left_score ? -1 : 1;
    if (x->right_score != y->right_score)
        return x->right_score > y->right_score ? -1 : 1;
    return x->left < y->left ? -1 : x->left > y->left;
}

/* Adds the pairs of tokens whose text together is token i. */
static int64_t add_splits(const vocab *v, int64_t i, merge *out) {
    ml_str s = v->token[i];
    int64_t n = 0;

    for (size_t k = 1; k < s.len && (v->type[i] == NORMAL || v->type[i] == USER); k++) {
        int64_t l, r;
        if (((unsigned char)s.ptr[k] & 0xc0) == 0x80)
            continue; /* inside a character */
        l = ml_map_get(&v->ids, (ml_str){ s.ptr, k }, -1);
        r = l < 0 ? -1 : ml_map_get(&v->ids, (ml_str){ s.ptr + k, s.len - k }, -1);
        if (r >= 0 && out)
            out[n] = (merge){ l, r, v->score[i], v->score[l], v->score[r] };
        n += r >= 0;
    }
    return n;
}

/* sentencepiece merges the pair whose text has the best score: a rank for each pair. */
static void put_score_merges(const writer *w, vocab *v) {
    merge *all;
    int64_t n = 0;

    for (int64_t i = 0; i < v->n; i++)
        n += add_splits(v, i, NULL);
    all = ML_NEW(&v->arena, merge, n);
    n = 0;
    for (int64_t i = 0; i < v->n; i++)
        n += add_splits(v, i, all + n);
    qsort(all, (size_t)n, sizeof *all, by_score);
    for (int64_t i = 0; i < n; i++) {
        ml_text_printf(w->t, "%s[", i ? ",\n" : "");
        ml_json_quote(w->t, v->token[all[i].left]);
        ml_text_printf(w->t, ", ");
        ml_json_quote(w->t, v->token[all[i].right]);
        ml_text_printf(w->t, "]");
    }
}

static void put_merges(const writer *w) {
    const ml_gguf_key *k = array_of(w, "tokenizer.ggml.merges", ML_GGUF_STRING);
    size_t at = 0;

    for (uint64_t i = 0; k && i < k->n; i++) {
        ml_text_printf(w->t, "%s", i ? ",\n" : "");
        ml_json_quote(w->t, ml_gguf_next(k, &at));
    }
}

/* Adds the first token to every text, where the model wants it. */
static void put_template(const writer *w, const vocab *v, bool bos) {
    int64_t id = ml_gguf_int(w->g, "tokenizer.ggml.bos_token_id", -1);
    bool add = ml_gguf_num(w->g, "tokenizer.ggml.add_bos_token", bos) != 0;

    if (!add || id < 0 || id >= v->n) {
        ml_text_printf(w->t, "\"post_processor\": null,\n");
        return;
    }
    ml_text_printf(w->t,
                   "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
                   "[{\"SpecialToken\": {\"id\": ");
    ml_json_quote(w->t, v->token[id]);
    ml_text_printf(w->t,
                   ", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": "
                   "0}}], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
                   "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], "
                   "\"special_tokens\": {");
    ml_json_quote(w->t, v->token[id]);
    ml_text_printf(w->t, ": {\"id\": ");
    ml_json_quote(w->t, v->token[id]);
    ml_text_printf(w->t, ", \"ids\": [%" PRId64 "], \"tokens\": [", id);
    ml_json_quote(w->t, v->token[id]);
    ml_text_printf(w->t, "]}}},\n");
}

#define WORDS                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}%s| "                \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}"    \
    "\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}"  \
    "\\p{Lo}\\p{M}]*|\\p{N}| "                                                             \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* How llama.cpp's tokenizer.ggml.pre splits text into words. */
static const struct {
    const char *name, *regex, *digits;
    bool whole_words, bos; /* a word that is a token is not merged; a first token */
    bool single_digits;    /* without a regex: before GPT-2's words, digits are cut off */
} pres[] = {
    { "gpt-2", NULL, "", false, false },
    { "default", NULL, "", false, false },
    { "smollm", NULL, "", false, false, true },
    { "starcoder", NULL, "", false, false, true },
    { "refact", NULL, "", false, false, true },
    { "qwen2", WORDS, "", false, false },
    { "qwen35", WORDS, "", false, false },
    { "llama-bpe", WORDS, "{1,3}", true, true },
    { "llama3", WORDS, "{1,3}", true, true },
    { "llama-v3", WORDS, "{1,3}", true, true },
    { "smaug-bpe", WORDS, "{1,3}", true, true },
    { "tekken", CASED, "", true, true },
};

static ml_status put_byte_level(const writer *w, const vocab *v) {
    ml_str pre = ml_gguf_text(w->g, "tokenizer.ggml.pre");
    size_t n = sizeof pres / sizeof *pres, i = 0;
    ml_text regex = { 0 };

    while (i < n && !ml_str_is(pre, pres[i].name))
        i++;
    if (i == n && pre.len)
        return ml_fail(w->err, ML_EUNSUP,
                       "%s: tokenizer.ggml.pre is \"%.*s\"; supported are gpt-2, default, "
                       "smollm, starcoder, refact, qwen2, qwen35, llama-bpe, smaug-bpe and "
                       "tekken",
                       w->g->path, (int)(pre.len < 100 ? pre.len : 100), pre.ptr);
    i = i == n ? 0 : i;
    put_template(w, v, pres[i].bos);
    ml_text_printf(
        w->t, "\"normalizer\": null,\n\"decoder\": {\"type\": \"ByteLevel\", "
              "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n"
              "\"pre_tokenizer\": ");
    if (pres[i].regex) {
        const char *hole = strstr(pres[i].regex, "%s");
        if (hole)
            ml_text_printf(&regex, "%.*s%s%s", (int)(hole - pres[i].regex), pres[i].regex,
                           pres[i].digits, hole + 2);
        else
            ml_text_printf(&regex, "%s", pres[i].regex);
        ml_text_printf(w->t, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
                             "\"Split\", \"pattern\": {\"Regex\": ");
        ml_json_quote(w->t, (ml_str){ regex.ptr, regex.len });
        ml_text_printf(w->t, "}, \"behavior\": \"Isolated\", \"invert\": false}, ");
        ml_text_release(&regex);
    }
    if (pres[i].single_digits)
        ml_text_printf(w->t, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
                             "\"Digits\", \"individual_digits\": true}, ");
    ml_text_printf(w->t,
                   "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                   "\"trim_offsets\": true, \"use_regex\": %s}%s,\n\"model\": {\"type\": "
                   "\"BPE\", \"byte_fallback\": false, \"ignore_merges\": %s, ",
                   pres[i].regex ? "false" : "true",
                   pres[i].regex || pres[i].single_digits ? "]}" : "",
                   pres[i].whole_words ? "true" : "false");
    put_vocab(w, v);
    ml_text_printf(w->t, ",\n\"merges\": [");
    put_merges(w);
    ml_text_printf(w->t, "]}}\n");
    return ML_OK;
}

static ml_status put_sentencepiece(const writer *w, vocab *v) {
    bool prefix = ml_gguf_num(w->g, "tokenizer.ggml.add_space_prefix", 1) != 0;
    int64_t unk = ml_gguf_int(w->g, "tokenizer.ggml.unknown_token_id", -1);

    if (!v->score)
        return ml_fail(w->err, ML_EFORMAT, "%s: key tokenizer.ggml.scores is missing",
                       w->g->path);
    for (int64_t i = 0; i < v->n && unk < 0; i++)
        unk = v->type[i] == UNKNOWN ? i : -1;
    put_template(w, v, true);
    ml_text_printf(
        w->t,
        "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s{\"type\": "
        "\"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"▁\"}]},\n"
        "\"pre_tokenizer\": null,\n\"decoder\": {\"type\": \"Sequence\", "
        "\"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \"▁\"}, "
        "\"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}%s]},"
        "\n\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"fuse_unk\": "
        "true, \"unk_token\": ",
        prefix ? "{\"type\": \"Prepend\", \"prepend\": \"▁\"}, " : "",
        prefix ? ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, "
                 "\"stop\": 0}"
               : "");
    if (unk >= 0 && unk < v->n)
        ml_json_quote(w->t, v->token[unk]);
    else
        ml_text_printf(w->t, "null");
    ml_text_printf(w->t, ", ");
    put_vocab(w, v);
    ml_text_printf(w->t, ",\n\"merges\": [");
    put_score_merges(w, v);
    ml_text_printf(w->t, "]}}\n");
    return ML_OK;
}

static ml_status write_tokenizer(const writer *w) {
    ml_str model = ml_gguf_text(w->g, "tokenizer.ggml.model");
    vocab v = { 0 };
    ml_status st;

    ml_arena_init(&v.arena, "the vocabulary of a GGUF file");
    st = read_vocab(&v, w);
    if (st == ML_OK) {
        ml_text_printf(w->t, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": "
                             "null,\n");
        put_added(w, &v);
        if (ml_str_is(model, "gpt2"))
            st = put_byte_level(w, &v);
        else if (ml_str_is(model, "llama"))
            st = put_sentencepiece(w, &v);
        else
            st = ml_fail(w->err, ML_EUNSUP,
                         "%s: tokenizer.ggml.model is \"%.*s\"; supported are llama "
                         "(sentencepiece) and gpt2 (byte-level BPE)",
                         w->g->path, (int)(model.len < 100 ? model.len : 100),
                         model.ptr ? model.ptr : "");
    }
    ml_arena_release(&v.arena);
    return st;
}

/* --- tokenizer_config.json ------------------------------------------------------------ */

static void put_template_list(const writer *w) {
    static const char base[] = "tokenizer.chat_template";
    bool first = true;

    for (int64_t i = 0; i < w->g->n_key; i++) {
        const ml_gguf_key *k = &w->g->key[i];
        size_t n = sizeof base - 1;
        if (k->array || k->type != ML_GGUF_STRING || k->name.len < n ||
            memcmp(k->name.ptr, base, n) != 0 || (k->name.len > n && k->name.ptr[n] != '.'))
            continue;
        ml_text_printf(w->t, "%s\n  {\"name\": ", first ? "" : ",");
        if (k->name.len == n)
            ml_text_printf(w->t, "\"default\"");
        else
            ml_json_quote(w->t, (ml_str){ k->name.ptr + n + 1, k->name.len - n - 1 });
        ml_text_printf(w->t, ", \"template\": ");
        ml_json_quote(w->t, k->bytes);
        ml_text_printf(w->t, "}");
        first = false;
    }
}

static ml_status write_tokenizer_config(const writer *w) {
    static const struct {
        const char *key, *name;
    } roles[] = { { "tokenizer.ggml.bos_token_id", "bos_token" },
                  { "tokenizer.ggml.eos_token_id", "eos_token" },
                  { "tokenizer.ggml.padding_token_id", "pad_token" },
                  { "tokenizer.ggml.unknown_token_id", "unk_token" } };
    vocab v = { 0 };
    ml_status st;

    ml_arena_init(&v.arena, "the vocabulary of a GGUF file");
    st = read_vocab(&v, w);
    ml_text_printf(w->t, "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"");
    for (size_t i = 0; st == ML_OK && i < sizeof roles / sizeof *roles; i++) {
        int64_t id = ml_gguf_int(w->g, roles[i].key, -1);
        if (id < 0 || id >= v.n)
            continue;
        ml_text_printf(w->t, ",\n \"%s\": ", roles[i].name);
        ml_json_quote(w->t, v.token[id]);
    }
    if (ml_gguf_text(w->g, "tokenizer.chat_template").len) {
        ml_text_printf(w->t, ",\n \"chat_template\": [");
        put_template_list(w);
        ml_text_printf(w->t, "]");
    }
    ml_text_printf(w->t, "}\n");
    ml_arena_release(&v.arena);
    return st;
}

ml_status ml_gguf_file(ml_text *out, const ml_gguf *g, const char *name, ml_err *err) {
    writer w = { .t = out, .g = g, .err = err };
    ml_status st = ml_gguf_arch_of(&w.arch, g, err);

    if (st != ML_OK)
        return st;
    if (strcmp(name, "config.json") == 0)
        return write_config(&w);
    return strcmp(name, "tokenizer.json") == 0 ? write_tokenizer(&w)
                                               : write_tokenizer_config(&w);
}
