/* Tokenizers: what is refused and how, scanners against expressions, worst cases, threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "text/tokenizer/tok_priv.h"

#define MODEL                                                                              \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a "    \
    "b\"]}"

/* --- refusals --------------------------------------------------------------- */

static void refused(const char *json, const char *sentence) {
    ml_tokenizer *t = NULL;
    ml_err err = { 0 };

    if (ml_tokenizer_parse(&t, ml_str_of(json), "t.json", &err) == ML_OK)
        ml_test_fail(__FILE__, __LINE__, "accepted: %s", json);
    CHECK_HAS(err.msg, sentence);
    CHECK_HAS(err.msg, "t.json:");
    ml_tokenizer_close(t);
}

static void unknown_parts_are_refused_by_name(void) {
    refused(
        "{" MODEL ",\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}}",
        "pre_tokenizer type \"BertPreTokenizer\" is not supported; supported are Split");
    refused("{" MODEL ",\"normalizer\":{\"type\":\"Nmt\"}}", "normalizer type \"Nmt\"");
    refused("{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}",
            "decoder type \"WordPiece\"");
    refused("{" MODEL ",\"post_processor\":{\"type\":\"BertProcessing\"}}",
            "post_processor type \"BertProcessing\"");
    refused("{" MODEL ",\"post_processor\":{\"type\":\"ByteLevel\",\"cls\":[\"a\",0],"
            "\"sep\":[\"b\",1]}}",
            "post_processor \"ByteLevel\" has the keys of RobertaProcessing");
    refused("{" MODEL ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":[],"
            "\"single\":[],\"pair\":[],\"special_tokens\":{}}}",
            "post_processor \"Sequence\" has the keys of TemplateProcessing");
    refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "model type \"Unigram\"");
    refused("{" MODEL ",\"surprise\":1}", "option \"surprise\"");
    refused("{" MODEL
            ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
            "\"behavior\":\"Sideways\"}}",
            "behavior \"Sideways\"");
    refused("{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}",
            "dropout is not supported");
    refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
            "{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}}",
            "after ByteLevel");
}

static void broken_files_are_refused(void) {
    refused("[1]", "expected an object");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}",
            "the id of \"a\"");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
            "duplicate token");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}",
            "merge 0 joins \"a\" and \"a\"");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}",
            "merge 0 must be");
    refused("{\"model\":{\"type\":\"BPE\",\"unk_token\":\"x\",\"vocab\":{\"a\":0},"
            "\"merges\":[]}}",
            "unk_token \"x\" is not in the vocabulary");
    refused("{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
            "{\"SpecialToken\":{\"id\":\"s\"}}],\"special_tokens\":{}}}",
            "has no ids in special_tokens");
}

static void expressions_that_mean_something_else_are_refused(void) {
    static const struct {
        const char *pattern, *sentence;
    } rows[] = {
        { "^a", "anchors" },
        { "a$", "anchors" },
        { "\\\\bword", "unsupported escape" },
        { "\\\\h", "unsupported escape" },
        { "[a[bc]]", "a set inside a set" },
        { "[a-z&&[^x]]", "(&&)" },
        { "[\\\\W]", "a negated set inside a set" },
        { "a{2}?", "{n}?" },
        { "(?<name>a)", "this kind of group" },
        { "x(?i)a", "this kind of group" },
        { "(?m:a)", "this kind of group" },
        { "(?i:ss)", "ligatures" },
        { "(?i:é)", "ASCII" },
        { "\\\\p{Alphabetic}", "general categories" },
        { "\\\\xe9", "is a byte" },
        { "(a", "')' is missing" },
        { "[a", "']' is missing" },
        { "a)", "')' without '('" },
        { "*a", "regular expression" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[400];
        snprintf(json, sizeof json,
                 "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":"
                 "{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}}",
                 rows[i].pattern);
        refused(json, rows[i].sentence);
    }
}

/* --- scanners --------------------------------------------------------------- */

static uint64_t rng_state = 88172645463325252u;

static uint32_t draw(uint32_t below) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 33) % below;
}

static uint32_t draw_char(void) {
    static const char often[] = "  \n\r\t''abcABsStTrReEvVlLmMdD0123456789.,!?-_()<>/\"#";
    static const uint32_t first[] = { 0x80,   0x300,  0x400,  0x600,   0x900,
                                      0x2000, 0x3040, 0x4e00, 0x1f600, 0x10d40 };
    uint32_t kind = draw(10), c;

    if (kind < 6)
        return (unsigned char)often[draw(sizeof often - 1)];
    if (kind == 6)
        return draw(0x180);
    c = kind == 7 ? draw(ML_CODE_POINTS) : first[draw(10)] + draw(0x100);
    return c >= 0xd800 && c <= 0xdfff ? 0x17f : c;
}

