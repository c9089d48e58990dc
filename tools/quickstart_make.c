/* quickstart_make DIR SEED [FAMILY] - writes a small model, its tokenizer, and arithmetic word
 * problems.
 *
 *     DIR/model/         a Hugging Face checkpoint with random weights; FAMILY is qwen3, or
 *                        qwen3_moe (experts), qwen3_next (experts, a recurrent layer) or
 *                        glm4_moe (a multi-token prediction layer)
 *     DIR/lessons.jsonl  conversations for miles sft: of five answers two are right, two lack
 *                        the \boxed{} that the reward requires, one is off by one
 *     DIR/prompts.jsonl  problems with labels for miles train
 *     DIR/unseen.jsonl   problems for evaluation, different from all others */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/file.h"
#include "base/json.h"
#include "base/map.h"
#include "base/philox.h"
#include "io/safetensors.h"
#include "model/mtp.h"

enum { N_LESSON = 4000, N_PROMPT = 4000, N_UNSEEN = 500 };

static void must(ml_status st, const ml_err *err) {
    if (st != ML_OK) {
        fprintf(stderr, "quickstart_make: %s\n", err->msg);
        exit(1);
    }
}

static void write_file(const char *dir, const char *name, const ml_text *text) {
    ml_text path = { 0 };
    ml_err err = { 0 };

    ml_text_printf(&path, "%s/%s", dir, name);
    must(ml_file_replace(path.ptr, (ml_str){ text->ptr, text->len }, &err), &err);
    ml_text_release(&path);
}

/* --- problems --------------------------------------------------------------- */

static const char *const names[] = { "Anna", "Ben",  "Clara", "David",
                                     "Emma", "Finn", "Grace", "Hugo" };
static const char *const things[] = { "apples", "books", "coins",  "pens",
                                      "stones", "cards", "shells", "eggs" };
/* %1$s: who, %2$s: things, %3$d and %4$d: the numbers. */
static const struct {
    const char *text;
    int sign;
} stories[] = {
    { "%1$s has %3$d %2$s and finds %4$d more. How many %2$s does %1$s have?", 1 },
    { "%1$s puts %3$d %2$s and then %4$d %2$s in a box. How many are in the box?", 1 },
    { "%1$s has %3$d %2$s and gives %4$d away. How many %2$s does %1$s have?", -1 },
    { "There are %3$d %2$s in a box. %1$s takes %4$d of them. How many are in the box?",
      -1 },
};
#define COUNT(x) (sizeof(x) / sizeof *(x))

typedef struct dice {
    uint64_t seed, n;
} dice;

static int below(dice *d, int n) {
    return (int)(ml_philox_uniform(d->seed, 0, d->n++) * n);
}

/* A problem's text goes to `out`; gives its answer, 0 to 20. */
static int make_problem(ml_text *out, dice *d) {
    int story = below(d, (int)COUNT(stories)), b = 1 + below(d, 9);
    int a = stories[story].sign > 0 ? 1 + below(d, 9) : b + below(d, 10);
    char text[300];

    snprintf(text, sizeof text, stories[story].text, names[below(d, (int)COUNT(names))],
             things[below(d, (int)COUNT(things))], a, b);
    out->len = 0;
    ml_text_printf(out, "%s", text);
    return a + stories[story].sign * b;
}

/* One that was not made before. */
static int new_problem(ml_text *out, dice *d, ml_map *seen) {
    int answer;
    ml_str text;

    do {
        answer = make_problem(out, d);
        text = (ml_str){ ml_arena_str(seen->arena, out->ptr, out->len), out->len };
    } while (!ml_map_add(seen, text, 1));
    return answer;
}

static void add_lesson(ml_text *file, const ml_text *problem, int answer, dice *d) {
    int luck = below(d, 5);

    answer += luck == 4 ? (answer == 0 || below(d, 2) ? 1 : -1) : 0;
    ml_text_printf(file,
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": "
                   "\"assistant\", \"content\": \"%s%d%s\"}]}\n",
                   problem->ptr, luck < 2 ? "It is " : "\\\\boxed{", answer,
                   luck < 2 ? "." : "}");
}

