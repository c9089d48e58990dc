#include "io/pickle_json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/base64.h"
#include "base/json.h"

typedef struct writer {
    ml_text *out;
    const char *name;
    ml_err *err;
} writer;

static ml_status write_value(writer *w, const ml_pickle *v);

/* Two's complement of any length, in decimal: repeated division by 10. */
static void write_long(ml_text *out, ml_str s) {
    unsigned char b[ML_PICKLE_LONG_BYTES];
    char digits[3 * ML_PICKLE_LONG_BYTES];
    size_t n = s.len, at = sizeof digits;
    bool minus = s.ptr[s.len - 1] & 0x80;
    unsigned carry = 1;

    memcpy(b, s.ptr, n);
    for (size_t i = 0; minus && i < n; i++) {
        carry += (unsigned char)~b[i];
        b[i] = (unsigned char)carry;
        carry >>= 8;
    }
    while (n > 0) {
        unsigned rest = 0;
        for (size_t i = n; i > 0; i--) {
            rest = rest << 8 | b[i - 1];
            b[i - 1] = (unsigned char)(rest / 10);
            rest %= 10;
        }
        digits[--at] = (char)('0' + rest);
        while (n > 0 && b[n - 1] == 0)
            n--;
    }
    ml_text_printf(out, "%s%.*s", minus ? "-" : "", (int)(sizeof digits - at), digits + at);
}

static void write_float(ml_text *out, double x) {
    if (isnan(x))
        ml_text_printf(out, "NaN");
    else if (isinf(x))
        ml_text_printf(out, "%sInfinity", x < 0 ? "-" : "");
    else
        ml_json_number(out, x);
}

static void write_b64(ml_text *out, const char *bytes, size_t n) {
    ml_text_printf(out, "{\"b64\": \"");
    ml_base64_write(out, bytes, n);
    ml_text_printf(out, "\"}");
}

static ml_status write_items(writer *w, const ml_pickle *v) {
    ml_status st = ML_OK;

    ml_text_printf(w->out, "[");
    for (int32_t i = 0; i < v->n && st == ML_OK; i++) {
        ml_text_printf(w->out, "%s", i ? ", " : "");
        st = write_value(w, v->item[i]);
    }
    ml_text_printf(w->out, "]");
    return st;
}

/* As json.dumps spells keys that are no text. */
static ml_status write_key(writer *w, const ml_pickle *v) {
    if (v->type == ML_PICKLE_STR)
        ml_json_quote(w->out, v->text);
    else if (v->type == ML_PICKLE_INT)
        ml_text_printf(w->out, "\"%" PRId64 "\"", v->i);
    else if (v->type == ML_PICKLE_BOOL)
        ml_text_printf(w->out, "\"%s\"", v->i ? "true" : "false");
    else if (v->type == ML_PICKLE_NONE)
        ml_text_printf(w->out, "\"null\"");
    else if (v->type == ML_PICKLE_FLOAT) {
        ml_text_printf(w->out, "\"");
        write_float(w->out, v->f);
        ml_text_printf(w->out, "\"");
    } else
        return ml_fail(w->err, ML_EUNSUP,
                       "%s: byte %zu of the pickle: a dict has a key that is %s; text and "
                       "numbers can be read",
                       w->name, v->at, ml_pickle_what(v));
    return ML_OK;
}

static ml_status write_dict(writer *w, const ml_pickle *v) {
    ml_status st = ML_OK;

    ml_text_printf(w->out, "{");
    for (int32_t i = 0; i + 1 < v->n && st == ML_OK; i += 2) {
        ml_text_printf(w->out, "%s", i ? ", " : "");
        st = write_key(w, v->item[i]);
        ml_text_printf(w->out, ": ");
        if (st == ML_OK)
            st = write_value(w, v->item[i + 1]);
    }
    ml_text_printf(w->out, "}");
    return st;
}

