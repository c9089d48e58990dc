#include "run/opts.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "rl/builtins.h"
#include "plugin/python_matcher.h"
#include "run/generator.h"
#include "serve/session.h"
#include "run/extensions.h"

/* --- the architecture in flags, against config.json ------------------------------- */

typedef struct claim {
    const char *flag;
    double value;
    const char *key, *other_key; /* of config.json */
} claim;

/* A member of the object or, in newer files, of its rope_parameters. */
static const ml_json *own_member(const ml_json *doc, const char *key) {
    const ml_json *v = key ? ml_json_get(doc, key) : NULL;
    return v || !key ? v : ml_json_get(ml_json_get(doc, "rope_parameters"), key);
}

/* Of a multimodal model, the text model's sizes are meant. */
static const ml_json *member(const ml_json *doc, const char *key) {
    const ml_json *inner = ml_json_get(doc, "text_config");
    const ml_json *v = inner ? own_member(inner, key) : NULL;
    return v ? v : own_member(doc, key);
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

static void check_all(ml_text *wrong, const ml_run_opts *c, const ml_json *doc) {
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

/* A part of a model's name that says its size or kind: 30B, A3B, Instruct. */
static bool is_size(ml_str part) {
    static const char *const kinds[] = { "instruct", "base", "thinking",
                                         "chat",     "it",   "config" };
    size_t i = 0;

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (part.len == strlen(kinds[k]) && strncasecmp(part.ptr, kinds[k], part.len) == 0)
            return true;
    i += part.len > 1 && tolower((unsigned char)part.ptr[0]) == 'a';
    while (i < part.len && isdigit((unsigned char)part.ptr[i]))
        i++;
    return i > 0 && i + 1 == part.len && strchr("bBmM", part.ptr[i]) &&
           isdigit((unsigned char)part.ptr[i - 1]);
}

/* "qwen3" for qwen3_moe, Qwen3MoeConfig and qwen3-30b-a3b. */
static void family_name(ml_text *out, ml_str name) {
    static const char *const ends[] = { "config", "text", "moe" };

    for (size_t i = 0; i < name.len;) {
        ml_str part = { name.ptr + i, 0 };
        while (i + part.len < name.len && isalnum((unsigned char)part.ptr[part.len]))
            part.len++;
        if (!is_size(part))
            plain_name(out, part);
        i += part.len + 1;
    }
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        size_t n = strlen(ends[k]);
        if (out->len > n && memcmp(out->ptr + out->len - n, ends[k], n) == 0)
            out->len -= n;
    }
}

static bool names_match(const char *said, ml_str type) {
    ml_text a = { 0 }, b = { 0 };
    bool same;

    family_name(&a, ml_str_of(said));
    family_name(&b, type);
    same = a.len == b.len && a.len && memcmp(a.ptr, b.ptr, b.len) == 0;
    ml_text_release(&a);
    ml_text_release(&b);
    return same;
}

static void check_name(ml_text *wrong, const char *said, const ml_json *doc) {
    const ml_json *type = ml_json_get(doc, "model_type"), *text = member(doc, "model_type");

    if (said && text && text->type == ML_JSON_STRING && names_match(said, text->text))
        return;
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

static ml_status check_arch(const ml_run_opts *c, ml_err *err) {
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

/* --- options that follow from others ----------------------------------------------- */

typedef struct bit_word {
    const char *word;
    unsigned bits;
} bit_word;

static const bit_word modules[] = { { "core_attn", ML_MODULE_CORE_ATTN },
                                    { "layernorm", ML_MODULE_LAYERNORM },
                                    { "mlp", ML_MODULE_MLP },
                                    { "moe", ML_MODULE_MOE },
                                    { "moe_act", ML_MODULE_MOE_ACT },
                                    { 0 } };
static const bit_word spans[] = { { "train_overall", ML_SPAN_ALL },
                                  { "train_actor", ML_SPAN_TRAIN },
                                  { "train_log_probs", ML_SPAN_LOG_PROBS },
                                  { 0 } };

/* The flag rows have the words. */
static unsigned bits_of(const bit_word *known, const ml_string_list *words) {
    unsigned bits = 0;

    for (int i = 0; i < words->n; i++)
        for (const bit_word *k = known; k->word; k++)
            bits |= strcmp(k->word, words->word[i]) == 0 ? k->bits : 0;
    return bits;
}

bool ml_run_draws_part(const ml_rollout_opts *o) {
    bool nucleus = o->top_p > 0 && o->top_p < 1; /* 0: no rollouts */

    return o->temperature > 0 && (nucleus || o->top_k > 0);
}

int64_t ml_run_batch_size(const ml_run_opts *o) {
    int64_t n = o->rollout_batch_size * ml_run_per_prompt(o);

    if (o->num_steps_per_rollout)
        return n / o->num_steps_per_rollout;
    return o->trainer.batch.global_batch_size ? o->trainer.batch.global_batch_size : n;
}

static void complete_lr(ml_run_opts *o) {
    ml_lr_opts *lr = &o->trainer.lr;

    if (lr->weight_decay_style == ML_DECAY_INCR_CONSTANT)
        lr->start_weight_decay = lr->end_weight_decay = o->weight_decay;
    if (isnan(o->critic_lr))
        o->critic_lr = lr->lr;
    if (o->debug.no_update) {
        lr->lr = lr->min_lr = lr->warmup_init = 0;
        lr->start_weight_decay = lr->end_weight_decay = 0;
    }
}

static void complete_replay(ml_run_opts *o) {
    const ml_rollout_opts *r = &o->rollout;

    o->replay_rollout[ML_ROUTING_EXPERTS] = r->rollout_routing_replay;
    o->trainer.replay[ML_ROUTING_EXPERTS] = r->routing_replay || r->rollout_routing_replay;
    o->replay_rollout[ML_ROUTING_KEYS] = r->rollout_indexer_replay;
    o->trainer.replay[ML_ROUTING_KEYS] = r->indexer_replay || r->rollout_indexer_replay;
}

ml_status ml_run_opts_complete(ml_run_opts *o, ml_err *err) {
    ml_trainer_opts *t = &o->trainer;

    t->lr.global_batch_size = t->batch.global_batch_size = ml_run_batch_size(o);
    o->source.n_samples_per_prompt = ml_run_per_prompt(o);
    complete_lr(o);
    complete_replay(o);
    t->optimizer.offload_host |= o->offload_states;
    t->keep_logits = !o->recompute_loss;
    t->loss_rows = t->loss_rows > 0 ? t->loss_rows : 0;
    t->recompute.modules = o->recompute_modules.n ? bits_of(modules, &o->recompute_modules)
                                                  : ML_MODULE_CORE_ATTN;
    o->log.spans = bits_of(spans, &o->profile_targets);
    o->log.no_store = !o->store;
    o->log.determinism = o->debug.determinism || o->debug.checksum;
    o->log.peak_flops = 1e12 * o->debug.peak_tflops;
    t->whole_grads =
        o->log.determinism || o->invariants.save_hash || o->invariants.check_hash;
    return check_arch(o, err);
}

/* --- the two kinds of runs -------------------------------------------------------- */

static const char *optimizer_name(const ml_optim_rule_opts *o) {
    static const char *const names[] = { "adam", "sgd", "muon", "adafactor" };
    return names[o->kind];
}

static const char *quantization_of(const ml_run_opts *o, ml_arena *a) {
    static const char *const gradients[] = { [ML_GRAD_PLAIN] = "",
                                             [ML_GRAD_E4M3] =
                                                 ", \"fp8_gradients\": \"e4m3\"",
                                             [ML_GRAD_E5M2] =
                                                 ", \"fp8_gradients\": \"e5m2\"" };

    if (o->qat)
        return ml_arena_printf(a, ", \"fake_quantization\": \"%s\"%s",
                               ml_weight_dtype_name(o->qat),
                               gradients[o->trainer.grad_format]);
    if (o->dtype >= ML_WEIGHT_STORED)
        return ml_arena_printf(a, ", \"base_quantization\": \"%s\"",
                               ml_weight_dtype_name(o->dtype));
    return "";
}

static const char *high_precision_of(const ml_run_opts *o, ml_arena *a) {
    const bool ends = o->high_precision.ends;
    const char *names = "";

    for (int i = 0; i < o->high_precision.names.n; i++)
        names = ml_arena_printf(a, "%s%s%s", names, i ? " " : "",
                                o->high_precision.names.word[i]);
    if (!ends && !*names)
        return "";
    return ml_arena_printf(a, ", \"high_precision_layers\": \"%lld %lld %s\"",
                           (long long)(ends ? o->high_precision.first : 0),
                           (long long)(ends ? o->high_precision.last : 0), names);
}

static const char *kv_cache_of(const ml_run_opts *o, ml_arena *a) {
    return o->kv_dtype == ML_F32 ? ""
                                 : ml_arena_printf(a, ", \"kv_cache_dtype\": \"%s\"",
                                                   ml_dtype_name(o->kv_dtype));
}

/* The settings that a resumed run must share with the one that saved. */
static void share(ml_run_opts *o, ml_arena *a, const char *more) {
    const char *text = ml_arena_printf(
        a,
        "{\"global_batch_size\": %lld, \"rollout_batch_size\": %lld, "
        "\"n_samples_per_prompt\": %d, \"lr\": %.17g, \"min_lr\": %.17g, "
        "\"weight_decay\": %.17g, \"optimizer\": \"%s\", \"rollout_seed\": %lld, "
        "\"rollout_shuffle\": %s%s%s%s%s}",
        (long long)o->trainer.batch.global_batch_size, (long long)o->rollout_batch_size,
        o->source.n_samples_per_prompt, o->trainer.lr.lr, o->trainer.lr.min_lr,
        o->trainer.lr.end_weight_decay, optimizer_name(&o->trainer.optimizer.rule),
        (long long)o->source.seed, o->source.shuffle ? "true" : "false", more,
        quantization_of(o, a), high_precision_of(o, a), kv_cache_of(o, a));

    o->config = ml_str_of(text);
}

ml_status ml_run_opts_sft(ml_run_opts *o, ml_arena *a, ml_err *err) {
    ml_status st = ml_run_opts_complete(o, err);

    o->recipe = (ml_recipe){ .num = { .size = sizeof(miles_algo),
                                      .calculate_per_token_loss = o->per_token },
                             .loss = &ml_loss_sft };
    o->needs_template = true;
    share(o, a, "");
    return st;
}

/* The loss of a pair depends on both log-probs under the weights of the step, which are
 * scored once, before the rollout's only step. */
static ml_status check_preference(const ml_run_opts *o, ml_err *err) {
    int64_t n = o->rollout_batch_size * 2;

    if (o->trainer.batch.global_batch_size == n)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "training on pairs takes one step on a rollout batch: remove "
                   "--global-batch-size and --num-steps-per-rollout, or set "
                   "--global-batch-size to %lld, two samples of each of the "
                   "--rollout-batch-size %lld rows",
                   (long long)n, (long long)o->rollout_batch_size);
}

ml_status ml_run_opts_dpo(ml_run_opts *o, ml_arena *a, ml_err *err) {
    const ml_preference_kind kind = o->preference.kind;
    ml_status st;

    o->preference.on = true;
    o->data.input_key = kind == ML_PREFERENCE_KTO ? "completion" : "chosen";
    st = ml_run_opts_complete(o, err);
    if (st == ML_OK)
        st = check_preference(o, err);
    o->recipe = (ml_recipe){ .num = { .size = sizeof(miles_algo) },
                             .preference = o->preference,
                             .reducer = &ml_reducer_pairs,
                             .loss = &ml_loss_preference };
    o->wants_ref = kind != ML_PREFERENCE_SIMPO && kind != ML_PREFERENCE_ORPO;
    share(o, a,
          ml_arena_printf(a, ", \"preference\": %d, \"beta\": %.17g", (int)kind,
                          o->preference.beta));
    return st;
}

ml_status ml_run_opts_reward_model(ml_run_opts *o, ml_arena *a, ml_err *err) {
    ml_status st;

    o->trains_reward = true;
    o->preference.on = !o->reward_labels;
    o->preference.kind = ML_PREFERENCE_REWARD;
    o->data.input_key = o->reward_labels ? "completion" : "chosen";
    st = ml_run_opts_complete(o, err);
    if (st == ML_OK && !o->reward_labels)
        st = check_preference(o, err);
    o->recipe = (ml_recipe){ .num = { .size = sizeof(miles_algo) },
                             .preference = o->preference,
                             .reducer = o->reward_labels ? NULL : &ml_reducer_pairs,
                             .loss = o->reward_labels ? &ml_loss_reward_labels
                                                      : &ml_loss_reward_pairs };
    share(o, a,
          ml_arena_printf(a, ", \"reward_labels\": %s, \"center\": %.17g",
                          o->reward_labels ? "true" : "false", o->preference.center));
    return st;
}

/* Whether an estimator of a shared object needs a critic is known only now; for the
 * others, the rules between flags have checked it. */
static ml_status check_critic(const ml_run_opts *o, bool named, ml_err *err) {
    if (!o->recipe.critic_loss && named)
        return ml_fail(err, ML_EUSAGE,
                       "--advantage-estimator %s has no critic: remove the flags of the "
                       "critic, or use ppo",
                       o->algo.advantage_estimator);
    if (o->recipe.critic_loss && !o->recipe.compute_advantages)
        return ml_fail(
            err, ML_EUSAGE,
            "--advantage-estimator ppo excludes --disable-compute-advantages-and-returns: "
            "a critic is trained on the returns");
    return ML_OK;
}

/* If the context is limited, a prompt must leave space for an answer. */
static int64_t max_prompt(const ml_rollout_opts *r) {
    int64_t most = r->max_context ? r->max_context - 1 : 0;
    return r->max_prompt ? r->max_prompt : most;
}

ml_status ml_run_opts_train(ml_run_opts *o, ml_arena *a, ml_loop_extensions *e,
                            ml_err *err) {
    ml_status st = ml_loop_extensions_resolve(e, &o->extensions.path, err);

    if (st == ML_OK && o->sessions.kind &&
        ml_message_matcher_find(o->sessions.matcher) == ML_MATCH_FUNCTION)
        st = ml_python_matcher_open(o->sessions.matcher, o->extensions.path.args, err);
    return st == ML_OK ? ml_run_opts_train_with(o, a, e, err) : st;
}

ml_status ml_run_opts_train_with(ml_run_opts *o, ml_arena *a, ml_loop_extensions *e,
                                 ml_err *err) {
    bool critic = ml_run_names_critic(o);
    ml_status st = ml_run_opts_complete(o, err);

    if (st == ML_OK)
        st = ml_recipe_resolve(&o->recipe, &o->algo, err);
    if (st == ML_OK)
        st = check_critic(o, critic, err);
    if (st != ML_OK)
        return st;
    o->recipe.scale_rewards &= o->source.n_samples_per_prompt > 1;
    o->wants_ref = o->algo.num.use_kl_loss || o->algo.num.kl_coef != 0.0;
    o->trainer.temperature = o->rollout.temperature;
    o->data.max_prompt_len = max_prompt(&o->rollout);
    o->data.path = o->rollout.load_debug ? NULL : o->data.path;
    o->data.make = o->rollout.load_debug ? NULL : e->prompts;
    o->data.tools = e->tools;
    o->data.seed = o->source.seed;
    o->source.select = e->source;
    o->needs_template = o->data.apply_chat_template;
    o->learns_nothing = o->rollout.rollout_only;
    o->hooks = &e->hooks;
    o->second_set = ml_generator_own_set(o) && !ml_run_ranks_moves(&o->ranks);
    o->backend.n_thread = ml_generator_threads(o, false);
    share(o, a,
          ml_arena_printf(a,
                          ", \"advantage_estimator\": \"%s\", \"loss_type\": \"%s\", "
                          "\"rollout_temperature\": %.17g",
                          o->algo.advantage_estimator, o->algo.loss_type,
                          o->rollout.temperature));
    return ML_OK;
}
