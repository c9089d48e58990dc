/* tokenizer.json.  Unknown types, values and top-level keys are rejected by name.  Unknown
 * keys of a component are ignored, as in the reference library. */

#include <string.h>

#include "base/bug.h"
#include "text/tokenizer/tok_load.h"

/* --- lists of components ---------------------------------------------------- */

/* The name of a type, and the function that reads it. */
typedef struct kind {
    const char *name;
    int type;
    ml_status (*read)(ml_tok_loader *l, const ml_json *obj, int type);
} kind;

typedef struct section {
    const char *name;  /* the key in tokenizer.json */
    const char *list;  /* the key of the list in a Sequence */
    const kind *kinds; /* ends with an entry without a name */
} section;

static ml_status unknown_type(ml_tok_loader *l, const section *s, const ml_json *at,
                              ml_str type) {
    ml_text names = { 0 };
    ml_status st;

    for (const kind *k = s->kinds; k->name; k++)
        ml_text_printf(&names, "%s, ", k->name);
    st = ml_tok_bad(l, ML_EUNSUP, at,
                    "%s type \"%.*s\" is not supported; supported are %sSequence", s->name,
                    type.len > 100 ? 100 : (int)type.len, type.ptr, names.ptr);
    ml_text_release(&names);
    return st;
}

/* The reference library identifies post-processors by their keys before it reads the type:
 * "cls" and "sep" make any of them RobertaProcessing or BertProcessing, and the keys of a
 * template make a Sequence TemplateProcessing. */
static ml_status check_shape(ml_tok_loader *l, const section *s, const ml_json *obj,
                             ml_str type) {
    bool cls = ml_json_get(obj, "cls") && ml_json_get(obj, "sep");
    bool template = ml_str_is(type, "Sequence") && ml_json_get(obj, "single") &&
                    ml_json_get(obj, "pair") && ml_json_get(obj, "special_tokens");

    if (strcmp(s->name, "post_processor") != 0 || (!cls && !template))
        return ML_OK;
    return ml_tok_bad(
        l, ML_EUNSUP, obj,
        "post_processor \"%.*s\" has the keys of %s, and the reference library reads it as "
        "such: remove them",
        type.len > 100 ? 100 : (int)type.len, type.ptr,
        cls ? "RobertaProcessing (\"cls\", \"sep\")"
            : "TemplateProcessing (\"single\", \"pair\", \"special_tokens\")");
}

static ml_status read_component(ml_tok_loader *l, const section *s, const ml_json *obj,
                                int depth) {
    const ml_json *type = ml_json_get(obj, "type"), *list;
    ml_status st = ML_OK;

    if (ml_tok_is_null(obj))
        return ML_OK;
    if (!type || type->type != ML_JSON_STRING)
        return ml_tok_bad(l, ML_EFORMAT, obj, "%s must be an object with a \"type\"",
                          s->name);
    st = check_shape(l, s, obj, type->text);
    if (st != ML_OK)
        return st;
    if (ml_str_is(type->text, "Sequence")) {
        list = ml_json_get(obj, s->list);
        if (!list || list->type != ML_JSON_ARRAY || depth > 8)
            return ml_tok_bad(l, ML_EFORMAT, obj, "%s: a Sequence must have a list \"%s\"",
                              s->name, s->list);
        for (const ml_json *c = list->child; c && st == ML_OK; c = c->next)
            st = read_component(l, s, c, depth + 1);
        return st;
    }
    for (const kind *k = s->kinds; k->name; k++) {
        if (ml_str_is(type->text, k->name))
            return k->read(l, obj, k->type);
    }
    return unknown_type(l, s, type, type->text);
}

static ml_status too_many(ml_tok_loader *l, const ml_json *at, const char *what) {
    return ml_tok_bad(l, ML_EUNSUP, at, "more than %d %s", ML_TOK_STAGES, what);
}

/* --- patterns --------------------------------------------------------------- */

