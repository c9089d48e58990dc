/* self.h - the communicator of a single rank.  It is a full implementation, so that one
 * rank and many run the same code path. */
#ifndef ML_COMM_SELF_SELF_H
#define ML_COMM_SELF_SELF_H

#include "comm/comm.h"

/* Cannot fail and owns nothing; close is allowed and does nothing. */
ml_comm *ml_comm_self(void);

#endif
