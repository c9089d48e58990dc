/* adapters.h - the LoRA adapters of a server, by name, as in SGLang.
 *
 * An adapter is known from its first load until it is unloaded.  Known adapters are in memory,
 * in a slot of the generator, or evicted.  A request holds its adapters until it has ended.
 * If one of them is evicted, the request waits in a queue in which the first element alone
 * loads: into a free slot, or into that of the least recently used adapter that no request
 * holds and that is not pinned.  If requests hold all of them, the least recently used one
 * gets no new requests until it can be evicted.  Unloading waits for the adapter's requests,
 * too.
 *
 * thread: the event loop's; slots are filled and emptied on the admin thread. */
#ifndef ML_SERVE_ADAPTERS_H
#define ML_SERVE_ADAPTERS_H

#include "net/http_server.h"
#include "serve/server.h"

typedef struct ml_adapters ml_adapters;
typedef struct ml_adapter ml_adapter;

/* Who holds adapters, or waits for them. */
typedef struct ml_adapter_wait {
    struct ml_adapter_wait *next;
    ml_adapter **need; /* [n_need], each once */
    int32_t n_need, n_held;
    bool queued;
    void (*ready)(void *ud, const ml_err *err); /* err NULL: all are held */
    void *ud;
} ml_adapter_wait;

struct ml_adapter {
    ml_adapters *all;
    ml_adapter *next;
    char *name, *dir;
    bool asked;       /* a request named the directory: it must be below an allowed root */
    bool pinned;      /* never evicted */
    bool known;       /* false: unloaded, and freed when nobody holds it any more */
    bool in;          /* in memory */
    bool leaving;     /* to be evicted: it gets no new holders */
    bool stale;       /* in memory, and to be replaced by a new version */
    char *json;       /* over TCP: the request; NULL: from dir */
    char *crc64;      /* checksum of the base, or NULL */
    uint64_t version; /* of generation, when it is in use; 0: that does not change */
    int32_t slot, id; /* as in ml_gen_request, the slot from 0 on; id: of this load */
    int32_t n_user, n_wait;
    uint64_t last_use;
    ml_http_call *load_call, *unload_call; /* to be answered, or NULL */
    ml_adapter_wait loading;               /* of load_call */
    ml_adapter *self;
};

/* Loads the adapters that the options name; a server without LoRA has none. */
ml_status ml_adapters_open(ml_adapters **out, ml_server *s, ml_err *err);
void ml_adapters_close(ml_adapters *a); /* NULL is allowed */

/* The known adapter of this name, or NULL; the known ones in the order of their loads. */
ml_adapter *ml_adapters_find(const ml_adapters *a, ml_str name);
const ml_adapter *ml_adapters_next(const ml_adapters *a, const ml_adapter *e);

/* True: w holds its adapters.  False: w->ready is called later, or was called already. */
bool ml_adapters_hold(ml_adapters *a, ml_adapter_wait *w);
/* Ends holding or waiting. */
void ml_adapters_release(ml_adapters *a, ml_adapter_wait *w);

#endif