static void add_prompt(ml_text *file, const ml_text *problem, int answer, dice *d) {
    (void)d;
    ml_text_printf(file,
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}], "
                   "\"label\": \"%d\"}\n",
                   problem->ptr, answer);
}

static void write_problems(const char *dir, uint64_t seed) {
    static const struct {
        const char *name;
        int n;
        void (*add)(ml_text *file, const ml_text *problem, int answer, dice *d);
    } files[] = { { "lessons.jsonl", N_LESSON, add_lesson },
                  { "prompts.jsonl", N_PROMPT, add_prompt },
                  { "unseen.jsonl", N_UNSEEN, add_prompt } };
    dice d = { .seed = seed };
    ml_text problem = { 0 };
    ml_arena a;
    ml_map seen;

    ml_arena_init(&a, "problems");
    ml_map_init(&seen, &a, N_LESSON + N_PROMPT + N_UNSEEN);
    for (size_t k = 0; k < COUNT(files); k++) {
        ml_text file = { 0 };
        for (int i = 0; i < files[k].n; i++) {
            int answer = new_problem(&problem, &d, &seen);
            files[k].add(&file, &problem, answer, &d);
        }
        write_file(dir, files[k].name, &file);
        ml_text_release(&file);
    }
    ml_text_release(&problem);
    ml_arena_release(&a);
}

/* --- the tokenizer ------------------------------------------------------------ */

/* Every byte is a token; words of the problems and numbers are, too.  A word is merged
 * letter by letter from its front, so that each of its beginnings is a token as well. */
typedef struct vocab {
    ml_text tokens, merges; /* members of the two lists in tokenizer.json */
    ml_map id;
    int n;
} vocab;

/* How byte-level tokenizers spell a byte: printable ones as themselves, the others from
 * U+0100 on. */
static int spelling(char out[3], unsigned byte) {
    unsigned code = 256;

    for (unsigned b = 0; b <= byte; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte && plain)
            code = b;
        else if (b < byte)
            code += !plain;
    }
    if (code < 128) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    return 2;
}

static void add_token(vocab *v, ml_str token) {
    ml_str own = { ml_arena_str(v->id.arena, token.ptr, token.len), token.len };

    if (!ml_map_add(&v->id, own, v->n))
        return;
    ml_text_printf(&v->tokens, "%s", v->n ? ", " : "");
    ml_json_quote(&v->tokens, own);
    ml_text_printf(&v->tokens, ": %d", v->n++);
}

static void add_word(vocab *v, const char *word) {
    char token[200], piece[3];
    size_t len = (size_t)spelling(token, (unsigned char)word[0]);

    for (const char *c = word + 1; *c; c++) {
        size_t n = (size_t)spelling(piece, (unsigned char)*c);
        ml_str whole = { token, len + n };
        memcpy(token + len, piece, n);
        if (ml_map_get(&v->id, whole, -1) < 0) {
            ml_text_printf(&v->merges, "%s[", v->merges.len ? ", " : "");
            ml_json_quote(&v->merges, (ml_str){ token, len });
            ml_text_printf(&v->merges, ", ");
            ml_json_quote(&v->merges, (ml_str){ piece, n });
            ml_text_printf(&v->merges, "]");
            add_token(v, whole);
        }
        len += n;
    }
}

/* Words after a blank first: their merges go before those of words that begin a line. */
static void add_words(vocab *v, const char *before) {
    static const char *const words[] = {
        "has",  "and",   "finds", "more", "How", "many", "does", "have",
        "puts", "then",  "in",    "a",    "box", "are",  "the",  "gives",
        "away", "There", "takes", "It",   "is",  "of",   "them",
    };
    char word[60];

    for (size_t i = 0; i < COUNT(words); i++) {
        snprintf(word, sizeof word, "%s%s", before, words[i]);
        add_word(v, word);
    }
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(word, sizeof word, "%s%s", before, names[i]);
        add_word(v, word);
    }
    for (size_t i = 0; i < COUNT(things); i++) {
        snprintf(word, sizeof word, "%s%s", before, things[i]);
        add_word(v, word);
    }
    for (int i = 0; i <= 21; i++) {
        snprintf(word, sizeof word, "%s%d", before, i);
        add_word(v, word);
    }
}