static void draw_text(ml_text *t) {
    uint32_t n = 1 + draw(30);

    t->len = 0;
    while (n--) {
        char bytes[4];
        uint32_t c = draw_char(), times = draw(8) ? 1 : 1 + draw(4);
        int len = ml_utf8_put(bytes, c);
        while (times--)
            ml_text_add(t, bytes, (size_t)len);
    }
}

/* The scanner of this pattern finds what the expression finds, all through the text. */
static void scanner_agrees(const ml_unicode *u, ml_finder *f, const char *source) {
    ml_pattern pat = { 0 };
    ml_text text = { 0 };
    ml_err err = { 0 };

    ml_scan_choose(&pat, ml_str_of(source), u);
    if (!pat.scan || ml_regex_new(&pat.regex, u, ml_str_of(source), &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s: no scanner, or %s", source, err.msg);
        return;
    }
    for (int round = 0; round < 20000; round++) {
        size_t from = 0, begin = 0, end = 0, b, e;
        ml_str s;
        draw_text(&text);
        s = (ml_str){ text.ptr, text.len };
        for (;;) {
            bool found = pat.scan(&pat, s, from, &begin, &end);
            ml_status st = ml_regex_find(pat.regex, f, s, from, &b, &e, &err);
            if (found != (st == ML_OK) || (found && (b != begin || e != end))) {
                ml_test_fail(__FILE__, __LINE__, "\"%s\" from %zu: %zu-%zu, not %zu-%zu",
                             text.ptr, from, begin, end, b, e);
                round = 20000;
            }
            if (!found || st != ML_OK)
                break;
            from = end;
        }
    }
    ml_text_release(&text);
    ml_pattern_release(&pat);
}

static void scanners_find_what_expressions_find(void) {
    static const char *const sources[] = {
        ml_scan_gpt2,
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+"
        "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
        "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "\\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
        "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    };
    ml_finder *f = ml_finder_new();
    ml_unicode u;

    ml_unicode_init(&u);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        scanner_agrees(&u, f, sources[i]);
    ml_finder_free(f);
}

/* --- a model to work with --------------------------------------------------- */

/* Byte-level, with all bytes and some merges of letters; `parts` is put into the file. */
static ml_tokenizer *make(const char *parts) {
    ml_text json = { 0 };
    ml_tokenizer *t = NULL;
    ml_err err = { 0 };

    ml_text_printf(&json, "{%s\"model\":{\"type\":\"BPE\",\"vocab\":{", parts);
    for (int i = 0; i < 256; i++) {
        char bytes[5] = { 0 };
        ml_utf8_put(bytes, ml_byte_char((uint8_t)i));
        ml_json_quote(&json, ml_str_of(bytes));
        ml_text_printf(&json, ":%d,", i);
    }
    ml_text_printf(&json, "\"aa\":256,\"aaaa\":257,\"th\":258,\"the\":259,\"Ġthe\":260,"
                          "\"aaa\":261},\"merges\":[\"a a\",\"aa aa\",\"t h\",\"th e\","
                          "\"Ġ the\",\"aa a\"]}}");
    if (ml_tokenizer_parse(&t, (ml_str){ json.ptr, json.len }, "test", &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    ml_text_release(&json);
    return t;
}

#define BYTE_LEVEL                                                                         \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"               \
    "\"decoder\":{\"type\":\"ByteLevel\"},"

static void bytes_and_their_characters(void) {
    for (int i = 0; i < 256; i++)
        CHECK(ml_byte_of_char(ml_byte_char((uint8_t)i)) == i);
    CHECK(ml_byte_of_char(' ') == -1 && ml_byte_of_char(0x144) == -1);
    CHECK(ml_byte_char(' ') == 0x120 && ml_byte_char('a') == 'a');
}

static void text_that_is_not_utf8_is_refused(void) {
    ml_tokenizer *t = make(BYTE_LEVEL);
    ml_encoder *e = ml_encoder_new(t);
    ml_tokens out = { 0 };
    ml_err err = { 0 };

    CHECK(ml_encode(e, &out, ml_str_of("ab\xc3"), (ml_encode_opts){ 0 }, &err) ==
          ML_EFORMAT);
    CHECK_HAS(err.msg, "byte 2 is 0xc3");
    CHECK(ml_encode(e, &out, ml_str_of("the"), (ml_encode_opts){ 0 }, &err) == ML_OK);
    CHECK(out.n == 1 && out.id[0] == 259);
    ml_tokens_release(&out);
    ml_encoder_free(e);
    ml_tokenizer_close(t);
}

/* --- worst cases ------------------------------------------------------------ */

static double seconds_for(ml_encoder *e, const char *unit, size_t n_bytes, bool spans) {
    ml_text text = { 0 };
    ml_tokens out = { 0 };
    ml_err err = { 0 };
    double start;

    while (text.len < n_bytes)
        ml_text_add(&text, unit, strlen(unit));
    start = ml_test_own_s();
    if (ml_encode(e, &out, (ml_str){ text.ptr, text.len },
                  (ml_encode_opts){ .spans = spans }, &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    start = ml_test_own_s() - start;
    ml_text_release(&text);
    ml_tokens_release(&out);
    return start;
}

/* Eight times the text may take a small multiple of eight times as long; a quadratic step
 * would take 64 times. */
static void stays_linear(const char *parts, const char *unit) {
    ml_tokenizer *t = make(parts);
    ml_encoder *e = ml_encoder_new(t);
    double small, large;

    seconds_for(e, unit, 1 << 17, true);
    small = seconds_for(e, unit, 1 << 17, true);
    large = seconds_for(e, unit, 1 << 20, true);
    if (large > 30 * small + 0.2 || large > 20)
        ml_test_fail(__FILE__, __LINE__, "\"%s\": %.3f s, then %.3f s for 8 times as much",
                     unit, small, large);
    ml_encoder_free(e);
    ml_tokenizer_close(t);
}

static void no_text_takes_more_than_linear_time(void) {
    static const char gpt4[] =
        "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
        "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\\\r\\\\n\\\\p{"
        "L}"
        "\\\\p{N}]?\\\\p{L}+|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":"
        "\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":"
        "false}]},";

    stays_linear(BYTE_LEVEL, "a");
    stays_linear(BYTE_LEVEL, "thea");
    stays_linear(BYTE_LEVEL, " ");
    stays_linear(BYTE_LEVEL, "中");
    stays_linear(gpt4, "a");
    stays_linear(gpt4, " ");
    stays_linear(gpt4, "e\xcc\x81\xcc\xb1");        /* marks out of order */
    stays_linear(gpt4, "\xcc\x81\xcc\xb1\xcc\xa7"); /* nothing but marks */
    stays_linear("", "a");
}

/* --- many texts, files of a checkpoint --------------------------------------- */

static void threads_give_the_same_tokens(void) {
    enum { N = 300 };
    ml_tokenizer *t = make(BYTE_LEVEL);
    ml_text text[N] = { 0 };
    ml_str view[N];
    ml_err err = { 0 };

    for (int i = 0; i < N; i++) {
        draw_text(&text[i]);
        view[i] = (ml_str){ text[i].ptr, text[i].len };
    }
    for (int n_thread = 1; n_thread <= 4; n_thread += 3) {
        ml_pool *pool;
        ml_tokens out[N] = { 0 };
        ml_encoder *e = ml_encoder_new(t);
        CHECK(ml_pool_new(&pool, n_thread, &err) == ML_OK);
        CHECK(ml_encode_all(t, pool, out, view, N, (ml_encode_opts){ 0 }, &err) == ML_OK);
        for (int i = 0; i < N; i++) {
            ml_tokens one = { 0 };
            ml_encode(e, &one, view[i], (ml_encode_opts){ 0 }, &err);
            CHECK(one.n == out[i].n &&
                  memcmp(one.id, out[i].id, (size_t)one.n * sizeof *one.id) == 0);
            ml_tokens_release(&one);
            ml_tokens_release(&out[i]);
        }
        view[17] = ml_str_of("\xff");
        CHECK(ml_encode_all(t, pool, out, view, N, (ml_encode_opts){ 0 }, &err) ==
              ML_EFORMAT);
        CHECK_HAS(err.msg, "text 17: the text is not valid UTF-8");
        view[17] = (ml_str){ text[17].ptr, text[17].len };
        for (int i = 0; i < N; i++)
            ml_tokens_release(&out[i]);
        ml_encoder_free(e);
        ml_pool_free(pool);
    }
    for (int i = 0; i < N; i++)
        ml_text_release(&text[i]);
    ml_tokenizer_close(t);
}

static void put(const char *name, const char *text) {
    ml_err err;
    CHECK(ml_file_replace(ml_test_path(name), ml_str_of(text), &err) == ML_OK);
}

static void files_of_a_checkpoint_add_up(void) {
    ml_tokenizer *t = NULL;
    ml_err err = { 0 };

    CHECK(ml_tokenizer_open(&t, ml_test_dir(), &err) == ML_EIO);
    CHECK_HAS(err.msg, "neither tokenizer.json nor tiktoken.model");
    put("tokenizer.json",
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<x>\",\"special\":false,"
        "\"normalized\":false}]," MODEL "}");
    put("tokenizer_config.json",
        "{\"added_tokens_decoder\":{\"5\":{\"content\":\"<z>\",\"special\":true},\"4\":"
        "{\"content\":\"<y>\",\"special\":false},\"3\":{\"content\":\"<x>\",\"special\":"
        "true}},"
        "\"eos_token\":\"<z>\",\"bos_token\":{\"content\":\"a\"},\"pad_token\":null,"
        "\"additional_special_tokens\":[\"<w>\"]}");
    put("special_tokens_map.json", "{\"pad_token\":\"<p>\",\"eos_token\":\"<other>\"}");
    if (ml_tokenizer_open(&t, ml_test_dir(), &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    CHECK(ml_tokenizer_id(t, ml_str_of("<y>")) == 4);
    CHECK(ml_tokenizer_role(t, ML_TOKEN_EOS) == 5 &&
          ml_tokenizer_role(t, ML_TOKEN_BOS) == 0);
    CHECK(ml_tokenizer_id(t, ml_str_of("<w>")) == 6);
    CHECK(ml_tokenizer_role(t, ML_TOKEN_PAD) == 7 &&
          ml_tokenizer_role(t, ML_TOKEN_UNK) == -1);
    CHECK(ml_tokenizer_size(t) == 8);
    CHECK(ml_tokenizer_is_special(t, 3) && !ml_tokenizer_is_special(t, 4));
    CHECK(ml_tokenizer_is_special(t, 0) && !ml_tokenizer_is_special(t, 1));
    CHECK(ml_str_is(ml_tokenizer_token(t, 2), "ab") && !ml_tokenizer_token(t, 8).ptr);
    CHECK(ml_tokenizer_id(t, ml_str_of("nothing")) == -1);
    ml_tokenizer_close(t);
}

/* Runs miles tokenize with this input. */
static int run_tokenize(char *out, size_t cap, const char *flags, const char *input) {
    char args[1000];

    put("input.jsonl", input);
    snprintf(args, sizeof args, "tokenize %s --hf-checkpoint %s <%s", flags, ml_test_dir(),
             ml_test_path("input.jsonl"));
    return ml_test_miles(out, cap, args);
}

static void the_command_answers_line_by_line(void) {
    char out[4000];

    put("tokenizer.json", "{" MODEL "}");
    CHECK(run_tokenize(out, sizeof out, "", "{\"text\": \"abab\"}\n\n{\"text\": \"\"}") ==
          0);
    CHECK(strcmp(out, "{\"ids\": [2, 2]}\n{\"ids\": []}\n") == 0);
    CHECK(run_tokenize(out, sizeof out, "--decode",
                       "{\"ids\": [2, 0]}\n{\"ids\": [0.5]}\n") == 1);
    CHECK_HAS(out, "{\"text\": \"ab a\"}\n");
    CHECK_HAS(out, "standard input, line 2: an id must be a whole number");
    CHECK(run_tokenize(out, sizeof out, "", "{\"ids\": []}\n") == 1);
    CHECK_HAS(out, "line 1: expected {\"text\": \"...\"}");
    CHECK(run_tokenize(out, sizeof out, "", "{\"text\": \"a\"}\n{\"text\"\n") == 1);
    CHECK_HAS(out, "{\"ids\": [0]}\n");
    CHECK_HAS(out, "standard input, line 2");
}

static const ml_test tests[] = {
    { "unknown parts of tokenizer.json are refused by name",
      unknown_parts_are_refused_by_name, 0 },
    { "broken tokenizer.json files are refused", broken_files_are_refused, 0 },
    { "unsupported regular expressions are refused",
      expressions_that_mean_something_else_are_refused, 0 },
    { "scanners split as their regular expressions", scanners_find_what_expressions_find,
      200 },
    { "bytes map to byte-level characters and back", bytes_and_their_characters, 0 },
    { "text that is not UTF-8 is refused", text_that_is_not_utf8_is_refused, 0 },
    { "encoding takes linear time for any text", no_text_takes_more_than_linear_time, 200 },
    { "encoding gives the same tokens for any number of threads",
      threads_give_the_same_tokens, 0 },
    { "tokenizer files of a checkpoint are combined", files_of_a_checkpoint_add_up, 0 },
    { "miles tokenize answers line by line", the_command_answers_line_by_line, 0 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
