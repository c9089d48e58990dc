#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "model/export_gguf.h"

/* --- values ----------------------------------------------------------------------- */

static void put_uint(ml_text *t, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char c = (char)(v >> (8 * i));
        ml_text_add(t, &c, 1);
    }
}

static void put_str(ml_text *t, ml_str s) {
    put_uint(t, s.len, 8);
    ml_text_add(t, s.ptr, s.len);
}

static void put_name(ml_gguf_keys *k, const char *name, ml_gguf_value type) {
    put_str(&k->bytes, ml_str_of(name));
    put_uint(&k->bytes, type, 4);
    k->n++;
}

static void put_u32(ml_gguf_keys *k, const char *name, int64_t v) {
    put_name(k, name, ML_GGUF_U32);
    put_uint(&k->bytes, (uint64_t)v, 4);
}

static void put_f32(ml_gguf_keys *k, const char *name, double v) {
    float f = (float)v;
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    put_name(k, name, ML_GGUF_F32);
    put_uint(&k->bytes, u, 4);
}

static void put_bool(ml_gguf_keys *k, const char *name, bool v) {
    put_name(k, name, ML_GGUF_BOOL);
    put_uint(&k->bytes, v, 1);
}

static void put_text(ml_gguf_keys *k, const char *name, ml_str s) {
    put_name(k, name, ML_GGUF_STRING);
    put_str(&k->bytes, s);
}

static void begin_array(ml_gguf_keys *k, const char *name, ml_gguf_value type, int64_t n) {
    put_name(k, name, ML_GGUF_ARRAY);
    put_uint(&k->bytes, type, 4);
    put_uint(&k->bytes, (uint64_t)n, 8);
}

/* llama.cpp's numbers of file types. */
static int64_t file_type(ml_ggml_type t) {
    return t == ML_GGML_F32 ? 0 : t == ML_GGML_F16 ? 1 : t == ML_GGML_Q8_0 ? 7 : 32;
}

/* --- copies ----------------------------------------------------------------------- */

static void copy_key(ml_gguf_keys *out, const ml_gguf_key *k) {
    put_str(&out->bytes, k->name);
    out->n++;
    put_uint(&out->bytes, k->array ? ML_GGUF_ARRAY : k->type, 4);
    if (k->array) {
        put_uint(&out->bytes, k->type, 4);
        put_uint(&out->bytes, k->n, 8);
    } else if (k->type == ML_GGUF_STRING) {
        put_uint(&out->bytes, k->bytes.len, 8);
    }
    ml_text_add(&out->bytes, k->bytes.ptr, k->bytes.len);
}

void ml_gguf_keys_copy(ml_gguf_keys *out, const ml_gguf *g, ml_ggml_type type) {
    bool same = ml_gguf_int(g, "general.file_type", -1) == file_type(type);

    for (int64_t i = 0; i < g->n_key; i++) {
        if (!same && ml_str_is(g->key[i].name, "general.quantization_version"))
            continue;
        if (g->key[i].name.len > 6 &&
            !memcmp(g->key[i].name.ptr, "split.", 6)) /* one file is written */
            continue;
        if (ml_str_is(g->key[i].name, "general.file_type"))
            put_u32(out, "general.file_type", file_type(type));
        else
            copy_key(out, &g->key[i]);
    }
    if (!same) /* where llama-quantize puts it */
        put_u32(out, "general.quantization_version", 2);
}

/* --- config.json ------------------------------------------------------------------ */

typedef struct maker {
    ml_gguf_keys *out;
    const ml_gguf_arch *arch;
    const char *dir;
    const ml_json *top, *config; /* of config.json: all of it, the text model's part */
    const ml_json *tokenizer, *tokenizer_config;
    int64_t n_vocab;
    ml_arena *a;
    ml_err *err;
} maker;

static const char *own_key(const maker *m, const char *name) {
    return ml_arena_printf(m->a, "%s.%s", m->arch->name, name);
}

static double number(const ml_json *obj, const char *key, double absent) {
    const ml_json *v = ml_json_get(obj, key);
    double x;
    return v && ml_json_f64(v, &x) ? x : absent;
}

static ml_status cannot_say(const maker *m, const char *what) {
    return ml_fail(m->err, ML_EUNSUP,
                   "%s/config.json: %s, which a GGUF file of a %s model cannot say", m->dir,
                   what, m->arch->name);
}

/* Whether sliding and full attention follow each other as llama.cpp assumes: the last of
 * every 2 layers of gemma2 and of every 6 of gemma3 has full attention. */
