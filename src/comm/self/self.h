/* self.h - the communicator of a single rank.  A real one: what runs on one rank takes the
 * same path as what runs on many. */
#ifndef ML_COMM_SELF_SELF_H
#define ML_COMM_SELF_SELF_H

#include "comm/comm.h"

/* Cannot fail and owns nothing; close is allowed and does nothing. */
ml_comm *ml_comm_self(void);

#endif
