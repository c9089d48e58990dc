/* dataset.h - prompts from a file: one JSON object per line, checked before a run starts.
 *
 * A row has a prompt under the input key (text, or a list of messages) and may have
 * a label, metadata and tools.  Opening looks at every row, renders and measures it
 * where that is asked for, and drops what is too long; a bad row is an error that
 * names its line, or is counted and skipped.  Only an index of the rows stays in
 * memory; a prompt is read from the mapped file whenever it is asked for.
 *
 * Order, epochs and sample numbers are data_source.h's.
 *
 * thread: immutable after open; any thread may read, each with an arena of its own. */
#ifndef ML_RL_DATASET_H
#define ML_RL_DATASET_H

#include "base/pool.h"
#include "io/jsonl.h"
#include "miles/plugin.h"

/* How conversations become text and text becomes tokens.  Called from several threads at
 * once; err is never NULL. */
typedef struct ml_prompt_text {
    void *ud;
    /* Appends the conversation as the chat template writes it, with the opening of the reply.
     * tools may be NULL; kwargs is an object, passed to the template. */
    ml_status (*render)(void *ud, ml_text *out, const ml_json *messages,
                        const ml_json *tools, const ml_json *kwargs, ml_err *err);
    /* How many tokens text is, without special tokens around it.  worker is the number of the
     * pool's thread that asks, so that each can have an encoder of its own. */
    ml_status (*count)(void *ud, int worker, int64_t *out, ml_str text, ml_err *err);
} ml_prompt_text;

/* Zeros mean defaults.  Text, functions and the pool must outlive the data set. */
typedef struct ml_dataset_opts {
    const char *path;            /* a .jsonl file, maybe with a slice: jsonl.h */
    const miles_prompts *make;   /* in its place: makes row i of as many as are wanted */
    int64_t seed;                /* of what it makes */
    const char *input_key;       /* default "input" */
    const char *label_key;       /* default: rows have no label */
    const char *metadata_key;    /* default "metadata" */
    const char *tool_key;        /* default "tools" */
    const char *multimodal_keys; /* must be NULL: media are not offered */
    bool apply_chat_template;    /* prompts are rendered to text */
    const char *template_kwargs; /* a JSON object; default: empty */
    const char *metadata_more;   /* members of JSON that go over those of each row */
    int64_t max_prompt_len;      /* tokens; rows above are dropped; 0: no limit */
    bool skip_bad_rows;
    ml_prompt_text text;
    ml_pool *pool; /* NULL: rows are checked by the calling thread alone */
} ml_dataset_opts;

typedef struct ml_dataset {
    ml_dataset_opts opts; /* with defaults filled in */
    ml_jsonl rows;        /* those that are left; their number is rows.n */
    ml_arena arena;
    const ml_json *template_kwargs;
    int64_t *bad_line; /* [n_bad] lines of the rows that were skipped, ascending */
    int64_t n_bad;
    int64_t n_long;       /* dropped, because longer than max_prompt_len */
    int64_t n_unmeasured; /* kept whatever their length: lists that no template made text */
    int64_t longest_text; /* bytes of the longest prompt that is kept; -1: not known, since
                             there are lists of messages, or prompts are made */
} ml_dataset;

/* One row.  The prompt is text, or, when messages is not NULL, a conversation that the
 * rollout renders.  Miles' metadata["tools"] is `tools` here. */
typedef struct ml_prompt {
    ml_str source; /* the row, JSON */
    ml_str text;
    const ml_json *messages;
    const ml_json *label;    /* any value; NULL without a label key */
    const ml_json *metadata; /* an object, or NULL for an empty one */
    const ml_json *tools;    /* as in the row; an array, or NULL */
} ml_prompt;

ml_status ml_dataset_open(ml_dataset *out, const ml_dataset_opts *opts, ml_err *err);
void ml_dataset_close(ml_dataset *ds); /* zeros are fine */

/* The prompt lives as long as the data set and `a`. */
ml_status ml_dataset_prompt(ml_prompt *out, const ml_dataset *ds, int64_t row, ml_arena *a,
                            ml_err *err);
/* Puts the place of a row before an error. */
void ml_dataset_blame(const ml_dataset *ds, int64_t row, ml_err *err);

#endif
