/* loop_base.h - the libevent base under a loop, for the files of this room. */
#ifndef ML_NET_LOOP_BASE_H
#define ML_NET_LOOP_BASE_H

#include <sys/time.h>

#include "net/loop.h"

struct event_base;

struct event_base *ml_loop_base(ml_loop *l);

/* Seconds as libevent takes them; at least a microsecond, so that 0 is "at once". */
struct timeval ml_loop_timeval(double seconds);

#endif