static bool has_usual_layers(const maker *m) {
    int64_t period = strcmp(m->arch->name, "gemma2") == 0 ? 2 : 6, i = 0;
    const ml_json *types = ml_json_get(m->config, "layer_types");

    if (number(m->config, "sliding_window_pattern", (double)period) != (double)period)
        return false;
    for (const ml_json *c = types ? types->child : NULL; c; c = c->next, i++)
        if (c->type != ML_JSON_STRING ||
            ml_str_is(c->text, "full_attention") != (i % period == period - 1))
            return false;
    return true;
}

/* llama.cpp scales queries by the size of a head, those of the 27B models by width / heads. */
static bool has_usual_scale(const maker *m) {
    double heads = number(m->config, "num_attention_heads", 1);
    double width = number(m->config, "hidden_size", 0), dim = width / heads;
    double big = strcmp(m->arch->name, "gemma2") == 0 ? 46 : 62;

    if (number(m->config, "num_hidden_layers", 0) != big)
        dim = number(m->config, "head_dim", 256);
    return number(m->config, "query_pre_attn_scalar", 256) == floor(dim);
}

/* What the architectures of llama.cpp have no key for. */
static ml_status check_config(const maker *m) {
    const ml_json *dense = ml_json_get(m->config, "mlp_only_layers");
    const ml_json *norm = ml_json_get(m->config, "norm_topk_prob");
    const ml_json *windows = ml_json_get(m->config, "use_sliding_window");
    bool moe = strcmp(m->arch->name, "qwen3moe") == 0;
    bool mistral = strcmp(m->arch->model_type, "mistral") == 0;

    if (m->arch->four_norms && !has_usual_layers(m))
        return cannot_say(m, "the layers with full attention are others than usual");
    if (m->arch->four_norms && !has_usual_scale(m))
        return cannot_say(m, "query_pre_attn_scalar is not the size of a head");
    if (moe &&
        ((dense && dense->child) || number(m->config, "decoder_sparse_step", 1) != 1))
        return cannot_say(m, "some layers have no experts");
    if (moe && !(norm && norm->type == ML_JSON_TRUE))
        return cannot_say(m, "norm_topk_prob is false");
    if ((windows && windows->type == ML_JSON_TRUE) ||
        (mistral && number(m->config, "sliding_window", -1) >= 0))
        return cannot_say(m, "layers have sliding_window attention");
    return ML_OK;
}

/* Keys that are integers, and their names. */
static void put_sizes(const maker *m) {
    static const struct {
        const char *name, *key;
    } rows[] = { { "block_count", "num_hidden_layers" },
                 { "context_length", "max_position_embeddings" },
                 { "embedding_length", "hidden_size" },
                 { "feed_forward_length", "intermediate_size" },
                 { "attention.head_count", "num_attention_heads" },
                 { "attention.head_count_kv", "num_key_value_heads" },
                 { "expert_count", "num_experts" },
                 { "expert_used_count", "num_experts_per_tok" },
                 { "expert_feed_forward_length", "moe_intermediate_size" },
                 { "attention.sliding_window", "sliding_window" } };
    double heads = number(m->config, "num_attention_heads", 1);
    double dim = number(m->config, "head_dim", number(m->config, "hidden_size", 0) / heads);

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double v = number(m->config, rows[i].key, -1);
        bool window = strcmp(rows[i].key, "sliding_window") == 0;
        if (strcmp(rows[i].key, "num_key_value_heads") == 0 && v < 0)
            v = heads;
        if (strcmp(rows[i].key, "num_experts") == 0 && v < 0)
            v = number(m->config, "num_local_experts", -1); /* since transformers 5 */
        if (v >= 0 && (!window || m->arch->four_norms))
            put_u32(m->out, own_key(m, rows[i].name), (int64_t)v);
    }
    put_u32(m->out, own_key(m, "attention.key_length"), (int64_t)dim);
    put_u32(m->out, own_key(m, "attention.value_length"), (int64_t)dim);
    if (m->arch->pairs) {
        put_u32(m->out, own_key(m, "vocab_size"), m->n_vocab);
        put_u32(m->out, own_key(m, "rope.dimension_count"), (int64_t)dim);
    }
}

static void put_softcaps(const maker *m) {
    static const char *const keys[] = { "attn_logit_softcapping",
                                        "final_logit_softcapping" };

    for (int i = 0; i < 2; i++)
        if (number(m->config, keys[i], 0) > 0)
            put_f32(m->out, own_key(m, keys[i]), number(m->config, keys[i], 0));
}

