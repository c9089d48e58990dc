/* loop_base.h - shared by the files of this module: the libevent base of a loop, and memory
 * for bookkeeping. */
#ifndef ML_NET_LOOP_BASE_H
#define ML_NET_LOOP_BASE_H

#include <stddef.h>
#include <sys/time.h>

#include "net/loop.h"

struct event_base;

struct event_base *ml_loop_base(ml_loop *l);

/* calloc; out of memory ends the process, as with arenas.  Release with free. */
void *ml_net_take(size_t bytes);
/* Returns p; ends the process if p is NULL because libevent ran out of memory. */
void *ml_net_must(void *p);

/* Seconds as a timeval for libevent; at least one microsecond, so that 0 fires at once. */
struct timeval ml_loop_timeval(double seconds);

#endif