static void fill_vocab(vocab *v) {
    char piece[3];

    for (unsigned b = 0; b < 256; b++)
        add_token(v, (ml_str){ piece, (size_t)spelling(piece, b) });
    add_words(v, " ");
    add_words(v, "");
    add_word(v, "user");
    add_word(v, "assistant");
    add_word(v, "boxed");
}

static const char *const specials[] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };

static void write_tokenizer(const char *dir, const vocab *v) {
    static const char tail[] =
        "{\"add_bos_token\": false, \"bos_token\": null, \"eos_token\": \"<|im_end|>\", "
        "\"pad_token\": \"<|endoftext|>\", \"unk_token\": null, \"model_max_length\": 256, "
        "\"clean_up_tokenization_spaces\": false, "
        "\"tokenizer_class\": \"PreTrainedTokenizerFast\"}\n";
    ml_text t = { 0 };

    ml_text_printf(&t, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, "
                       "\"added_tokens\": [");
    for (size_t i = 0; i < COUNT(specials); i++)
        ml_text_printf(&t,
                       "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, "
                       "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                       "\"special\": true}",
                       i ? ", " : "", v->n + (int)i, specials[i]);
    ml_text_printf(&t, "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
                       "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": "
                       "false, \"use_regex\": true}, \"post_processor\": null, "
                       "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                       "false, \"trim_offsets\": false, \"use_regex\": true}, \"model\": "
                       "{\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                       "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
                       "\"fuse_unk\": false, \"byte_fallback\": false, \"vocab\": {");
    ml_text_add(&t, v->tokens.ptr, v->tokens.len);
    ml_text_printf(&t, "}, \"merges\": [");
    ml_text_add(&t, v->merges.ptr, v->merges.len);
    ml_text_printf(&t, "]}}\n");
    write_file(dir, "tokenizer.json", &t);
    t.len = 0;
    ml_text_printf(&t, "%s", tail);
    write_file(dir, "tokenizer_config.json", &t);
    t.len = 0;
    ml_text_printf(&t, "%s",
                   "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + "
                   "m.content + '<|im_end|>' + '\\n' }}{%- endfor %}{%- if "
                   "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
                   "{%- endif %}");
    write_file(dir, "chat_template.jinja", &t);
    ml_text_release(&t);
}

/* --- the model ----------------------------------------------------------------- */

enum { HIDDEN = 128, LAYERS = 2, HEADS = 4, KV_HEADS = 2, FFN = 512 };

#define EXPERTS                                                                            \
    "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 128, "     \
    "\"norm_topk_prob\": true, \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], "

/* What a family's config has that the others' have not. */
static const struct family {
    const char *model_type, *architecture, *own;
} families[] = {
    { "qwen3", "Qwen3ForCausalLM",
      "\"sliding_window\": null, \"use_sliding_window\": false, " },
    { "qwen3_moe", "Qwen3MoeForCausalLM",
      EXPERTS "\"sliding_window\": null, \"use_sliding_window\": false, " },
    { "qwen3_next", "Qwen3NextForCausalLM",
      EXPERTS "\"shared_expert_intermediate_size\": 128, \"partial_rotary_factor\": 0.5, "
              "\"layer_types\": [\"linear_attention\", \"full_attention\"], "
              "\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, "
              "\"linear_key_head_dim\": 32, \"linear_value_head_dim\": 32, "
              "\"linear_conv_kernel_dim\": 4, " },
    { "glm4_moe", "Glm4MoeForCausalLM",
      "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_shared_experts\": 1, "
      "\"moe_intermediate_size\": 128, \"first_k_dense_replace\": 2, \"n_group\": 1, "
      "\"topk_group\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 1.0, "
      "\"partial_rotary_factor\": 0.5, \"use_qk_norm\": false, "
      "\"num_nextn_predict_layers\": 1, " },
};