/* Rotary parameters are keys of the config or, since transformers 5, an object of them. */
static const ml_json *rope_of(const maker *m) {
    const ml_json *r = ml_json_get(m->config, "rope_parameters");
    const ml_json *full = r ? ml_json_get(r, "full_attention") : NULL;

    r = full ? full : r;
    return r && r->type == ML_JSON_OBJECT ? r : ml_json_get(m->config, "rope_scaling");
}

/* The factors of Llama 3.1's frequencies. */
static void scale_llama3(const maker *m, const ml_json *r, double base, float **freqs,
                         int64_t *n) {
    double heads = number(m->config, "num_attention_heads", 1);
    double dim = number(m->config, "head_dim", number(m->config, "hidden_size", 0) / heads);
    double factor = number(r, "factor", 8), low = number(r, "low_freq_factor", 1);
    double high = number(r, "high_freq_factor", 4);
    double old = number(r, "original_max_position_embeddings", 8192);

    *n = (int64_t)dim / 2;
    *freqs = ML_NEW(m->a, float, *n);
    for (int64_t i = 0; i < *n; i++) {
        double wave = 2 * M_PI * pow(base, (double)i / (double)*n);
        double smooth = (old / wave - low) / (high - low);
        (*freqs)[i] = wave < old / high  ? 1.0f
                      : wave > old / low ? (float)factor
                                         : (float)(1 / ((1 - smooth) / factor + smooth));
    }
}

static ml_status put_rope(const maker *m, float **freqs, int64_t *n_freq) {
    const ml_json *r = rope_of(m), *type = r ? ml_json_get(r, "rope_type") : NULL;
    const ml_json *all = ml_json_get(m->config, "rope_parameters");
    const ml_json *local = all ? ml_json_get(all, "sliding_attention") : NULL;
    double base =
        number(m->config, "rope_theta", r ? number(r, "rope_theta", 10000) : 10000);
    ml_str name;

    if (!type && r)
        type = ml_json_get(r, "type");
    name = type && type->type == ML_JSON_STRING ? type->text : ml_str_of("default");
    put_f32(m->out, own_key(m, "rope.freq_base"), base);
    if (m->arch->four_norms && strcmp(m->arch->name, "gemma3") == 0)
        put_f32(m->out, own_key(m, "rope.freq_base_swa"),
                number(m->config, "rope_local_base_freq",
                       local ? number(local, "rope_theta", 10000) : 10000));
    if (ml_str_is(name, "llama3")) {
        scale_llama3(m, r, base, freqs, n_freq);
    } else if (ml_str_is(name, "linear") || ml_str_is(name, "yarn")) {
        put_text(m->out, own_key(m, "rope.scaling.type"), name);
        put_f32(m->out, own_key(m, "rope.scaling.factor"), number(r, "factor", 1));
        if (ml_str_is(name, "yarn"))
            put_u32(m->out, own_key(m, "rope.scaling.original_context_length"),
                    (int64_t)number(r, "original_max_position_embeddings", 4096));
    } else if (!ml_str_is(name, "default")) {
        return ml_fail(
            m->err, ML_EUNSUP,
            "%s/config.json: rotary scaling \"%.*s\" cannot be written to a GGUF "
            "file; default, linear, yarn and llama3 can",
            m->dir, (int)(name.len < 60 ? name.len : 60), name.ptr);
    }
    return ML_OK;
}

/* --- tokenizer.json --------------------------------------------------------------- */

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

typedef struct vocab {
    ml_str *token;
    uint8_t *type;
    float *score;
    int64_t n;
} vocab;

static bool is_byte_token(ml_str s) {
    return s.len == 6 && memcmp(s.ptr, "<0x", 3) == 0 && s.ptr[5] == '>';
}

static void put_token(vocab *v, const ml_json *id, ml_str text, uint8_t type) {
    int64_t i;

    if (!id || !ml_json_i64(id, &i) || i < 0 || i >= v->n)
        return;
    v->token[i] = text;
    v->type[i] = type;
}

