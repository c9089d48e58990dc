/* pickle.h - Python pickles as data.
 *
 * Reads the opcodes of protocols 2 to 5 and executes nothing: no class is looked up, no
 * function is called.  A call (REDUCE, NEWOBJ) becomes a node with the name of what would
 * be called and its arguments, an object's state (BUILD) is kept with it, and a persistent
 * id is kept as it is.  What a call stands for is decided by the reader of the document
 * (io/torch_file.h, io/dcp.h).
 *
 * The result is a tree in which subtrees may be shared.  It is bounded: at most
 * ML_PICKLE_DEPTH levels, no cycles, and at most ML_PICKLE_NODES nodes when shared subtrees
 * count as often as they occur, so that a reader may walk it recursively.
 *
 * thread: a parsed document is immutable. */
#ifndef ML_IO_PICKLE_H
#define ML_IO_PICKLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

#define ML_PICKLE_DEPTH 200
#define ML_PICKLE_NODES 2000000000u
#define ML_PICKLE_LONG_BYTES 512

typedef enum ml_pickle_type {
    ML_PICKLE_NONE,
    ML_PICKLE_BOOL,  /* i: 0 or 1 */
    ML_PICKLE_INT,   /* i */
    ML_PICKLE_LONG,  /* text: little-endian two's complement of more than 64 bits */
    ML_PICKLE_FLOAT, /* f */
    ML_PICKLE_STR,   /* text: a view of the source, UTF-8 */
    ML_PICKLE_BYTES, /* text: a view of the source */
    ML_PICKLE_LIST,
    ML_PICKLE_TUPLE,
    ML_PICKLE_SET,
    ML_PICKLE_DICT,       /* item: key, value, key, value, ... */
    ML_PICKLE_GLOBAL,     /* text: "module.name", NUL-terminated */
    ML_PICKLE_CALL,       /* call */
    ML_PICKLE_PERSISTENT, /* item[0]: the id */
} ml_pickle_type;

typedef struct ml_pickle {
    uint8_t type;  /* ml_pickle_type */
    uint8_t depth; /* levels, from 1 */
    int32_t n;     /* items of a list, tuple or set; twice the entries of a dict */
    union {
        int64_t i;
        double f;
        ml_str text;
        struct {
            union {
                struct ml_pickle **item;
                struct ml_pickle_call *call;
            };
            int32_t cap;
            uint32_t n_node; /* of the subtree */
        };
    };
    size_t at; /* of the opcode, from the start of the file: for messages */
} ml_pickle;

/* What calling `fn` with `args` would give; lists and dicts that are derived from the
 * built-in classes have `items` (a LIST or DICT node), objects their `state`. */
typedef struct ml_pickle_call {
    ml_pickle *fn, *args;
    ml_pickle *items, *state; /* or NULL */
} ml_pickle_call;

typedef struct ml_pickle_doc {
    const ml_pickle *root;
    size_t end;                 /* after the last byte, from the start of the source */
    ml_pickle *const *external; /* [n_external] all persistent ids */
    int32_t n_external;
} ml_pickle_doc;

/* Parses one pickle at the start of src, which must outlive the document.  `base` is the
 * offset of src in the file `name`, for messages. */
ml_status ml_pickle_parse(ml_pickle_doc *out, ml_arena *a, ml_str src, size_t base,
                          const char *name, ml_err *err);

/* The value of a text key of a dict, or of a class derived from it, the last if it occurs
 * twice; NULL: none, or not a dict. */
const ml_pickle *ml_pickle_get(const ml_pickle *v, const char *key);
/* An attribute of an object: a key of its state. */
const ml_pickle *ml_pickle_attr(const ml_pickle *v, const char *name);
/* The dict, list or tuple that a node is, or a call's items; NULL: neither. */
const ml_pickle *ml_pickle_items(const ml_pickle *v);
/* Whether it is the call of that function or class: "collections.OrderedDict". */
bool ml_pickle_is_call(const ml_pickle *v, const char *name);
/* Argument i of a call, or NULL. */
const ml_pickle *ml_pickle_arg(const ml_pickle *v, int32_t i);
bool ml_pickle_is_str(const ml_pickle *v, const char *text);
/* "a dict", "a string": for messages. */
const char *ml_pickle_what(const ml_pickle *v);

#endif
