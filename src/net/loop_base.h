/* loop_base.h - what the files of this room share: the libevent base under a loop, and
 * memory for bookkeeping. */
#ifndef ML_NET_LOOP_BASE_H
#define ML_NET_LOOP_BASE_H

#include <stddef.h>
#include <sys/time.h>

#include "net/loop.h"

struct event_base;

struct event_base *ml_loop_base(ml_loop *l);

/* Zeroed bytes for malloc's free; out of memory ends the process, as with arenas. */
void *ml_net_take(size_t bytes);
/* p, unless it is NULL because memory ran out inside libevent. */
void *ml_net_must(void *p);

/* Seconds as libevent takes them; at least a microsecond, so that 0 is "at once". */
struct timeval ml_loop_timeval(double seconds);

#endif