/* _codecs.encode(text, "latin1"): how protocol 2 stores bytes. */
static bool write_latin1(writer *w, const ml_pickle *v) {
    const ml_pickle *text = ml_pickle_arg(v, 0);
    ml_text bytes = { 0 };

    if (!ml_pickle_is_call(v, "_codecs.encode") || !text || text->type != ML_PICKLE_STR ||
        !ml_pickle_is_str(ml_pickle_arg(v, 1), "latin1"))
        return false;
    for (size_t i = 0; i < text->text.len; i++) {
        unsigned char c = (unsigned char)text->text.ptr[i], byte = c;
        if (c >= 0xc0 && i + 1 < text->text.len)
            byte = (unsigned char)(c << 6 | (text->text.ptr[++i] & 0x3f));
        ml_text_add(&bytes, (const char *)&byte, 1);
    }
    write_b64(w->out, bytes.ptr, bytes.len);
    ml_text_release(&bytes);
    return true;
}

static bool is_sequence_class(const ml_pickle *v) {
    static const char *const names[] = {
        "__builtin__.set",    "builtins.set", "__builtin__.frozenset",
        "builtins.frozenset", "torch.Size",   "collections.deque"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ml_pickle_is_call(v, names[i]))
            return true;
    return false;
}

static ml_status write_call(writer *w, const ml_pickle *v) {
    const ml_pickle *arg = ml_pickle_arg(v, 0), *items = ml_pickle_items(v);

    if (write_latin1(w, v))
        return ML_OK;
    if (ml_pickle_is_call(v, "_codecs.encode") ||
        ml_pickle_is_call(v, "__builtin__.bytes")) {
        write_b64(w->out, "", 0);
        return ML_OK;
    }
    if (items)
        return write_value(w, items);
    if (is_sequence_class(v)) {
        if (arg && ml_pickle_items(arg))
            return write_items(w, ml_pickle_items(arg));
        ml_text_printf(w->out, "[]");
        return ML_OK;
    }
    if (ml_pickle_is_call(v, "collections.OrderedDict") ||
        ml_pickle_is_call(v, "collections.defaultdict")) {
        ml_text_printf(w->out, "{}");
        return ML_OK;
    }
    if (v->call->state && v->call->state->type == ML_PICKLE_DICT)
        return write_dict(w, v->call->state);
    return ml_fail(
        w->err, ML_EUNSUP,
        "%s: byte %zu of the pickle: a value of %s cannot be read as data", w->name, v->at,
        v->call->fn->type == ML_PICKLE_GLOBAL ? v->call->fn->text.ptr : "an unnamed class");
}

static ml_status write_value(writer *w, const ml_pickle *v) {
    switch ((ml_pickle_type)v->type) {
    case ML_PICKLE_NONE: ml_text_printf(w->out, "null"); return ML_OK;
    case ML_PICKLE_BOOL: ml_text_printf(w->out, v->i ? "true" : "false"); return ML_OK;
    case ML_PICKLE_INT: ml_text_printf(w->out, "%" PRId64, v->i); return ML_OK;
    case ML_PICKLE_LONG: write_long(w->out, v->text); return ML_OK;
    case ML_PICKLE_FLOAT: write_float(w->out, v->f); return ML_OK;
    case ML_PICKLE_GLOBAL:
    case ML_PICKLE_STR: ml_json_quote(w->out, v->text); return ML_OK;
    case ML_PICKLE_BYTES: write_b64(w->out, v->text.ptr, v->text.len); return ML_OK;
    case ML_PICKLE_LIST:
    case ML_PICKLE_TUPLE:
    case ML_PICKLE_SET: return write_items(w, v);
    case ML_PICKLE_DICT: return write_dict(w, v);
    case ML_PICKLE_CALL: return write_call(w, v);
    case ML_PICKLE_PERSISTENT: break;
    }
    return ml_fail(
        w->err, ML_EUNSUP,
        "%s: byte %zu of the pickle: a storage was found where data was expected", w->name,
        v->at);
}

ml_status ml_pickle_json(ml_text *out, const ml_pickle *v, const char *name, ml_err *err) {
    writer w = { .out = out, .name = name, .err = err };
    return write_value(&w, v);
}
