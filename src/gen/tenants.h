/* tenants.h - one generator that several runs use at a time, each with an adapter of its own.
 *
 * A tenant is an ml_gen over the shared one.  Its requests get the tenant's adapter, and their
 * tokens the version of that adapter.  Requests, aborts and step ends of a tenant are its own;
 * pauses are counted, so that steps run when no tenant pauses.  What a request computes does
 * not depend on the requests of other tenants; which step ends it does.
 *
 * thread: as ml_gen.  Tenants are opened and closed by any thread; the shared generator must
 * outlive them. */
#ifndef ML_GEN_TENANTS_H
#define ML_GEN_TENANTS_H

#include "gen/gen.h"

typedef struct ml_tenants ml_tenants;

ml_status ml_tenants_open(ml_tenants **out, ml_gen *shared, ml_err *err);
void ml_tenants_close(ml_tenants *all); /* after its tenants; NULL is allowed */

/* slot: the index of the adapter in the generator's weights.  ml_gen.close closes it. */
ml_status ml_tenant_gen_open(ml_gen **out, ml_tenants *all, int32_t slot, ml_err *err);
/* The adapter has changed: requests from now on have this version, and share no cached keys
 * with earlier ones.  The tenant has no requests in flight. */
void ml_tenant_gen_renew(ml_gen *g, uint64_t version);

#endif