/* {"String": "..."} or {"Regex": "..."}. */
static ml_status read_pattern(ml_tok_loader *l, const ml_json *obj, ml_pattern *out) {
    const ml_json *v = ml_json_get(obj, "pattern"), *what = v ? v->child : NULL;
    ml_str text;
    ml_status st;

    *out = (ml_pattern){ 0 };
    if (!v || v->type != ML_JSON_OBJECT || v->n != 1 || what->type != ML_JSON_STRING)
        return ml_tok_bad(l, ML_EFORMAT, v ? v : obj,
                          "\"pattern\" must be {\"String\": ...} or {\"Regex\": ...}");
    if (!what->text.len)
        return ml_tok_bad(l, ML_EUNSUP, what, "an empty pattern is not supported");
    text = (ml_str){ ml_arena_str(&l->t->arena, what->text.ptr, what->text.len),
                     what->text.len };
    if (ml_str_is(what->key, "String")) {
        out->literal = text;
        return ML_OK;
    }
    if (!ml_str_is(what->key, "Regex"))
        return ml_tok_bad(l, ML_EUNSUP, what,
                          "pattern type \"%.*s\" is not supported; supported "
                          "are String and Regex",
                          (int)what->key.len, what->key.ptr);
    st = ml_regex_new(&out->regex, &l->t->unicode, text, l->err);
    if (st != ML_OK) {
        ml_err_prefix(l->err, "%s:%u", l->t->name, (unsigned)what->line);
        return st;
    }
    ml_scan_choose(out, text, &l->t->unicode);
    return ML_OK;
}

/* --- normalizers ------------------------------------------------------------ */

static ml_status read_norm(ml_tok_loader *l, const ml_json *obj, int type) {
    ml_norm *n = &l->t->norm[l->t->n_norm];
    ml_status st = ML_OK;

    if (l->t->n_norm == ML_TOK_STAGES)
        return too_many(l, obj, "normalizers");
    *n = (ml_norm){ .type = (ml_norm_type)type };
    l->t->n_norm++;
    if (type == ML_NORM_REPLACE) {
        st = read_pattern(l, obj, &n->pattern);
        if (st == ML_OK)
            st = ml_tok_get_str(l, obj, "content", &n->content);
    } else if (type == ML_NORM_PREPEND) {
        st = ml_tok_need_str(l, obj, "prepend", &n->content);
    } else if (type == ML_NORM_STRIP) {
        st = ml_tok_get_bool(l, obj, "strip_left", true, &n->left);
        if (st == ML_OK)
            st = ml_tok_get_bool(l, obj, "strip_right", true, &n->right);
    }
    return st;
}

static const kind norm_kinds[] = {
    { "NFC", ML_NORM_NFC, read_norm },
    { "NFD", ML_NORM_NFD, read_norm },
    { "NFKC", ML_NORM_NFKC, read_norm },
    { "NFKD", ML_NORM_NFKD, read_norm },
    { "Replace", ML_NORM_REPLACE, read_norm },
    { "Prepend", ML_NORM_PREPEND, read_norm },
    { "Lowercase", ML_NORM_LOWERCASE, read_norm },
    { "Strip", ML_NORM_STRIP, read_norm },
    { "StripAccents", ML_NORM_STRIP_ACCENTS, read_norm },
    { 0 },
};

/* --- pre-tokenizers --------------------------------------------------------- */

