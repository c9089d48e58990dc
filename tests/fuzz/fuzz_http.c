/* Any bytes: read as requests or replies without a fault, and the same in whatever pieces
 * they come.  The first byte says which side reads, and where the pieces are cut. */
#include <stdint.h>
#include <string.h>

#include "base/bug.h"
#include "net/http_reader.h"
#include "net/sse.h"

#define MAX_HEADER 2000
#define MAX_BODY 4000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a reader saw, written down: heads, bodies, ends and the reason for refusing. */
typedef struct parse_log {
    ml_http_reader reader;
    ml_text seen;
    bool broken;
} parse_log;

static void note_head(parse_log *w) {
    const ml_http_reader *r = &w->reader;

    ml_text_printf(&w->seen, "<%.*s %.*s %d %d", (int)r->method.len, r->method.ptr,
                   (int)r->target.len, r->target.ptr, r->status, (int)r->framing);
    ML_BUG_IF(r->n_field > ML_HTTP_MAX_FIELDS);
    for (int i = 0; i < r->n_field; i++) {
        const ml_http_field *f = &r->field[i];
        ML_BUG_IF(f->name.len == 0 || memchr(f->value.ptr, '\n', f->value.len));
        ml_text_printf(&w->seen, "|%.*s=%.*s", (int)f->name.len, f->name.ptr,
                       (int)f->value.len, f->value.ptr);
    }
    ml_text_printf(&w->seen, ">");
}

static void push(parse_log *w, ml_str bytes) {
    while (!w->broken) {
        ml_str piece, before = bytes;
        ml_http_event e = ml_http_reader_next(&w->reader, &bytes, &piece);

        ML_BUG_IF(bytes.len > before.len ||
                  bytes.ptr + bytes.len != before.ptr + before.len);
        ML_BUG_IF(w->reader.body_bytes > MAX_BODY && !w->reader.reply);
        if (e == ML_HTTP_HEAD)
            note_head(w);
        else if (e == ML_HTTP_DATA) {
            ML_BUG_IF(piece.len == 0 || piece.ptr != bytes.ptr - piece.len);
            ml_text_add(&w->seen, piece.ptr, piece.len);
        } else if (e == ML_HTTP_END) {
            ml_text_printf(&w->seen, "<end>");
            ml_http_reader_begin(&w->reader);
        } else if (e == ML_HTTP_BAD) {
            ML_BUG_IF(w->reader.refusal < 400 || !w->reader.why);
            ml_text_printf(&w->seen, "<%s>", w->reader.why);
            w->broken = true;
        } else if (bytes.len == 0)
            break;
    }
}

static void begin(parse_log *w, bool reply) {
    ml_http_reader_init(&w->reader, reply, MAX_HEADER, MAX_BODY);
    ml_text_add(&w->seen, "", 0);
}

static void end(parse_log *w) {
    ml_http_reader_release(&w->reader);
    ml_text_release(&w->seen);
}

static void add_event(void *ud, ml_str data) {
    ml_text_add(ud, data.ptr, data.len);
    ml_text_add(ud, "|", 1);
}

static void check_events(ml_str all, size_t step) {
    ml_sse one = { 0 }, many = { 0 };
    ml_text a = { 0 }, b = { 0 };

    ml_sse_push(&one, all, add_event, &a);
    for (size_t i = 0; i < all.len; i += step)
        ml_sse_push(&many, (ml_str){ all.ptr + i, all.len - i < step ? all.len - i : step },
                    add_event, &b);
    ML_BUG_IF(a.len != b.len || (a.len && memcmp(a.ptr, b.ptr, a.len) != 0));
    ml_sse_release(&one);
    ml_sse_release(&many);
    ml_text_release(&a);
    ml_text_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    parse_log whole = { 0 }, cut = { 0 };
    ml_str all;
    size_t step;

    if (size < 1)
        return 0;
    all = (ml_str){ (const char *)data + 1, size - 1 };
    step = (size_t)(data[0] >> 1) % 16 + 1;
    begin(&whole, data[0] & 1);
    begin(&cut, data[0] & 1);
    push(&whole, all);
    for (size_t i = 0; i < all.len; i += step)
        push(&cut, (ml_str){ all.ptr + i, all.len - i < step ? all.len - i : step });
    ML_BUG_IF(whole.broken != cut.broken);
    /* A refusal may come earlier in smaller pieces, but for the same reason. */
    ML_BUG_IF(whole.seen.len != cut.seen.len ||
              memcmp(whole.seen.ptr, cut.seen.ptr, whole.seen.len) != 0);
    end(&whole);
    end(&cut);
    check_events(all, step);
    return 0;
}
