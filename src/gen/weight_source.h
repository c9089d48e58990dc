/* weight_source.h - weights over TCP: the process that trains.
 *
 * The source keeps a copy of the newest published weights, tensor by tensor as a checkpoint
 * would have them, and gives it to the engines that ask (gen/weight_link.h): to all of them
 * when weights are published, and to one that comes back later.  So training goes on while an
 * engine is brought up to date.
 *
 * thread: one owner.  A thread of its own accepts connections; each has a thread. */
#ifndef ML_GEN_WEIGHT_SOURCE_H
#define ML_GEN_WEIGHT_SOURCE_H

#include "io/safetensors.h"

typedef struct ml_weight_source ml_weight_source;

/* host: the address to listen at; timeout_s: of a wait for an engine. */
ml_status ml_weight_source_open(ml_weight_source **out, const char *host, double timeout_s,
                                ml_err *err);
void ml_weight_source_close(ml_weight_source *s); /* NULL is allowed */

int ml_weight_source_port(const ml_weight_source *s);
const char *ml_weight_source_key(const ml_weight_source *s); /* random */

/* A new version: begin forgets the one before, add copies a tensor, and engines get it from
 * commit on. */
void ml_weight_source_begin(ml_weight_source *s, uint64_t version);
ml_status ml_weight_source_add(ml_weight_source *s, const ml_st_tensor *t, ml_err *err);
void ml_weight_source_commit(ml_weight_source *s);

/* Its tensors, in the order of adding; from commit to the next begin. */
int32_t ml_weight_source_count(const ml_weight_source *s);
const ml_st_tensor *ml_weight_source_tensor(const ml_weight_source *s, int32_t i);

#endif
