#include "serve/response_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/oom.h"

typedef struct entry {
    struct entry *next; /* the next newer one */
    ml_str id, reply, messages;
    char text[]; /* of all three */
} entry;

struct ml_response_store {
    pthread_mutex_t lock;
    entry *oldest, *newest;
    size_t n, bytes;
};

ml_response_store *ml_response_store_new(void) {
    ml_response_store *s = ml_memory_grow(NULL, sizeof *s, "stored responses");

    *s = (ml_response_store){ 0 };
    ML_BUG_IF(pthread_mutex_init(&s->lock, NULL));
    return s;
}

static size_t size_of(const entry *e) {
    return sizeof *e + e->id.len + e->reply.len + e->messages.len;
}

/* `at` is the link that points to the entry, `before` the entry of that link. */
static void drop(ml_response_store *s, entry **at, entry *before) {
    entry *e = *at;

    *at = e->next;
    if (s->newest == e)
        s->newest = before;
    s->n--;
    s->bytes -= size_of(e);
    free(e);
}

void ml_response_store_free(ml_response_store *s) {
    if (!s)
        return;
    while (s->oldest)
        drop(s, &s->oldest, NULL);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static ml_str put(char **at, ml_str s) {
    ml_str kept = { *at, s.len };

    memcpy(*at, s.ptr, s.len);
    *at += s.len;
    return kept;
}

void ml_response_store_add(ml_response_store *s, const char *id, ml_str reply,
                           ml_str messages) {
    entry *e = malloc(sizeof *e + strlen(id) + reply.len + messages.len);
    char *at = e ? e->text : NULL;

    if (!e)
        return;
    e->next = NULL;
    e->id = put(&at, ml_str_of(id));
    e->reply = put(&at, reply);
    e->messages = put(&at, messages);
    pthread_mutex_lock(&s->lock);
    *(s->newest ? &s->newest->next : &s->oldest) = e;
    s->newest = e;
    s->n++;
    s->bytes += size_of(e);
    while (s->oldest && (s->n > ML_RESPONSES_MAX || s->bytes > ML_RESPONSES_BYTES))
        drop(s, &s->oldest, NULL);
    pthread_mutex_unlock(&s->lock);
}

static const entry *find(const ml_response_store *s, ml_str id) {
    const entry *e = s->oldest;

    while (e && !ml_str_eq(e->id, id))
        e = e->next;
    return e;
}

/* A text that grows may leave this function (base/oom.h): not with the lock. */
static bool copy(ml_response_store *s, ml_str id, bool reply, ml_text *out) {
    const entry *e;
    ml_str from = { 0 };
    char *kept = NULL;

    pthread_mutex_lock(&s->lock);
    e = find(s, id);
    if (e) {
        from = reply ? e->reply : e->messages;
        kept = malloc(from.len + 1);
        if (kept)
            memcpy(kept, from.ptr, from.len);
    }
    pthread_mutex_unlock(&s->lock);
    if (kept)
        ml_text_add(out, kept, from.len);
    free(kept);
    return kept != NULL;
}

bool ml_response_store_reply(ml_response_store *s, ml_str id, ml_text *out) {
    return copy(s, id, true, out);
}

bool ml_response_store_messages(ml_response_store *s, ml_str id, ml_text *out) {
    return copy(s, id, false, out);
}

bool ml_response_store_delete(ml_response_store *s, ml_str id) {
    entry **at = &s->oldest, *before = NULL;
    bool found;

    pthread_mutex_lock(&s->lock);
    while (*at && !ml_str_eq((*at)->id, id)) {
        before = *at;
        at = &(*at)->next;
    }
    found = *at != NULL;
    if (found)
        drop(s, at, before);
    pthread_mutex_unlock(&s->lock);
    return found;
}
