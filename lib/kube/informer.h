/*
 * informer.h — keeps a cache equal to what the API server has: client, watch and cache tied together on the loop.
 *
 * Starts at once, goes on until it is freed, through every fault of the server. Errors are reported, once per kind in a row, and
 * end in retries.
 */
#ifndef KUBE_INFORMER_H
#define KUBE_INFORMER_H

#include "kube/cache.h"
#include "kube/client.h"
#include "kube/watch.h"

struct kube_informer;

struct kube_informer_def {
    const struct kube_resource *resource;
    const char *ns;             /* NULL = all namespaces; copied; so the next ones */
    const char *label_selector, *field_selector;
    enum kube_want want;        /* KUBE_WANT_METADATA where project needs no more */
    const char *const *drops;   /* members that project does not read: null in what it gets (strip.h); static; NULL = none */
    struct kube_cache_def cache;
    void (*synced)(void *ctx);  /* the first commit is done; may be NULL */
    void (*trouble)(void *ctx, const struct error *why, uint32_t failures); /* a list or watch failed; may be NULL */
    void *ctx;                  /* of synced and trouble */
    struct kube_watch_options watch;
};

/* Requests sent, events taken, failures; starts: times it listed from the first object on, the first time too. */
struct kube_informer_stats { uint64_t lists, watches, events, failures, starts; };

MUST_CHECK int kube_informer_new(struct loop *l, struct kube_client *client, const struct kube_informer_def *def,
                                 struct kube_informer **ret, struct error *e);
void kube_informer_free(struct kube_informer *i); /* not from within its callbacks; NULL is fine. Before its client. */
const struct kube_cache *kube_informer_cache(const struct kube_informer *i);
void kube_informer_stats(const struct kube_informer *i, struct kube_informer_stats *ret_stats);

#endif
