/* dataset.h - prompts from data files (io/table.h), checked before a run starts.
 *
 * A row has a prompt under the input key (text, or a list of messages) and may have
 * a label, metadata and tools.  ml_dataset_open checks every row, renders it and counts
 * its tokens if the options require that, and drops prompts that are too long; a bad row
 * is an error that names its line, or is counted and skipped.  Only an index of the rows
 * stays in memory; each call of ml_dataset_prompt reads the mapped files.
 *
 * data_source.h is responsible for order, epochs and sample numbers.
 *
 * thread: immutable after open; any thread may read, each with an arena of its own. */
#ifndef ML_RL_DATA_DATASET_H
#define ML_RL_DATA_DATASET_H

#include "base/pool.h"
#include "io/table.h"
#include "miles/plugin.h"

/* Callbacks that convert conversations to text and count tokens.  Several threads call them
 * at the same time; err is never NULL. */
typedef struct ml_prompt_text {
    void *ud;
    /* Appends the conversation as the chat template renders it, with the generation prompt.
     * tools may be NULL; kwargs is an object, passed to the template. */
    ml_status (*render)(void *ud, ml_text *out, const ml_json *messages,
                        const ml_json *tools, const ml_json *kwargs, ml_err *err);
    /* Counts the tokens of text, without added special tokens.  worker is the index of the
     * calling pool thread, so that each thread can have its own encoder. */
    ml_status (*count)(void *ud, int worker, int64_t *out, ml_str text, ml_err *err);
} ml_prompt_text;

/* Zeros mean defaults.  Text, functions and the pool must outlive the data set. */
typedef struct ml_dataset_opts {
    const char *path;            /* of a data file or several: table.h */
    const miles_prompts *make;   /* instead of a file: makes row i, without a limit on i */
    int64_t seed;                /* passed to `make` */
    const char *input_key;       /* default "input" */
    const char *label_key;       /* default: rows have no label */
    const char *metadata_key;    /* default "metadata" */
    const char *tool_key;        /* default "tools" */
    const char *tools;           /* a JSON array, of rows without tools; NULL: none */
    const char *multimodal_keys; /* must be NULL: media are not supported */
    bool apply_chat_template;    /* prompts are rendered to text */
    const char *template_kwargs; /* a JSON object; default: empty */
    const char *metadata_more;   /* JSON members that override those of each row */
    int64_t max_prompt_len;      /* tokens; longer prompts are dropped; 0: no limit */
    bool skip_bad_rows;
    ml_prompt_text text;
    ml_pool *pool; /* NULL: only the calling thread checks the rows */
} ml_dataset_opts;

typedef struct ml_dataset {
    ml_dataset_opts opts; /* with defaults filled in */
    ml_table rows;        /* the rows that were kept; their number is rows.n */
    ml_arena arena;
    const ml_json *template_kwargs;
    const ml_json *tools; /* of opts.tools, or NULL */
    int64_t *bad_line;    /* [n_bad] lines of the skipped rows, each in its file */
    int64_t n_bad;
    int64_t n_long;       /* dropped, because longer than max_prompt_len */
    int64_t n_unmeasured; /* kept regardless of length: message lists without a template */
    int64_t longest_text; /* bytes of the longest prompt that is kept; -1: not known, since
                             there are lists of messages, or `make` makes the prompts */
} ml_dataset;

/* One row.  The prompt is text or, if messages is not NULL, a conversation that the
 * rollout renders.  `tools` corresponds to Miles' metadata["tools"]. */
typedef struct ml_prompt {
    ml_str source; /* the row, JSON */
    ml_str text;
    const ml_json *messages;
    const ml_json *label;    /* any value; NULL without a label key */
    const ml_json *metadata; /* an object, or NULL for an empty one */
    const ml_json *tools;    /* as in the row; an array, or NULL */
} ml_prompt;

ml_status ml_dataset_open(ml_dataset *out, const ml_dataset_opts *opts, ml_err *err);
void ml_dataset_close(ml_dataset *ds); /* zeros are allowed */

/* The prompt is valid as long as both the data set and `a` are. */
ml_status ml_dataset_prompt(ml_prompt *out, const ml_dataset *ds, int64_t row, ml_arena *a,
                            ml_err *err);
/* Prefixes an error message with the location of the row. */
void ml_dataset_blame(const ml_dataset *ds, int64_t row, ml_err *err);

#endif