static ml_status read_behavior(ml_tok_loader *l, const ml_json *obj, ml_split absent,
                               ml_split *out) {
    static const struct {
        const char *name;
        ml_split value;
    } rows[] = {
        { "Removed", ML_SPLIT_REMOVED },
        { "Isolated", ML_SPLIT_ISOLATED },
        { "MergedWithPrevious", ML_SPLIT_WITH_PREVIOUS },
        { "MergedWithNext", ML_SPLIT_WITH_NEXT },
        { "Contiguous", ML_SPLIT_CONTIGUOUS },
    };
    ml_str name;
    ml_status st = ml_tok_get_str(l, obj, "behavior", &name);

    *out = absent;
    if (st != ML_OK || !name.ptr)
        return st;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ml_str_is(name, rows[i].name)) {
            *out = rows[i].value;
            return ML_OK;
        }
    return ml_tok_bad(
        l, ML_EUNSUP, obj,
        "behavior \"%.*s\" is not supported; supported are Removed, Isolated, "
        "MergedWithPrevious, MergedWithNext, Contiguous",
        (int)name.len, name.ptr);
}

static ml_status next_pre(ml_tok_loader *l, const ml_json *obj, int type, ml_pre **out) {
    ml_tokenizer *t = l->t;

    if (t->n_pre == ML_TOK_STAGES)
        return too_many(l, obj, "pre-tokenizers");
    if (t->n_pre && t->pre[t->n_pre - 1].type == ML_PRE_BYTE_LEVEL)
        return ml_tok_bad(l, ML_EUNSUP, obj,
                          "a pre-tokenizer after ByteLevel is not supported");
    *out = &t->pre[t->n_pre++];
    **out = (ml_pre){ .type = (ml_pre_type)type };
    return ML_OK;
}

static ml_status read_split(ml_tok_loader *l, const ml_json *obj, int type) {
    ml_pre *s = NULL;
    ml_status st = next_pre(l, obj, type, &s);

    if (st == ML_OK)
        st = read_pattern(l, obj, &s->pattern);
    if (st == ML_OK)
        st = read_behavior(l, obj, ML_SPLIT_ISOLATED, &s->behavior);
    if (st == ML_OK)
        st = ml_tok_get_bool(l, obj, "invert", false, &s->invert);
    return st;
}

static ml_status read_byte_level(ml_tok_loader *l, const ml_json *obj, int type) {
    ml_pre *s = NULL;
    ml_status st = next_pre(l, obj, type, &s);

    if (st == ML_OK)
        st = ml_tok_get_bool(l, obj, "add_prefix_space", true, &s->prefix_space);
    if (st == ML_OK)
        st = ml_tok_get_bool(l, obj, "use_regex", true, &s->use_regex);
    if (st == ML_OK && s->use_regex)
        ml_scan_choose(&s->pattern, ml_str_of(ml_scan_gpt2), &l->t->unicode);
    return st;
}

static ml_status read_plain_pre(ml_tok_loader *l, const ml_json *obj, int type) {
    ml_pre *s = NULL;
    bool individual = false;
    ml_status st = next_pre(l, obj, type, &s);

    if (st == ML_OK)
        st = read_behavior(l, obj, ML_SPLIT_ISOLATED, &s->behavior);
    if (st == ML_OK && type == ML_PRE_DIGITS) {
        st = ml_tok_get_bool(l, obj, "individual_digits", false, &individual);
        s->behavior = individual ? ML_SPLIT_ISOLATED : ML_SPLIT_CONTIGUOUS;
    }
    return st;
}

/* The prepend scheme of Metaspace, as pre-tokenizer and as decoder. */
static ml_status read_metaspace_options(ml_tok_loader *l, const ml_json *obj, ml_str *mark,
                                        ml_prepend *out) {
    ml_str scheme;
    bool prefix;
    const char *p;
    ml_status st = ml_tok_need_str(l, obj, "replacement", mark);

    if (st == ML_OK)
        st = ml_tok_get_str(l, obj, "prepend_scheme", &scheme);
    if (st == ML_OK)
        st = ml_tok_get_bool(l, obj, "add_prefix_space", true, &prefix);
    if (st != ML_OK)
        return st;
    p = mark->ptr;
    ml_utf8_next(&p);
    if (p != mark->ptr + mark->len)
        return ml_tok_bad(l, ML_EFORMAT, obj, "\"replacement\" must be one character");
    if (!scheme.ptr)
        *out = prefix ? ML_PREPEND_ALWAYS : ML_PREPEND_NEVER;
    else if (ml_str_is(scheme, "always"))
        *out = ML_PREPEND_ALWAYS;
    else if (ml_str_is(scheme, "first"))
        *out = ML_PREPEND_FIRST;
    else if (ml_str_is(scheme, "never"))
        *out = ML_PREPEND_NEVER;
    else
        return ml_tok_bad(
            l, ML_EUNSUP, obj,
            "prepend_scheme \"%.*s\" is not supported; supported are always, first, "
            "never",
            (int)scheme.len, scheme.ptr);
    return ML_OK;
}

