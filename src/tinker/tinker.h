/* tinker.h - a server with the protocol of the `tinker` Python SDK: clients train LoRA
 * adapters on one shared base, pass by pass and step by step, and sample from them.
 *
 * A request that computes is answered at once with the id of a future, which the client then
 * polls.  Ids follow from what the client sends (session, client, number of the request): a
 * request that is repeated finds the future of the first one, and runs once.  The requests of
 * one training client run in the order of their numbers, in whatever order they arrive.
 *
 * One thread trains (train/lora_slots.h), request by request; the generator samples meanwhile,
 * from adapters that were saved.  What a client gets depends on its own requests alone.
 * docs/TINKER.md describes endpoints, losses and files.
 *
 * thread: the event loop's; the server owns the thread that trains. */
#ifndef ML_TINKER_TINKER_H
#define ML_TINKER_TINKER_H

#include "gen/gen.h"
#include "net/loop.h"
#include "serve/access.h"
#include "train/lora_slots.h"

typedef struct ml_tinker ml_tinker;

/* The caller owns everything pointed to, and keeps it alive longer than the server. */
typedef struct ml_tinker_opts {
    const char *host;
    int port; /* 0: any free port */
    ml_access_opts access;
    size_t max_body;
    int max_connections;
    const char *dir;          /* for runs and their checkpoints; created */
    const char *model, *arch; /* the base model's name for clients; its family */
    ml_lora_slots_opts slots; /* of the thread that trains, which owns the backend */
    double alpha;             /* of new adapters */
    int32_t context;          /* most tokens of a sequence */
    /* The generator.  Its weights are the base with the adapters in `site`, which the
     * server replaces while it is paused; [n_site], NULL at first. */
    ml_gen *gen;
    const ml_lora_site **site;
    int32_t n_site;
    uint64_t seed;    /* of adapters and samples for which clients set none */
    double session_s; /* a session that is silent for so long ends */
} ml_tinker_opts;

ml_status ml_tinker_open(ml_tinker **out, ml_loop *l, const ml_tinker_opts *o, ml_err *err);
int ml_tinker_port(const ml_tinker *t);
/* Accepts no new connections and stops the loop when the request that runs has ended. */
void ml_tinker_drain(ml_tinker *t);
/* Closes the generator, too: its callbacks use the server.  NULL is allowed. */
void ml_tinker_close(ml_tinker *t);

#endif
