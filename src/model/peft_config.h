/* peft_config.h - adapter_config.json, the description of a LoRA adapter as PEFT writes it.
 *
 * Modules are named as in PEFT, without "base_model.model.": model.layers.0.mlp.up_proj.
 *
 * thread: one. */
#ifndef ML_MODEL_PEFT_CONFIG_H
#define ML_MODEL_PEFT_CONFIG_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "text/regex.h"

/* Modules by the end of their names, by a regular expression of the whole name, or all. */
typedef struct ml_peft_names {
    const char **suffix; /* [n] */
    int32_t n;
    ml_regex *regex; /* NULL: suffixes */
    bool all;        /* all-linear */
} ml_peft_names;

/* A number for modules whose name ends like a regular expression. */
typedef struct ml_peft_pattern {
    ml_regex *regex;
    double value;
} ml_peft_pattern;

typedef struct ml_peft_config {
    const char *path; /* for messages */
    ml_str text;      /* the file */
    int32_t rank;
    double alpha, dropout;
    bool rslora;     /* scale = alpha / sqrt(rank) */
    bool saves_head; /* modules_to_save is the head of a reward model */
    ml_peft_names target, exclude;
    const char **parameter; /* [n_parameter] target_parameters */
    int32_t n_parameter;
    ml_peft_pattern *rank_pattern, *alpha_pattern;
    int32_t n_rank_pattern, n_alpha_pattern;
    int32_t *layer; /* [n_layer] layers_to_transform; none: all */
    int32_t n_layer;
    ml_finder *finder;
} ml_peft_config;

/* Reads a file, or its text; the arena owns the result except what close frees. */
ml_status ml_peft_config_open(ml_peft_config *out, ml_arena *a, const char *path,
                              ml_err *err);
ml_status ml_peft_config_parse(ml_peft_config *out, ml_arena *a, ml_str text,
                               const char *path, ml_err *err);
void ml_peft_config_close(ml_peft_config *c); /* zeros are allowed */

/* Rank and scale of a module: those of the first pattern that fits, or the adapter's. */
ml_status ml_peft_rank_of(const ml_peft_config *c, const char *module, int32_t *out,
                          ml_err *err);
ml_status ml_peft_scale_of(const ml_peft_config *c, const char *module, int32_t rank,
                           float *out, ml_err *err);

/* Whether the config adapts a module (target_modules, exclude_modules,
 * layers_to_transform); a parameter of experts (target_parameters). */
ml_status ml_peft_is_target(const ml_peft_config *c, const char *module, bool *out,
                            ml_err *err);
bool ml_peft_is_parameter(const ml_peft_config *c, const char *name);

#endif