static const struct family *family_named(const char *name) {
    for (size_t i = 0; i < COUNT(families); i++)
        if (strcmp(families[i].model_type, name) == 0)
            return &families[i];
    fprintf(stderr, "quickstart_make: there is no family %s\n", name);
    exit(2);
}

static void write_config(const char *dir, const struct family *f, int n_vocab, int eos,
                         int pad) {
    ml_text t = { 0 };

    ml_text_printf(
        &t,
        "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", "
        "\"attention_bias\": false, \"attention_dropout\": 0.0, \"bos_token_id\": null, "
        "\"dtype\": \"float32\", \"eos_token_id\": %d, \"pad_token_id\": %d, \"head_dim\": "
        "%d, \"hidden_act\": \"silu\", \"hidden_size\": %d, \"initializer_range\": 0.02, "
        "\"intermediate_size\": %d, \"max_position_embeddings\": 256, "
        "\"num_attention_heads\": %d, \"num_hidden_layers\": %d, \"num_key_value_heads\": "
        "%d, \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0, "
        "\"tie_word_embeddings\": true, \"use_cache\": true, %s\"vocab_size\": %d}\n",
        f->architecture, f->model_type, eos, pad, HIDDEN / HEADS, HIDDEN, FFN, HEADS,
        LAYERS, KV_HEADS, f->own, n_vocab);
    write_file(dir, "config.json", &t);
    t.len = 0;
    ml_text_printf(&t,
                   "{\"eos_token_id\": %d, \"pad_token_id\": %d, \"do_sample\": true}\n",
                   eos, pad);
    write_file(dir, "generation_config.json", &t);
    ml_text_release(&t);
}

static float normal(uint64_t seed, int32_t param, int64_t i) {
    double radius =
        sqrt(-2 * log(1 - ml_philox_uniform(seed, (uint64_t)param + 1, 2 * (uint64_t)i)));
    return (float)(radius *
                   cos(6.283185307179586 *
                       ml_philox_uniform(seed, (uint64_t)param + 1, 2 * (uint64_t)i + 1)));
}

/* Norms multiply by 1, which some store as 0; speeds of recurrent heads differ, so that some
 * remember for long. */
static float vector_number(const ml_spec *s, int32_t i, size_t k) {
    const char *name = s->param[i].name;
    size_t len = strlen(name);

    if (len > 5 && strcmp(name + len - 5, "A_log") == 0)
        return (float)log(0.05 * pow(4, (double)k));
    for (int32_t n = 0; n < s->n_node; n++)
        if (s->node[n].op == ML_OP_RMSNORM && s->node[n].w[0] == i)
            return s->node[n].attr.norm.plus_one ? 0.0F : 1.0F;
    return 1.0F;
}

/* Matrices by the size of their inputs, the table small. */
static float *make_numbers(ml_arena *a, const ml_spec *s, int32_t i, int32_t member,
                           uint64_t seed, size_t bytes) {
    const ml_param *p = &s->param[i];
    size_t n = bytes / sizeof(float);
    float *x = ML_NEW(a, float, n);
    double scale = p->shape[0] == s->n_vocab ? 0.05 : 1 / sqrt((double)p->shape[1]);

    for (size_t k = 0; k < n; k++)
        x[k] = p->n_dim == 1
                   ? vector_number(s, i, k)
                   : (float)scale * normal(seed, i, (int64_t)((size_t)member * n + k));
    return x;
}

/* A tensor of the checkpoint: a member of a parameter, under its own name or, a convolution,
 * that of the tensor which is all of it. */
static ml_st_tensor tensor_of(ml_arena *a, const ml_param *p, int32_t member) {
    char name[256];
    ml_st_tensor t = { .dtype = ml_st_from_dtype(ML_F32),
                       .n_dim = p->n_dim,
                       .shape = { p->shape[0], p->shape[1] } };

    ml_param_name(p, member, name, sizeof name);
    if (p->part && !p->name_after) {
        snprintf(name, sizeof name, "%s", p->part->name);
        t.n_dim = p->part->n_dim;
        memcpy(t.shape, p->part->shape, sizeof p->part->shape);
    }
    t.name = ml_str_of(ml_arena_str(a, name, strlen(name)));
    ml_st_size(t.dtype, t.shape, t.n_dim, &t.bytes);
    return t;
}