static void read_vocab(const maker *m, const ml_json *model, bool pieces, vocab *v) {
    const ml_json *list = ml_json_get(model, "vocab"),
                  *unk = ml_json_get(model, "unk_token");
    const ml_json *added = ml_json_get(m->tokenizer, "added_tokens");

    v->n = m->n_vocab;
    v->token = ML_NEW(m->a, ml_str, v->n);
    v->type = ML_NEW(m->a, uint8_t, v->n);
    v->score = ML_NEW(m->a, float, v->n);
    for (const ml_json *c = list ? list->child : NULL; c; c = c->next)
        put_token(v, c, c->key, pieces && is_byte_token(c->key) ? BYTE : NORMAL);
    for (const ml_json *c = added ? added->child : NULL; c; c = c->next) {
        const ml_json *text = ml_json_get(c, "content"),
                      *special = ml_json_get(c, "special");
        bool is_unk =
            text && unk && unk->type == ML_JSON_STRING && ml_str_eq(text->text, unk->text);
        if (text && text->type == ML_JSON_STRING)
            put_token(v, ml_json_get(c, "id"), text->text,
                      is_unk                                     ? UNKNOWN
                      : special && special->type == ML_JSON_TRUE ? CONTROL
                                                                 : USER);
    }
    for (int64_t i = 0; i < v->n; i++)
        if (!v->type[i]) { /* rows of the embedding without a token */
            v->token[i] = ml_str_of(ml_arena_printf(m->a, "[PAD%" PRId64 "]", i));
            v->type[i] = UNUSED;
        }
}

/* "a b" or ["a", "b"]. */
static bool merge_of(const ml_json *c, ml_str *left, ml_str *right) {
    const char *space;

    if (c->type == ML_JSON_ARRAY && c->n == 2) {
        *left = c->child->text;
        *right = c->child->next->text;
        return true;
    }
    if (c->type != ML_JSON_STRING || !(space = memchr(c->text.ptr, ' ', c->text.len)))
        return false;
    *left = (ml_str){ c->text.ptr, (size_t)(space - c->text.ptr) };
    *right = (ml_str){ space + 1, c->text.len - left->len - 1 };
    return true;
}

/* sentencepiece merges by the score of the result: the earlier a merge, the higher. */
static void score_merges(const maker *m, const ml_json *merges, vocab *v) {
    ml_map ids;
    int64_t rank = 0;

    ml_map_init(&ids, m->a, v->n);
    for (int64_t i = 0; i < v->n; i++)
        ml_map_add(&ids, v->token[i], i);
    for (const ml_json *c = merges ? merges->child : NULL; c; c = c->next) {
        ml_str l, r, both;
        int64_t i;
        if (!merge_of(c, &l, &r))
            continue;
        both = ml_str_of(
            ml_arena_printf(m->a, "%.*s%.*s", (int)l.len, l.ptr, (int)r.len, r.ptr));
        i = ml_map_get(&ids, both, -1);
        if (i >= 0 && v->score[i] == 0)
            v->score[i] = (float)-++rank;
    }
}

static void put_merges(const maker *m, const ml_json *merges) {
    begin_array(m->out, "tokenizer.ggml.merges", ML_GGUF_STRING, merges ? merges->n : 0);
    for (const ml_json *c = merges ? merges->child : NULL; c; c = c->next) {
        ml_str l = { 0 }, r = { 0 };
        (void)merge_of(c, &l, &r);
        put_uint(&m->out->bytes, l.len + 1 + r.len, 8);
        ml_text_add(&m->out->bytes, l.ptr, l.len);
        ml_text_add(&m->out->bytes, " ", 1);
        ml_text_add(&m->out->bytes, r.ptr, r.len);
    }
}

/* A string anywhere inside a value. */
static const ml_json *find_regex(const ml_json *v) {
    const ml_json *found = ml_json_get(v, "Regex");

    for (const ml_json *c = v->child; c && !found; c = c->next)
        found =
            c->type == ML_JSON_ARRAY || c->type == ML_JSON_OBJECT ? find_regex(c) : NULL;
    return found && found->type == ML_JSON_STRING ? found : NULL;
}

static bool contains(ml_str s, const char *part) {
    size_t n = strlen(part);
    for (size_t i = 0; i + n <= s.len; i++)
        if (memcmp(s.ptr + i, part, n) == 0)
            return true;
    return false;
}

