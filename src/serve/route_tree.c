#include "serve/route_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct node {
    struct node *parent, *child, *sibling; /* child: the first child */
    struct node *newer, *older;            /* LRU list */
    uint64_t worker;
    size_t len;
    char *edge; /* [len] the bytes between the parent and this node */
} node;

struct ml_route_tree {
    node root; /* has no edge and is not in the LRU list */
    node *newest, *oldest;
    size_t bytes, max_bytes;
};

static void *must(void *p) {
    if (!p) {
        fprintf(stderr, "miles: out of memory for the router's tree of prompts\n");
        exit(1);
    }
    return p;
}

/* --- LRU list --------------------------------------------------------------- */

static void leave_order(ml_route_tree *t, node *n) {
    if (n->newer)
        n->newer->older = n->older;
    else
        t->newest = n->older;
    if (n->older)
        n->older->newer = n->newer;
    else
        t->oldest = n->newer;
}

static void become_newest(ml_route_tree *t, node *n) {
    n->newer = NULL;
    n->older = t->newest;
    if (t->newest)
        t->newest->newer = n;
    else
        t->oldest = n;
    t->newest = n;
}

/* Goes from the leaf upwards, so that a node is always newer than its children: then the
 * least recently used node is a leaf, and can be evicted. */
static void use_path(ml_route_tree *t, node *leaf, uint64_t worker) {
    for (node *n = leaf; n != &t->root; n = n->parent) {
        n->worker = worker;
        leave_order(t, n);
        become_newest(t, n);
    }
}

/* --- nodes ------------------------------------------------------------------ */

static node *new_node(ml_route_tree *t, node *parent, const char *edge, size_t len,
                      uint64_t worker) {
    node *n = must(calloc(1, sizeof *n));

    n->edge = must(malloc(len));
    memcpy(n->edge, edge, len);
    n->len = len;
    n->worker = worker;
    n->parent = parent;
    n->sibling = parent->child;
    parent->child = n;
    become_newest(t, n);
    t->bytes += sizeof *n + len;
    return n;
}

static node **link_to(node *n) {
    node **at = &n->parent->child;

    while (*at != n)
        at = &(*at)->sibling;
    return at;
}

static void remove_leaf(ml_route_tree *t, node *n) {
    *link_to(n) = n->sibling;
    leave_order(t, n);
    t->bytes -= sizeof *n + n->len;
    free(n->edge);
    free(n);
}

/* Splits n's edge: inserts a node for its first k bytes above n. */
static node *split(ml_route_tree *t, node *n, size_t k) {
    node *parent = n->parent, *top;

    *link_to(n) = n->sibling;
    top = new_node(t, parent, n->edge, k, n->worker);
    memmove(n->edge, n->edge + k, n->len - k);
    n->len -= k;
    t->bytes -= k;
    n->parent = top;
    n->sibling = NULL;
    top->child = n;
    return top;
}

static node *child_at(const node *n, char first) {
    for (node *c = n->child; c; c = c->sibling)
        if (c->edge[0] == first)
            return c;
    return NULL;
}

static size_t common(const node *n, ml_str s) {
    size_t k = 0, most = n->len < s.len ? n->len : s.len;

    while (k < most && n->edge[k] == s.ptr[k])
        k++;
    return k;
}

/* --- the tree --------------------------------------------------------------- */

ml_route_tree *ml_route_tree_new(size_t max_bytes) {
    ml_route_tree *t = must(calloc(1, sizeof *t));

    t->max_bytes = max_bytes;
    return t;
}

void ml_route_tree_free(ml_route_tree *t) {
    if (!t)
        return;
    for (node *n = t->oldest, *newer; n; n = newer) {
        newer = n->newer;
        free(n->edge);
        free(n);
    }
    free(t);
}

size_t ml_route_tree_bytes(const ml_route_tree *t) {
    return t->bytes;
}

void ml_route_tree_add(ml_route_tree *t, ml_str prompt, uint64_t worker) {
    node *n = &t->root;

    if (prompt.len > t->max_bytes / 8)
        prompt.len = t->max_bytes / 8;
    while (prompt.len) {
        node *c = child_at(n, prompt.ptr[0]);
        size_t k;
        if (!c) {
            n = new_node(t, n, prompt.ptr, prompt.len, worker);
            break;
        }
        k = common(c, prompt);
        n = k < c->len ? split(t, c, k) : c;
        prompt.ptr += k;
        prompt.len -= k;
    }
    use_path(t, n, worker);
    for (node *old = t->oldest, *newer; t->bytes > t->max_bytes; old = newer) {
        newer = old->newer;
        remove_leaf(t, old);
    }
}

size_t ml_route_tree_find(const ml_route_tree *t, ml_str prompt, uint64_t *worker) {
    const node *n = &t->root;
    size_t found = 0;

    *worker = 0;
    while (found < prompt.len) {
        ml_str rest = { prompt.ptr + found, prompt.len - found };
        size_t k;
        n = child_at(n, rest.ptr[0]);
        if (!n)
            break;
        k = common(n, rest);
        found += k;
        *worker = n->worker;
        if (k < n->len)
            break;
    }
    return found;
}
