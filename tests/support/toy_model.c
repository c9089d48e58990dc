#include "tests/support/toy_model.h"

#include <stdlib.h>

#include "base/dir.h"
#include "base/file.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define MODEL "tests/golden/data/qwen3"

const char ml_toy_chatml[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static void must(ml_status st, const ml_err *err) {
    if (st != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
        exit(1);
    }
}

void ml_toy_file(const char *name, const char *text) {
    ml_err err = { 0 };
    must(ml_file_replace(ml_test_path(name), ml_str_of(text), &err), &err);
}

static void copy_file(const char *from, const char *name) {
    ml_file f;
    ml_err err = { 0 };
    must(ml_file_map(&f, from, &err), &err);
    must(ml_file_replace(ml_test_path(name), f.bytes, &err), &err);
    ml_file_unmap(&f);
}

/* Two special tokens besides the characters. */
static void write_tokenizer(void) {
    static const char chars[] = "abcdefghijklmnopqrstuvwxyz0123456789.,?!+-=*/:ABCDEFGH";
    ml_text t = { 0 };
    int n = 0;

    ml_text_printf(&t, "{\"version\": \"1.0\", \"added_tokens\": [");
    for (int i = 0; i < 2; i++)
        ml_text_printf(&t,
                       "%s{\"id\": %d, \"content\": \"<|im_%s|>\", \"single_word\": false, "
                       "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                       "\"special\": true}",
                       i ? ", " : "", i + 70, i ? "end" : "start");
    ml_text_printf(&t, "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
                       "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": "
                       "false, \"use_regex\": false}, \"post_processor\": null, "
                       "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": "
                       "\"BPE\", \"vocab\": {");
    for (const char *c = chars; *c; c++)
        ml_text_printf(&t, "%s\"%c\": %d", n ? ", " : "", *c, n), n++;
    ml_text_printf(&t, ", \"\xc4\xa0\": %d, \"\xc4\x8a\": %d}, \"merges\": []}}", n, n + 1);
    ml_toy_file("model/tokenizer.json", t.ptr);
    ml_text_release(&t);
}

void ml_toy_model(const char *template) {
    ml_err err = { 0 };
    must(ml_dir_make(ml_test_path("model"), &err), &err);
    copy_file(MODEL "/config.json", "model/config.json");
    copy_file(MODEL "/model.safetensors", "model/model.safetensors");
    write_tokenizer();
    ml_toy_file("model/chat_template.jinja", template);
}