/* The tensors of a checkpoint, and their numbers. */
typedef struct numbers {
    ml_arena arena;
    ml_st_tensor *t;
    float **x;
    int32_t n;
} numbers;

/* Adds the parameters of a spec; those of a multi-token prediction module (model/mtp.h)
 * without the trunk's, and with numbers of their own. */
static void add_params(numbers *m, const ml_spec *s, uint64_t seed) {
    const ml_shard_range *part = s->mtp ? ml_mtp_parts(s, ML_ROWS, &m->arena) : NULL;

    for (int32_t i = 0; i < s->n_param; i++)
        for (int32_t e = 0; e < s->param[i].n_stack && (!part || part[i].n); e++) {
            ml_st_tensor t = tensor_of(&m->arena, &s->param[i], e);
            m->x[m->n] = make_numbers(&m->arena, s, i, e, seed + s->mtp, t.bytes);
            m->t[m->n++] = t;
        }
}

static int32_t count_tensors(const ml_spec *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_param; i++)
        n += s->param[i].n_stack;
    return n;
}

static void write_weights(const char *dir, uint64_t seed) {
    static const ml_st_meta format = { { "format", 6 }, { "pt", 2 } };
    ml_text path = { 0 };
    ml_st_writer *w;
    ml_spec s, module = { 0 };
    ml_err err = { 0 };
    numbers m = { 0 };
    int32_t most;

    ml_arena_init(&m.arena, "weights");
    must(ml_spec_open(&s, dir, &err), &err);
    if (s.n_nextn)
        must(ml_mtp_open(&module, dir, &err), &err);
    most = count_tensors(&s) + count_tensors(&module);
    m.t = ML_NEW(&m.arena, ml_st_tensor, most);
    m.x = ML_NEW(&m.arena, float *, most);
    add_params(&m, &s, seed);
    add_params(&m, &module, seed);
    ml_text_printf(&path, "%s/model.safetensors", dir);
    must(ml_st_create(&w, path.ptr, &(ml_st_layout){ m.n, m.t, 1, &format }, &err), &err);
    for (int32_t i = 0; i < m.n; i++)
        must(ml_st_write(w, i, 0, m.x[i], m.t[i].bytes, &err), &err);
    must(ml_st_commit(w, &err), &err);
    ml_text_release(&path);
    ml_spec_close(&s);
    ml_spec_close(&module);
    ml_arena_release(&m.arena);
}

static void write_model(const char *dir, const struct family *f, uint64_t seed) {
    vocab v = { 0 };
    ml_arena a;
    ml_err err = { 0 };
    int n_vocab;

    ml_arena_init(&a, "vocabulary");
    ml_map_init(&v.id, &a, 1024);
    fill_vocab(&v);
    n_vocab = (v.n + (int)COUNT(specials) + 15) / 16 * 16;
    must(ml_dir_make(dir, &err), &err);
    write_tokenizer(dir, &v);
    write_config(dir, f, n_vocab, v.n + 2, v.n);
    write_weights(dir, seed);
    ml_text_release(&v.tokens);
    ml_text_release(&v.merges);
    ml_arena_release(&a);
}

int main(int argc, char **argv) {
    ml_text model = { 0 };
    ml_err err = { 0 };
    uint64_t seed = argc >= 3 ? strtoull(argv[2], NULL, 10) : 0;

    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: quickstart_make DIR SEED [FAMILY]\n");
        return 2;
    }
    must(ml_dir_make(argv[1], &err), &err);
    ml_text_printf(&model, "%s/model", argv[1]);
    write_model(model.ptr, family_named(argc == 4 ? argv[3] : "qwen3"), seed);
    write_problems(argv[1], seed);
    ml_text_release(&model);
    return 0;
}
