/*
 * authority.h — the operator's own certificate authority: what coordinators trust (job/control.h), and what it shows them.
 *
 * All replicas of the operator share one Secret with authority and serving certificate. The Secret is the truth: it is looked at
 * every few minutes; what it lacks (nothing there yet, the certificate is for another host, two thirds of a life are over) is made
 * by the one who leads, and taken up by the others when they look. The authority is renewed with its key, long before its end, so
 * that pods which know only the former certificate take what it signs now. Whoever deletes the Secret's data gets a new authority;
 * the jobs' Secrets are brought up to date (secret.c), and their sidecars read it at the next try.
 */
#ifndef OPERATOR_AUTHORITY_H
#define OPERATOR_AUTHORITY_H

#include "base/certificate.h"
#include "base/loop.h"
#include "kube/client.h"

#define AUTHORITY_LIFETIME_MS (3650 * 86400000ll)

struct authority_data { struct certificate authority, serving; }; /* NULL fields: there is none */
void authority_data_release(struct authority_data *d);

/* ---- pure ---- */

enum authority_step {
    AUTHORITY_KEEP,
    AUTHORITY_ISSUE, /* a new serving certificate */
    AUTHORITY_RENEW, /* the authority with its key, and a serving certificate */
    AUTHORITY_BEGIN, /* both from nothing */
};
/* ret_why: in words for the log; "" with AUTHORITY_KEEP. */
enum authority_step authority_next(const struct authority_data *have, const char *host, int64_t now_ms, int64_t lifetime_ms, char ret_why[160]);
/* Carries it out: *ret is whole, whatever `have` lacked. */
MUST_CHECK int authority_make(const struct authority_data *have, enum authority_step step, const char *host, int64_t now_ms, int64_t lifetime_ms,
                              struct authority_data *ret, struct error *e);
/* To and from the data of a Secret. What cannot be read is absent in *ret. */
void authority_read(const cJSON *secret, struct authority_data *ret);
/* `existing` is the Secret as it was read, NULL to create one; labels and all else in it stay. Owned. */
cJSON *authority_secret(const struct authority_data *d, const char *ns, const char *name, const cJSON *existing);

/* ---- on the loop ---- */

struct authority;

struct authority_def {
    const char *ns, *name;     /* of the Secret */
    const char *host;          /* by which coordinators reach this program */
    int64_t lifetime_ms;       /* of a serving certificate */
    bool (*may_write)(void *ctx);
    void (*changed)(void *ctx); /* there is one now, or another one */
    void *ctx;
};

MUST_CHECK int authority_new(struct loop *l, struct kube_client *client, const struct authority_def *def, struct authority **ret, struct error *e);
void authority_free(struct authority *a);                    /* NULL is fine; before its client */
void authority_look(struct authority *a);                    /* now: this process has begun to lead */
const struct authority_data *authority_get(const struct authority *a); /* NULL: not yet */
bool authority_is_late(const struct authority *a);           /* there is none, and it was tried: others need not wait for it */

#endif
