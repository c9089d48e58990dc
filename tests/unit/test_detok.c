/* Tokens to text one at a time, and stop strings found across their borders. */
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"
#include "text/tokenizer/detok.h"

static ml_str str(const ml_text *t) {
    return (ml_str){ t->ptr ? t->ptr : "", t->len };
}

static ml_tokenizer *make(const char *vocab, const char *decoder) {
    ml_text json = { 0 };
    ml_tokenizer *t = NULL;
    ml_err err = { 0 };

    ml_text_printf(&json,
                   "{\"decoder\":%s,\"added_tokens\":[{\"id\":99,\"content\":\"<end>\","
                   "\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":%s,"
                   "\"merges\":[]}}",
                   decoder, vocab);
    if (ml_tokenizer_parse(&t, (ml_str){ json.ptr, json.len }, "test", &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    ml_text_release(&json);
    return t;
}

/* Pushes ids one by one; after each, all text so far must be what `steps` says. */
static void check_steps(const ml_tokenizer *t, bool skip, const int32_t *id, int n,
                        const char *const *steps) {
    ml_detok *d = ml_detok_new(t, skip);
    ml_text text = { 0 };

    for (int i = 0; i <= n; i++) {
        if (i < n)
            ml_detok_push(d, id[i], &text);
        else
            ml_detok_finish(d, &text);
        if (!ml_str_is(str(&text), steps[i]))
            ml_test_fail(__FILE__, __LINE__, "step %d: \"%s\", expected \"%s\"", i,
                         text.ptr ? text.ptr : "", steps[i]);
    }
    ml_text_release(&text);
    ml_detok_free(d);
}

/* U+1F642 is f0 9f 99 82; in byte-level spelling, four characters. */
static const char byte_vocab[] =
    "{\"\xc3\xb0\xc5\x81\":0,\"\xc4\xbb\":1,\"\xc4\xa4\":2,\"a\":3,\"\xc4\xa0\":4}";

static void byte_level_waits_for_whole_characters(void) {
    ml_tokenizer *t = make(byte_vocab, "{\"type\":\"ByteLevel\"}");
    const int32_t whole[] = { 0, 1, 2, 3 }, cut[] = { 3, 0, 4, 0 };
    const char *const whole_steps[] = { "", "", "🙂", "🙂a", "🙂a" };
    const char *const cut_steps[] = { "a", "a", "a� ", "a� ", "a� �" };

    check_steps(t, false, whole, 4, whole_steps);
    check_steps(t, false, cut, 4, cut_steps);
    ml_tokenizer_close(t);
}

static void byte_fallback_waits_for_its_run(void) {
    ml_tokenizer *t =
        make("{\"<0xC3>\":0,\"<0xA9>\":1,\"a\":2}",
             "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},"
             "{\"type\":\"Fuse\"}]}");
    const int32_t good[] = { 2, 0, 1, 2 }, bad[] = { 0, 1, 0, 2 };
    const char *const good_steps[] = { "a", "a", "a", "aéa", "aéa" };
    const char *const bad_steps[] = { "", "", "", "���a", "���a" };

    check_steps(t, false, good, 4, good_steps);
    check_steps(t, false, bad, 4, bad_steps);
    ml_tokenizer_close(t);
}

static void strip_works_on_the_whole_text(void) {
    ml_tokenizer *t =
        make("{\"__a\":0,\"_\":1,\"b\":2}",
             "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\","
             "\"content\":\"_\",\"start\":1,\"stop\":2}]}");
    const int32_t a[] = { 0, 1, 2 }, b[] = { 1, 1, 2, 1, 1, 1 };
    const char *const a_steps[] = { "_a", "_a", "_a_b", "_a_b" };
    const char *const b_steps[] = { "", "", "_b", "_b", "_b", "_b_", "_b_" };

    check_steps(t, false, a, 3, a_steps);
    check_steps(t, false, b, 6, b_steps);
    ml_tokenizer_close(t);
}

static void metaspace_drops_the_first_mark(void) {
    ml_tokenizer *t =
        make("{\"▁a\":0,\"▁b\":1}", "{\"type\":\"Metaspace\",\"replacement\":\"▁\","
                                    "\"prepend_scheme\":\"always\",\"split\":true}");
    const int32_t id[] = { 0, 1, 0 };
    const char *const steps[] = { "a", "a b", "a b a", "a b a" };

    check_steps(t, false, id, 3, steps);
    ml_tokenizer_close(t);
}

static void special_and_unknown_ids_count_for_nothing(void) {
    ml_tokenizer *t = make(byte_vocab, "null");
    const int32_t id[] = { 3, 5, 77, -1, 3 };
    const char *const kept[] = { "a",       "a <end>",   "a <end>",
                                 "a <end>", "a <end> a", "a <end> a" };
    const char *const skipped[] = { "a", "a", "a", "a", "a a", "a a" };

    check_steps(t, false, id, 5, kept);
    check_steps(t, true, id, 5, skipped);
    ml_tokenizer_close(t);
}

/* --- stop strings ----------------------------------------------------------- */

static const ml_str stops[] = {
    { "</s>", 4 }, { "User:", 5 }, { "</stop>", 7 }, { ":", 1 }
};

/* Feeds text in pieces of `step` bytes; expects `want` and the stop string `which`. */
static void check_stop(const char *text, size_t step, const char *want, int which, int n) {
    ml_stops s = { stops, n, { 0 } };
    ml_text out = { 0 };
    size_t len = strlen(text);
    int hit = -1;

    for (size_t at = 0; at < len && hit < 0; at += step)
        hit = ml_stops_push(&s, (ml_str){ text + at, len - at < step ? len - at : step },
                            &out);
    ml_stops_finish(&s, &out);
    if (hit != which || !ml_str_is(str(&out), want))
        ml_test_fail(__FILE__, __LINE__, "\"%s\" by %zu: stop %d after \"%s\"", text, step,
                     hit, out.ptr ? out.ptr : "");
    ml_text_release(&out);
    ml_stops_release(&s);
}

static void stop_strings_are_found_across_pieces(void) {
    for (size_t step = 1; step < 12; step++) {
        check_stop("hello</s>world", step, "hello", 0, 3);
        check_stop("a</a</s>", step, "a</a", 0, 3);
        check_stop("</st</stop>", step, "</st", 2, 3);
        check_stop("UserUser: x", step, "User", 1, 3);
        check_stop("no stop </s", step, "no stop </s", -1, 3);
        check_stop("", step, "", -1, 3);
        check_stop("xUser:", step, "x", 1, 4); /* the longest of two that end together */
    }
}

static void text_is_held_no_longer_than_needed(void) {
    ml_stops s = { stops, 2, { 0 } };
    ml_text out = { 0 };

    CHECK(ml_stops_push(&s, ml_str_of("abc<"), &out) == -1 && ml_str_is(str(&out), "abc"));
    CHECK(ml_stops_push(&s, ml_str_of("/"), &out) == -1 && ml_str_is(str(&out), "abc"));
    CHECK(ml_stops_push(&s, ml_str_of("Us"), &out) == -1 && ml_str_is(str(&out), "abc</"));
    ml_stops_finish(&s, &out);
    CHECK(ml_str_is(str(&out), "abc</Us"));
    ml_text_release(&out);
    ml_stops_release(&s);
}

static const ml_test tests[] = {
    { "byte-level decoding waits for whole characters",
      byte_level_waits_for_whole_characters, 0 },
    { "byte fallback waits for its whole run of bytes", byte_fallback_waits_for_its_run,
      0 },
    { "the Strip decoder works on the whole text", strip_works_on_the_whole_text, 0 },
    { "the Metaspace decoder drops the first mark", metaspace_drops_the_first_mark, 0 },
    { "special and unknown ids decode to nothing",
      special_and_unknown_ids_count_for_nothing, 0 },
    { "stop strings are found across pieces", stop_strings_are_found_across_pieces, 0 },
    { "text that could begin a stop string is held no longer than needed",
      text_is_held_no_longer_than_needed, 0 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
