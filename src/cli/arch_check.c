#include "cli/arch_check.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

typedef struct claim {
    const char *flag;
    double value;
    const char *key, *other_key; /* of config.json */
} claim;

/* A member of the document or, in newer files, of its rope_parameters. */
static const ml_json *member(const ml_json *doc, const char *key) {
    const ml_json *v = key ? ml_json_get(doc, key) : NULL;
    return v || !key ? v : ml_json_get(ml_json_get(doc, "rope_parameters"), key);
}

static void hold_against(ml_text *wrong, const claim *c, const ml_json *doc) {
    const ml_json *v = member(doc, c->key);
    double said;

    v = v ? v : member(doc, c->other_key);
    if (!v || !ml_json_f64(v, &said) || said == c->value)
        return;
    ml_text_printf(wrong, "%s--%s is %g, but config.json has %g", wrong->len ? "; " : "",
                   c->flag, c->value, said);
}

static double given(int64_t x) {
    return x ? (double)x : (double)NAN;
}

static void check_all(ml_text *wrong, const ml_config *c, const ml_json *doc) {
    const claim claims[] = {
        { "num-layers", given(c->arch.n_layer), "num_hidden_layers", NULL },
        { "hidden-size", given(c->arch.hidden), "hidden_size", NULL },
        { "ffn-hidden-size", given(c->arch.ffn), "intermediate_size", NULL },
        { "num-attention-heads", given(c->arch.n_head), "num_attention_heads", NULL },
        { "num-query-groups", given(c->arch.n_kv_head), "num_key_value_heads", NULL },
        { "kv-channels", given(c->arch.head_dim), "head_dim", NULL },
        { "vocab-size", given(c->arch.vocab), "vocab_size", NULL },
        { "num-experts", given(c->arch.n_expert), "num_experts", "num_local_experts" },
        { "moe-router-topk", given(c->arch.top_k), "num_experts_per_tok", NULL },
        { "moe-ffn-hidden-size", given(c->arch.moe_ffn), "moe_intermediate_size", NULL },
        { "moe-router-num-groups", given(c->arch.n_group), "n_group", NULL },
        { "moe-router-group-topk", given(c->arch.top_group), "topk_group", NULL },
        { "q-lora-rank", given(c->arch.q_rank), "q_lora_rank", NULL },
        { "kv-lora-rank", given(c->arch.kv_rank), "kv_lora_rank", NULL },
        { "qk-head-dim", given(c->arch.qk_nope), "qk_nope_head_dim", NULL },
        { "qk-pos-emb-head-dim", given(c->arch.qk_rope), "qk_rope_head_dim", NULL },
        { "v-head-dim", given(c->arch.v_dim), "v_head_dim", NULL },
        { "rotary-base", c->arch.rope_base, "rope_theta", NULL },
        { "norm-epsilon", c->arch.norm_eps, "rms_norm_eps", NULL },
    };

    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++)
        if (!isnan(claims[i].value))
            hold_against(wrong, &claims[i], doc);
}

/* Letters and digits only, in lower case: Qwen3Moe, qwen3_moe and qwen3moe are one name. */
static void plain_name(ml_text *out, ml_str name) {
    for (size_t i = 0; i < name.len; i++) {
        char ch = (char)tolower((unsigned char)name.ptr[i]);
        if (isalnum((unsigned char)ch))
            ml_text_add(out, &ch, 1);
    }
}

/* The name may be that of the config class, "Qwen3MoeConfig". */
static bool names_match(const char *said, ml_str type) {
    ml_text a = { 0 }, b = { 0 };
    bool same;

    plain_name(&a, ml_str_of(said));
    plain_name(&b, type);
    same = a.len >= b.len && b.len && memcmp(a.ptr, b.ptr, b.len) == 0 &&
           (a.len == b.len || strcmp(a.ptr + b.len, "config") == 0);
    ml_text_release(&a);
    ml_text_release(&b);
    return same;
}

static void check_name(ml_text *wrong, const char *said, const ml_json *doc) {
    const ml_json *type = ml_json_get(doc, "model_type");

    if (said && type && type->type == ML_JSON_STRING && !names_match(said, type->text))
        ml_text_printf(wrong, "%s--model-name is %s, but config.json has %.*s",
                       wrong->len ? "; " : "", said, (int)type->text.len, type->text.ptr);
}

static void check_padding(ml_text *wrong, int64_t padded, const ml_json *doc) {
    int64_t vocab = 0;

    if (padded && ml_json_i64(member(doc, "vocab_size"), &vocab) && padded < vocab)
        ml_text_printf(wrong,
                       "%s--padded-vocab-size is %lld, but config.json has %lld tokens",
                       wrong->len ? "; " : "", (long long)padded, (long long)vocab);
}

ml_status ml_arch_check(const ml_config *c, ml_err *err) {
    ml_text path = { 0 }, wrong = { 0 };
    ml_file f = { 0 };
    const ml_json *doc;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "config.json");
    ml_text_printf(&path, "%s/config.json", c->hf_checkpoint);
    st = ml_file_map(&f, path.ptr, err);
    if (st == ML_OK)
        st = ml_json_parse_python(&doc, &a, f.bytes, path.ptr, err);
    if (st == ML_OK) {
        check_all(&wrong, c, doc);
        check_name(&wrong, c->arch.model_name, doc);
        check_padding(&wrong, c->arch.padded_vocab, doc);
    }
    if (wrong.len)
        st =
            ml_fail(err, ML_EUSAGE, "%s does not match the flags: %s", path.ptr, wrong.ptr);
    ml_file_unmap(&f);
    ml_text_release(&wrong);
    ml_text_release(&path);
    ml_arena_release(&a);
    return st;
}