static ml_status read_metaspace(ml_tok_loader *l, const ml_json *obj, int type) {
    ml_pre *s = NULL;
    ml_status st = next_pre(l, obj, type, &s);

    if (st == ML_OK)
        st = read_metaspace_options(l, obj, &s->replacement, &s->prepend);
    if (st == ML_OK)
        st = ml_tok_get_bool(l, obj, "split", true, &s->split);
    l->t->always_track |= st == ML_OK && s->prepend == ML_PREPEND_FIRST;
    return st;
}

static const kind pre_kinds[] = {
    { "Split", ML_PRE_SPLIT, read_split },
    { "ByteLevel", ML_PRE_BYTE_LEVEL, read_byte_level },
    { "Metaspace", ML_PRE_METASPACE, read_metaspace },
    { "Digits", ML_PRE_DIGITS, read_plain_pre },
    { "Punctuation", ML_PRE_PUNCT, read_plain_pre },
    { "WhitespaceSplit", ML_PRE_SPACE_SPLIT, read_plain_pre },
    { "Whitespace", ML_PRE_WORDS, read_plain_pre },
    { 0 },
};

/* --- decoders --------------------------------------------------------------- */

static bool fuses(const ml_dec *d) {
    return d->type == ML_DEC_FUSE || d->type == ML_DEC_BYTE_LEVEL || d->whole;
}

static ml_status read_dec(ml_tok_loader *l, const ml_json *obj, int type) {
    ml_tokenizer *t = l->t;
    bool fused = t->n_dec && fuses(&t->dec[t->n_dec - 1]);
    ml_dec *d = &t->dec[t->n_dec];
    ml_prepend prepend = ML_PREPEND_NEVER;
    ml_status st = ML_OK;

    if (t->n_dec == ML_TOK_STAGES)
        return too_many(l, obj, "decoders");
    if (fused && type != ML_DEC_STRIP && type != ML_DEC_FUSE)
        return ml_tok_bad(
            l, ML_EUNSUP, obj,
            "after a decoder that joins all tokens (Fuse, ByteLevel), only Strip is "
            "supported");
    *d = (ml_dec){ .type = (ml_dec_type)type };
    t->n_dec++;
    if (type == ML_DEC_REPLACE) {
        st = read_pattern(l, obj, &d->pattern);
        if (st == ML_OK && d->pattern.regex)
            return ml_tok_bad(l, ML_EUNSUP, obj,
                              "a decoder Replace with a Regex is not supported");
        if (st == ML_OK)
            st = ml_tok_get_str(l, obj, "content", &d->content);
    } else if (type == ML_DEC_METASPACE) {
        st = read_metaspace_options(l, obj, &d->content, &prepend);
        d->prefix = st == ML_OK && prepend != ML_PREPEND_NEVER;
    } else if (type == ML_DEC_STRIP) {
        st = ml_tok_need_str(l, obj, "content", &d->content);
        d->whole = fused;
        if (st == ML_OK && (!ml_json_i64(ml_json_get(obj, "start"), &d->start) ||
                            !ml_json_i64(ml_json_get(obj, "stop"), &d->stop) ||
                            d->start < 0 || d->stop < 0))
            return ml_tok_bad(l, ML_EFORMAT, obj,
                              "Strip: \"start\" and \"stop\" must be counts");
    }
    return st;
}

