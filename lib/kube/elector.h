/*
 * elector.h — leader election on the loop: lease.h carried out by a client.
 */
#ifndef KUBE_ELECTOR_H
#define KUBE_ELECTOR_H

#include "kube/client.h"
#include "kube/lease.h"

struct kube_elector;

struct kube_elector_def {
    const char *ns, *name;            /* of the Lease; copied */
    struct kube_lease_options lease;
    void (*changed)(void *ctx, bool held);
    void (*trouble)(void *ctx, const struct error *why); /* a read or write failed; may be NULL */
    void *ctx;
};

MUST_CHECK int kube_elector_new(struct loop *l, struct kube_client *client, const struct kube_elector_def *def,
                                struct kube_elector **ret, struct error *e);
/* The fence, by the clock at this moment (not the loop's, which may be old): ask before every write. */
bool kube_elector_held(const struct kube_elector *el);
const char *kube_elector_holder(const struct kube_elector *el); /* identity as last seen, "" = nobody; borrowed */
/* Gives the lease up, so that another takes over at once; `done` when that is written or cannot be. For an orderly end. */
void kube_elector_release(struct kube_elector *el, void (*done)(void *ctx), void *ctx);
void kube_elector_free(struct kube_elector *el); /* NULL is fine; does not give the lease up */

#endif