/* llama.cpp names pre-tokenizers; the regular expression tells which it is. */
static ml_status pre_name(const maker *m, const char **name) {
    const ml_json *pre = ml_json_get(m->tokenizer, "pre_tokenizer");
    const ml_json *regex = pre && pre->type == ML_JSON_OBJECT ? find_regex(pre) : NULL;

    if (!regex)
        *name = "gpt-2";
    else if (contains(regex->text, "\\p{Lu}\\p{Lt}") && contains(regex->text, "[\\r\\n/]*"))
        *name = "tekken";
    else if (contains(regex->text, "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"))
        *name = "llama-bpe";
    else if (contains(regex->text, "]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"))
        *name = "qwen2";
    else
        return ml_fail(m->err, ML_EUNSUP,
                       "%s/tokenizer.json splits text in a way that has no name in a GGUF "
                       "file; gpt-2, qwen2, llama-bpe and tekken can be written",
                       m->dir);
    return ML_OK;
}

static void put_vocab(const maker *m, const vocab *v, bool scores) {
    begin_array(m->out, "tokenizer.ggml.tokens", ML_GGUF_STRING, v->n);
    for (int64_t i = 0; i < v->n; i++)
        put_str(&m->out->bytes, v->token[i]);
    if (scores) {
        begin_array(m->out, "tokenizer.ggml.scores", ML_GGUF_F32, v->n);
        for (int64_t i = 0; i < v->n; i++) {
            uint32_t u;
            memcpy(&u, &v->score[i], sizeof u);
            put_uint(&m->out->bytes, u, 4);
        }
    }
    begin_array(m->out, "tokenizer.ggml.token_type", ML_GGUF_I32, v->n);
    for (int64_t i = 0; i < v->n; i++)
        put_uint(&m->out->bytes, v->type[i], 4);
}

static bool mentions(const ml_json *v, const char *type) {
    const ml_json *t = v ? ml_json_get(v, "type") : NULL;

    if (t && t->type == ML_JSON_STRING && ml_str_is(t->text, type))
        return true;
    for (const ml_json *c = v ? v->child : NULL; c; c = c->next)
        if ((c->type == ML_JSON_ARRAY || c->type == ML_JSON_OBJECT) && mentions(c, type))
            return true;
    return false;
}

/* The token of a role: by its text in tokenizer_config.json, or by a number in config.json;
 * -1: none. */
static int64_t role_of(const maker *m, const vocab *v, const char *text, const char *key) {
    const ml_json *t = ml_json_get(m->tokenizer_config, text);
    const ml_json *number = ml_json_get(m->config, key);
    int64_t id = -1;

    if (t && t->type == ML_JSON_OBJECT)
        t = ml_json_get(t, "content");
    for (int64_t i = 0; t && t->type == ML_JSON_STRING && i < v->n; i++)
        if (ml_str_eq(v->token[i], t->text))
            return i;
    number = number ? number : ml_json_get(m->top, key);
    if (number && number->type == ML_JSON_ARRAY)
        number = number->child;
    return number && ml_json_i64(number, &id) && id < v->n ? id : -1;
}

static void put_roles(const maker *m, const vocab *v) {
    static const struct {
        const char *text, *key, *name;
    } rows[] = { { "bos_token", "bos_token_id", "tokenizer.ggml.bos_token_id" },
                 { "eos_token", "eos_token_id", "tokenizer.ggml.eos_token_id" },
                 { "unk_token", "unk_token_id", "tokenizer.ggml.unknown_token_id" },
                 { "pad_token", "pad_token_id", "tokenizer.ggml.padding_token_id" } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t id = role_of(m, v, rows[i].text, rows[i].key);
        if (id >= 0)
            put_u32(m->out, rows[i].name, id);
    }
}

/* A GGUF file has byte-level BPE, or pieces with a token for each byte (sentencepiece). */
static ml_status check_tokenizer(const maker *m, const ml_json *model, bool pieces) {
    const ml_json *type = ml_json_get(model, "type");
    bool bpe = !type || (type->type == ML_JSON_STRING && ml_str_is(type->text, "BPE"));

    if (bpe && ml_json_get(model, "merges") &&
        (pieces || mentions(ml_json_get(m->tokenizer, "pre_tokenizer"), "ByteLevel")))
        return ML_OK;
    return ml_fail(
        m->err, ML_EUNSUP,
        "%s/tokenizer.json is neither byte-level BPE nor BPE with byte_fallback, "
        "which are the tokenizers that can be written to a GGUF file",
        m->dir);
}