static const kind dec_kinds[] = {
    { "ByteLevel", ML_DEC_BYTE_LEVEL, read_dec },
    { "ByteFallback", ML_DEC_BYTE_FALLBACK, read_dec },
    { "Fuse", ML_DEC_FUSE, read_dec },
    { "Replace", ML_DEC_REPLACE, read_dec },
    { "Strip", ML_DEC_STRIP, read_dec },
    { "Metaspace", ML_DEC_METASPACE, read_dec },
    { 0 },
};

/* --- post-processors -------------------------------------------------------- */

static ml_status read_post_byte_level(ml_tok_loader *l, const ml_json *obj, int type) {
    (void)type;
    ml_status st = ml_tok_get_bool(l, obj, "trim_offsets", true, &l->t->trim_spans);
    if (st == ML_OK)
        st = ml_tok_get_bool(l, obj, "add_prefix_space", true, &l->t->trim_prefix_space);
    return st;
}

static ml_status read_special_piece(ml_tok_loader *l, const ml_json *special,
                                    const ml_json *piece, ml_template_piece *out) {
    const ml_json *name = ml_json_get(piece, "id"), *row = NULL, *ids;
    int32_t *id;

    if (name && name->type == ML_JSON_STRING && special && special->type == ML_JSON_OBJECT)
        for (row = special->child; row && !ml_str_eq(row->key, name->text); row = row->next)
            continue;
    ids = ml_json_get(row, "ids");
    if (!ids || ids->type != ML_JSON_ARRAY)
        return ml_tok_bad(
            l, ML_EFORMAT, piece,
            "TemplateProcessing: this special token has no ids in special_tokens");
    id = ML_NEW(&l->t->arena, int32_t, ids->n + 1);
    for (const ml_json *v = ids->child; v; v = v->next) {
        int64_t n;
        if (!ml_json_i64(v, &n) || n < 0 || n >= ML_TOK_MAX_ID)
            return ml_tok_bad(l, ML_EFORMAT, v, "TemplateProcessing: expected an id");
        id[out->n++] = (int32_t)n;
    }
    out->id = id;
    return ML_OK;
}

static ml_status read_template(ml_tok_loader *l, const ml_json *obj, int type) {
    const ml_json *single = ml_json_get(obj, "single"), *piece;
    ml_tokenizer *t = l->t;
    int n_text = 0;
    ml_status st = ML_OK;

    (void)type;
    if (!single || single->type != ML_JSON_ARRAY)
        return ml_tok_bad(l, ML_EFORMAT, obj,
                          "TemplateProcessing: \"single\" must be a list");
    if (t->has_template)
        return ml_tok_bad(l, ML_EUNSUP, obj,
                          "a second TemplateProcessing is not supported");
    t->has_template = true;
    t->piece = ML_NEW(&t->arena, ml_template_piece, single->n + 1);
    for (piece = single->child; piece && st == ML_OK; piece = piece->next) {
        const ml_json *special = ml_json_get(piece, "SpecialToken");
        const ml_json *text = ml_json_get(piece, "Sequence"), *id = ml_json_get(text, "id");
        ml_template_piece *out = &t->piece[t->n_piece++];
        if (special) {
            st = read_special_piece(l, ml_json_get(obj, "special_tokens"), special, out);
        } else if (id && id->type == ML_JSON_STRING && ml_str_is(id->text, "A")) {
            out->is_text = true;
            n_text++;
        } else {
            st = ml_tok_bad(l, ML_EUNSUP, piece,
                            "TemplateProcessing: a piece of \"single\" must "
                            "be a SpecialToken or the Sequence A");
        }
    }
    if (st == ML_OK && n_text != 1)
        st = ml_tok_bad(l, ML_EUNSUP, single,
                        "TemplateProcessing: \"single\" must have the "
                        "Sequence A exactly once");
    return st;
}

static const kind post_kinds[] = {
    { "TemplateProcessing", 0, read_template },
    { "ByteLevel", 0, read_post_byte_level },
    { 0 },
};

/* --- added tokens ----------------------------------------------------------- */

static ml_status read_added(ml_tok_loader *l, const ml_json *list) {
    ml_status st = ML_OK;

    if (ml_tok_is_null(list))
        return ML_OK;
    if (list->type != ML_JSON_ARRAY)
        return ml_tok_bad(l, ML_EFORMAT, list, "\"added_tokens\" must be a list");
    for (const ml_json *c = list->child; c && st == ML_OK; c = c->next) {
        ml_added a = { 0 };
        if (c->type != ML_JSON_OBJECT)
            return ml_tok_bad(l, ML_EFORMAT, c, "an added token must be an object");
        st = ml_tok_get_str(l, c, "content", &a.content);
        if (st == ML_OK)
            st = ml_tok_get_bool(l, c, "special", false, &a.special);
        if (st == ML_OK)
            st = ml_tok_get_bool(l, c, "single_word", false, &a.single_word);
        if (st == ML_OK)
            st = ml_tok_get_bool(l, c, "lstrip", false, &a.lstrip);
        if (st == ML_OK)
            st = ml_tok_get_bool(l, c, "rstrip", false, &a.rstrip);
        if (st == ML_OK)
            st = ml_tok_get_bool(l, c, "normalized", !a.special, &a.normalized);
        if (st == ML_OK)
            ml_added_add(l->t, &a);
    }
    return st;
}

/* --- all of it -------------------------------------------------------------- */

static ml_status finish(ml_tok_loader *l) {
    ml_tokenizer *t = l->t;
    ml_bpe *b = &t->bpe;

    b->by_bytes = b->spelled = t->n_pre && t->pre[t->n_pre - 1].type == ML_PRE_BYTE_LEVEL;
    if (b->by_bytes && (b->prefix.len || b->suffix.len))
        return ml_tok_bad(
            l, ML_EUNSUP, NULL,
            "continuing_subword_prefix and end_of_word_suffix are not supported "
            "together with ByteLevel");
    ml_bpe_finish(b, &t->arena);
    if (!t->n_dec)
        t->dec[t->n_dec++].type = ML_DEC_JOIN;
    return ML_OK;
}

static ml_status read_root(ml_tok_loader *l, const ml_json *root) {
    static const char keys[] = "version|truncation|padding|added_tokens|normalizer|"
                               "pre_tokenizer|post_processor|decoder|model";
    static const section sections[] = {
        { "normalizer", "normalizers", norm_kinds },
        { "pre_tokenizer", "pretokenizers", pre_kinds },
        { "post_processor", "processors", post_kinds },
        { "decoder", "decoders", dec_kinds },
    };
    ml_status st;

    if (root->type != ML_JSON_OBJECT)
        return ml_tok_bad(l, ML_EFORMAT, root, "expected an object");
    st = ml_tok_check_keys(l, root, keys);
    if (st == ML_OK)
        st = ml_tok_read_model(l, ml_json_get(root, "model"));
    for (size_t i = 0; i < sizeof sections / sizeof *sections && st == ML_OK; i++)
        st = read_component(l, &sections[i], ml_json_get(root, sections[i].name), 0);
    if (st == ML_OK)
        st = read_added(l, ml_json_get(root, "added_tokens"));
    return st == ML_OK ? finish(l) : st;
}

ml_status ml_tokenizer_read_json(ml_tokenizer *t, ml_str json, ml_err *err) {
    ml_tok_loader l = { t, err };
    const ml_json *root;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "tokenizer.json");
    st = ml_json_parse(&root, &a, json, t->name, err);
    if (st == ML_OK)
        st = read_root(&l, root);
    ml_arena_release(&a);
    return st;
}