static ml_status put_tokenizer(const maker *m) {
    const ml_json *model = ml_json_get(m->tokenizer, "model");
    const ml_json *fallback = ml_json_get(model, "byte_fallback");
    const ml_json *merges = ml_json_get(model, "merges");
    const ml_json *post = ml_json_get(m->tokenizer, "post_processor");
    bool pieces = fallback && fallback->type == ML_JSON_TRUE;
    const char *pre = "default";
    vocab v;
    ml_status st = pieces ? ML_OK : pre_name(m, &pre);

    if (st == ML_OK)
        st = check_tokenizer(m, model, pieces);
    if (st != ML_OK)
        return st;
    read_vocab(m, model, pieces, &v);
    if (pieces)
        score_merges(m, merges, &v);
    put_text(m->out, "tokenizer.ggml.model", ml_str_of(pieces ? "llama" : "gpt2"));
    put_text(m->out, "tokenizer.ggml.pre", ml_str_of(pre));
    put_vocab(m, &v, pieces);
    if (!pieces)
        put_merges(m, merges);
    put_roles(m, &v);
    put_bool(m->out, "tokenizer.ggml.add_bos_token",
             post && mentions(post, "TemplateProcessing"));
    if (pieces)
        put_bool(m->out, "tokenizer.ggml.add_space_prefix",
                 mentions(ml_json_get(m->tokenizer, "normalizer"), "Prepend") ||
                     mentions(ml_json_get(m->tokenizer, "pre_tokenizer"), "Metaspace"));
    return ML_OK;
}

/* --- all -------------------------------------------------------------------------- */

/* A file of the source; NULL text where it is missing. */
static ml_status read_text(const maker *m, const char *name, ml_str *out) {
    const char *path = ml_arena_printf(m->a, "%s/%s", m->dir, name);
    ml_file f = { 0 };
    ml_status st;

    *out = (ml_str){ 0 };
    if (!ml_file_there(path))
        return ML_OK;
    st = ml_file_map(&f, path, m->err);
    if (st == ML_OK)
        *out = (ml_str){ ml_arena_str(m->a, f.bytes.ptr, f.bytes.len), f.bytes.len };
    ml_file_unmap(&f);
    return st;
}

static ml_status read_json(const maker *m, const char *name, const ml_json **out) {
    ml_str text;
    ml_status st = read_text(m, name, &text);

    *out = NULL;
    if (st == ML_OK && text.ptr)
        st = ml_json_parse_python(out, m->a, text, name, m->err);
    return st;
}

static ml_status put_template(const maker *m) {
    const ml_json *v = ml_json_get(m->tokenizer_config, "chat_template");
    ml_str text;
    ml_status st = read_text(m, "chat_template.jinja", &text);

    if (v && v->type == ML_JSON_ARRAY) /* named templates: the first is the default */
        v = ml_json_get(v->child, "template");
    if (st == ML_OK && !text.ptr && v && v->type == ML_JSON_STRING)
        text = v->text;
    if (text.ptr)
        put_text(m->out, "tokenizer.chat_template", text);
    return st;
}

ml_status ml_gguf_keys_of(ml_gguf_keys *out, const char *dir, const ml_gguf_arch *arch,
                          int64_t n_vocab, ml_ggml_type type, ml_arena *a, float **freqs,
                          int64_t *n_freq, ml_err *err) {
    maker m = {
        .out = out, .arch = arch, .dir = dir, .n_vocab = n_vocab, .a = a, .err = err
    };
    ml_status st = read_json(&m, "config.json", &m.top);

    *freqs = NULL;
    if (st == ML_OK) {
        const ml_json *text = ml_json_get(m.top, "text_config");
        m.config = text && text->type == ML_JSON_OBJECT ? text : m.top;
        st = check_config(&m);
    }
    if (st == ML_OK)
        st = read_json(&m, "tokenizer.json", &m.tokenizer);
    if (st == ML_OK)
        st = read_json(&m, "tokenizer_config.json", &m.tokenizer_config);
    if (st != ML_OK)
        return st;
    put_text(out, "general.architecture", ml_str_of(arch->name));
    put_text(out, "general.type", ml_str_of("model"));
    put_sizes(&m);
    st = put_rope(&m, freqs, n_freq);
    put_f32(out, own_key(&m, "attention.layer_norm_rms_epsilon"),
            number(m.config, "rms_norm_eps", 1e-6));
    put_softcaps(&m);
    put_u32(out, "general.file_type", file_type(type));
    put_u32(out, "general.quantization_version", 2);
    if (st == ML_OK && m.tokenizer)
        st = put_tokenizer(&m);
    else if (st == ML_OK)
        put_text(out, "tokenizer.ggml.model", ml_str_of("none"));
    return st == ML_OK ? put_template(&m) : st;
}
